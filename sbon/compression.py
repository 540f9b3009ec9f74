"""How the batches of a link are packed for the way."""

import enum


class Codec(enum.Enum):
    """Compression of the buffers of an Arrow IPC batch."""

    NONE = "none"
    LZ4 = "lz4"
    ZSTD = "zstd"
