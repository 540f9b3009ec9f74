"""Settings of links."""

import msgspec

from sbon.compression import Compression


class LinkConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits and compression of links. TOML table [links]."""

    window_batches: int = 512
    """Batches sent or waiting on one link and not yet acknowledged. More: longer paths stay full; fewer: less memory."""
    window_bytes: int = 8 * 2**20
    """Bytes likewise, before any packing. A single larger batch still goes, alone. A link carries at most so much in a round trip: over
    100 ms, 80 MiB/s."""
    compression: Compression = "auto"
    """Packing of batches between hosts: `none`, `lz4`, `zstd`, or `auto`, by the bandwidth that the connection shows when it is full. A
    codec saves bytes on the way and costs processor time at both ends."""
    spill_bytes: int = 0
    """Disk that all links of this agent may fill, together, with what far ends cannot take; 0: none, sources wait instead. More: longer
    outages are bridged. The files lie unencrypted in the data directory, for its owner's eyes only, and do not outlive the agent."""
    spill_after_s: float = 1.0
    """Time for which a link must have been full, without any room, before it goes to disk. Shorter: sources are held up less when a far
    end goes away; 0: far ends that are merely slower than their sources fill the disk as well, where otherwise the sources would wait."""

    def __post_init__(self) -> None:
        if not 1 <= self.window_batches <= 65_536:
            raise ValueError(f"window_batches = {self.window_batches}, expected 1 to 65536")
        if self.window_bytes < 1024:
            raise ValueError(f"window_bytes = {self.window_bytes}, expected at least 1024")
        if self.spill_bytes < 0 or 0 < self.spill_bytes < 2**20:
            raise ValueError(f"spill_bytes = {self.spill_bytes}, expected 0 or at least 1048576")
        if not 0 <= self.spill_after_s <= 3600:
            raise ValueError(f"spill_after_s = {self.spill_after_s}, expected 0 to 3600")
