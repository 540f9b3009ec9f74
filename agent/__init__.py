"""The daemon: sockets, event loop, connectors, and the runtime for the library's operators."""

import os

# Operators run on executor threads in parallel. If each had a pool of polars threads too, they would wait for one another; for batches of
# some thousand rows such a pool costs more than it gains. polars reads the variable once, on first import.
os.environ.setdefault("POLARS_MAX_THREADS", "1")
