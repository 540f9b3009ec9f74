"""The daemon: sockets, event loop, connectors, and the runtime for the library's operators."""

import os

# Each operator runs on one executor thread, beside the others. A pool of threads inside each of them would make them wait for one another,
# and costs more than it gains for batches of some thousand rows. polars reads this once, when it is first imported.
os.environ.setdefault("POLARS_MAX_THREADS", "1")
