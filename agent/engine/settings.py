"""Settings of the engine."""

import msgspec


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How operators run on this machine. TOML table [engine]."""

    workers: int = 0
    """Executor threads; 0: one for each core. More than cores gains nothing, fewer leaves cores to others."""
    batch_interval_s: float = 0.05
    """Shortest pause between two batches of one source. Shorter: fresher answers; longer: larger batches, less work for the same rows."""
    operators_max: int = 256
    """Operators that this agent hosts at most, sources and sinks included. Candidates that are full refuse."""
    lost_input_s: float = 30.0
    """How long the answers of a query wait for a source whose node has failed. Longer: longer partitions lose nothing; shorter: the
    answers of all other sources go on sooner after a crash. What comes back later is late, and counted."""
    sample_interval_s: float = 1.0
    """How often rates are taken. Shorter: quicker to notice, noisier."""
    report_interval_s: float = 2.0
    """How often the agent that took a query asks the hosts how its operators do. Longer: less traffic, older figures in `sbon queries`."""
    wanted_interval_s: float = 15.0
    """How often a host asks the takers of queries whether its operators are still wanted. Longer: less traffic, orphans run on longer."""

    def __post_init__(self) -> None:
        if not 0 <= self.workers <= 1024:
            raise ValueError(f"workers = {self.workers}, expected 0 to 1024")
        if not 0 <= self.batch_interval_s <= 60:
            raise ValueError(f"batch_interval_s = {self.batch_interval_s}, expected 0 to 60")
        if self.operators_max < 0:
            raise ValueError(f"operators_max = {self.operators_max}, expected 0 or more")
        if self.lost_input_s < 0:
            raise ValueError(f"lost_input_s = {self.lost_input_s}, expected 0 or more")
        for name in ("sample_interval_s", "report_interval_s", "wanted_interval_s"):
            if not 0 < getattr(self, name) <= 1e6:
                raise ValueError(f"{name} = {getattr(self, name)}, expected above 0")
