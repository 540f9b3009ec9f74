"""The daemon: sockets, event loop, connectors, and the runtime that operators of the library run on."""

import os

# Operators run beside each other, each on one executor thread. A pool of threads inside each of them would only make them wait for one
# another, and costs more than it brings for batches of some thousand rows. polars reads this once, when it is first imported.
os.environ.setdefault("POLARS_MAX_THREADS", "1")
