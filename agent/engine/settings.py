"""Settings of the engine."""

import msgspec


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How operators run on this machine. TOML table [engine]."""

    workers: int = 0
    """Executor threads; 0: one for each core. More than cores gains nothing, fewer leaves cores to others."""
    quantum_s: float = 0.005
    """How long one batch should keep an executor thread, by what its rows have cost lately; larger ones are worked on in slices. Longer:
    fewer, larger batches, more rows a second; shorter: an urgent batch waits less for others."""
    quantum_rows: int = 131_072
    """Rows of such a batch or slice at most, however little they cost. More: more memory for batches under way."""
    batch_interval_min_s: float = 0.001
    """Shortest pause between two batches of one source; the first row after a pause leaves at once. Shorter: fresher answers, more
    batches for the same rows. The actual pause grows with what a batch costs here, with the load of the machine, and with the time until
    a batch is acknowledged, so that slow sources fill neither the machine nor a slow way."""
    batch_interval_s: float = 0.05
    """Longest such pause. Shorter: fresher answers on a busy machine; longer: larger batches, less work for the same rows."""
    batch_share: float = 0.4
    """Share of a core that the batches of all sources here may take together before their pauses grow; where other work needs the machine,
    less. More: fresher answers, less rest."""
    ahead_rows_max: int = 4_000_000
    """Rows that a join keeps of an input which is ahead of the other in event time, before it takes no more of it until the other has
    caught up. More: more memory while one input is behind; fewer: its source is held back sooner, and a join that needs to keep more than
    this anyway takes its inputs in step."""
    operators_max: int = 256
    """Operators that this agent hosts at most, sources and sinks included. Candidates that are full refuse."""
    memory_max: int = 0
    """Bytes that the states of all operators here may take together; 0: half of the memory that the machine has, or its control group.
    When they take more, the operator with the largest state fails, and the others go on. Above four fifths of it the agent takes no
    further operator that keeps state. More: larger windows; less: more room for other work, and for what operators need while a window
    closes."""
    lost_input_s: float = 30.0
    """How long the answers of a query wait for a source whose node has failed. Longer: longer partitions lose nothing; shorter: the
    answers of all other sources go on sooner after a crash. What comes back later is late, and counted."""
    lost_consumer_s: float = 120.0
    """How long an operator that serves several consumers waits for one whose node has failed, before it goes on without it; so long, too,
    until an operator whose every input comes from failed nodes counts as lost. Longer: longer partitions lose nothing; shorter: one
    query's dead host holds up the others that share its source for a shorter time."""
    sample_interval_s: float = 1.0
    """How often rates are taken. Shorter: quicker to notice, noisier."""
    report_interval_s: float = 2.0
    """How often the agent that took a query asks the hosts how its operators do. Longer: less traffic, older figures in `sbon queries`."""
    wanted_interval_s: float = 15.0
    """How often a host asks the takers of queries whether its operators are still wanted. Longer: less traffic, operators of ended
    queries run on longer."""
    orphan_timeout_s: float = 0.0
    """After how long operators here end whose query's home has failed or left; 0: never, they run until somebody drops the query
    (`sbon queries` lists it). Longer: a partition of the home costs nothing for longer. Keep it above the longest partition that queries
    are to survive: a home that is back after it finds its operators ended, and its query degraded."""

    def __post_init__(self) -> None:
        if not 0 <= self.workers <= 1024:
            raise ValueError(f"workers = {self.workers}, expected 0 to 1024")
        if not 0 < self.quantum_s <= 10:
            raise ValueError(f"quantum_s = {self.quantum_s}, expected above 0, to 10")
        if not 1 <= self.quantum_rows <= 10_000_000:
            raise ValueError(f"quantum_rows = {self.quantum_rows}, expected 1 to 10000000")
        for name in ("batch_interval_min_s", "batch_interval_s"):
            if not 0 <= getattr(self, name) <= 60:
                raise ValueError(f"{name} = {getattr(self, name)}, expected 0 to 60")
        if not 0 < self.batch_share <= 1:
            raise ValueError(f"batch_share = {self.batch_share}, expected above 0, to 1")
        if self.ahead_rows_max < 0:
            raise ValueError(f"ahead_rows_max = {self.ahead_rows_max}, expected 0 or more")
        if self.operators_max < 0:
            raise ValueError(f"operators_max = {self.operators_max}, expected 0 or more")
        if self.memory_max < 0:
            raise ValueError(f"memory_max = {self.memory_max}, expected bytes, or 0 for half of the memory that there is")
        for name in ("lost_input_s", "lost_consumer_s"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} = {getattr(self, name)}, expected 0 or more")
        if not 0 <= self.orphan_timeout_s <= 1e9:
            raise ValueError(f"orphan_timeout_s = {self.orphan_timeout_s}, expected 0 or more")
        for name in ("sample_interval_s", "report_interval_s", "wanted_interval_s"):
            if not 0 < getattr(self, name) <= 1e6:
                raise ValueError(f"{name} = {getattr(self, name)}, expected above 0")
