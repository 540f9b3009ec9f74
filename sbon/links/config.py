"""Settings of links."""

import msgspec

from sbon.compression import Compression


class LinkConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits and compression of links. TOML table [links]."""

    window_batches: int = 512
    """Batches sent or waiting on one link and not yet acknowledged. More: longer paths stay full; fewer: less memory."""
    window_bytes: int = 8 * 2**20
    """Uncompressed bytes sent or waiting on one link and not yet acknowledged. A single larger batch is still sent, alone. A link carries
    at most this much in a round trip: 80 MiB/s if a round trip takes 100 ms."""
    compression: Compression = "auto"
    """Compression of batches between hosts: `none`, `lz4`, `zstd`, or `auto`, which chooses by the bandwidth measured when the connection
    is full. A codec saves bytes on the network and costs processor time at both ends."""
    spill_bytes: int = 0
    """Disk space that all links of this agent may use together for batches that receivers cannot take; 0: none, sources wait instead. More:
    longer outages are bridged. The files in the data directory are not encrypted, only their owner can read them, and they are deleted when
    the agent ends."""
    spill_after_s: float = 1.0
    """Time for which a link must have been full before it spills to disk. Shorter: sources wait less when a receiver goes away. 0: a
    receiver that is merely slower than its sources fills the disk, too, instead of making them wait."""

    def __post_init__(self) -> None:
        if not 1 <= self.window_batches <= 65_536:
            raise ValueError(f"window_batches = {self.window_batches}, expected 1 to 65536")
        if self.window_bytes < 1024:
            raise ValueError(f"window_bytes = {self.window_bytes}, expected at least 1024")
        if self.spill_bytes < 0 or 0 < self.spill_bytes < 2**20:
            raise ValueError(f"spill_bytes = {self.spill_bytes}, expected 0 or at least 1048576")
        if not 0 <= self.spill_after_s <= 3600:
            raise ValueError(f"spill_after_s = {self.spill_after_s}, expected 0 to 3600")
