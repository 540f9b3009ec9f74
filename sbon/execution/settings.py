"""Settings of the engine."""

import msgspec


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Execution of operators on this machine. TOML table [engine]."""

    workers: int = 0
    """Number of executor threads; 0 for one per core. More than cores gains nothing; fewer leaves cores to other programs."""
    quantum_s: float = 0.005
    """Time that one batch should occupy an executor thread, judged by the recent cost of its rows; larger batches are processed in slices.
    Longer: fewer and larger batches, more rows per second. Shorter: an urgent batch waits less for others."""
    quantum_rows: int = 262_144
    """Most rows of such a batch or slice, however little they cost. More: more memory for batches in progress."""
    batch_interval_min_s: float = 0.001
    """Shortest pause between two batches of one source; the first row after a pause leaves at once. Shorter: fresher answers, more batches
    for the same rows. The actual pause grows with the cost of a batch here, unless it had thousands of rows, with the load of the
    machine, and with the time until a batch is acknowledged, so that slow sources overload neither the machine nor a slow link."""
    batch_interval_s: float = 0.05
    """Longest pause between two batches of one source. Shorter: fresher answers on a busy machine. Longer: larger batches, less work for
    the same rows."""
    batch_share: float = 0.4
    """Share of a core that the batches of all sources here may take together before their pauses grow; it is less where other work needs
    the machine. More: fresher answers, more load."""
    ahead_rows_max: int = 4_000_000
    """Rows that a join keeps of an input that is ahead of the other in event time, before it takes no more of it until the other has caught
    up. More: more memory while one input is behind. Fewer: the source of the input ahead is held back sooner, and a join that has to keep
    more than this in any case reads its inputs in step."""
    deferred_bytes: int = 64 * 2**20
    """Memory that the rows may take which one operator has put off (`on_miss = 'defer'`). Most of them go to disk before that if states may
    (`state_disk_max`). If memory and disk take no more, it works on all rows as they come. More: more rows in time in a long overload."""
    position_bytes_min: int = 16 * 2**20
    """Size of a file, in bytes, from which on its source keeps on disk, once a second, how far its rows are safe. After a crash the source
    then goes on from there, not from the first row. A smaller file is read again quickly. Smaller: more is written."""
    operators_max: int = 256
    """Most operators that this agent hosts, sources and sinks included. A full agent refuses further operators."""
    memory_max: int = 0
    """Bytes that the states of all operators here may take together; 0 for half of the memory of the machine or of its control group. If
    they take more, the operator with the largest state fails, and the others go on. Above four fifths of it the agent takes no further
    operator with state. More: larger windows. Less: more room for other programs, and for what operators need while a window closes."""
    state_memory_max: int = 0
    """Memory, in bytes, for the states of one function with keys, the keys of one deduplication, or the groups of one window or of the
    sessions of one operator, where they may go to disk (`state_disk_max`). Beyond that the least used ones go to disk. 0: a quarter of
    `memory_max`. Operators here whose states may go to disk take together four fifths of `memory_max` at most, in equal shares. Less: more
    room for others, more keys are read from disk. It must hold a state for each row of a batch of `quantum_rows`."""
    state_disk_max: int = 0
    """Disk, in bytes, that the states of functions with keys, deduplications, and windows and sessions with keys may take, all together; 0:
    none, all are in memory. Allow for three times the states, since they are merged. If it is full, sources wait. The files lie unencrypted
    in the data directory, for its owner's eyes only, and do not outlive the agent."""
    lost_input_s: float = 30.0
    """Time that the answers of a query wait for a source whose node has failed. Longer: longer partitions lose nothing. Shorter: the
    answers of all other sources go on sooner after a crash. Rows that come back later are late, and counted."""
    lost_consumer_s: float = 120.0
    """Time that an operator with several consumers waits for one whose node has failed, before it goes on without it; also the time until
    an operator whose inputs all come from failed nodes counts as lost. An operator that several queries use is made again elsewhere after
    four fifths of this time, before anybody goes on without it.
    Longer: longer partitions lose nothing. Shorter: the dead host of one query holds up the others that share its source for a shorter
    time."""
    sample_interval_s: float = 1.0
    """Time between samples of rates. Shorter: changes are noticed sooner, rates are noisier."""
    report_interval_s: float = 2.0
    """Time between the questions with which the home of a query (the agent that took it) asks the hosts about its operators. Longer: less
    traffic, older figures in `sbon queries`."""
    wanted_interval_s: float = 15.0
    """Time between the questions with which a host asks the homes of queries whether its operators are still wanted. Longer: less traffic,
    operators of ended queries run on longer."""
    heal: bool = True
    """Makes operators of queries taken here again if they are lost with their hosts; movable ones on other hosts. Off: such a query is
    degraded until somebody submits it again."""
    heal_after_s: float = 0.0
    """Time that a host must have been declared failed before its movable operators are made again on other hosts. Longer: partitions as
    long as that and the 4 to 5 s until the host is declared failed lose nothing. Shorter: answers go on sooner after a crash. Sources and
    sinks wait for their node in any case, and lose nothing in a partition."""
    rerun_rows_max: int = 10_000_000
    """Most rows that the sources of a query may have given for a rerun: if nobody knows exactly which rows a crash has cost a query that
    reads files and writes one, all its operators begin again with the first rows of the files, and the sink leaves out what it has written.
    Larger: more such queries lack nothing, and their answers wait longer. 0: such a query goes on at once, and says *about*."""
    take_over: bool | None = None
    """Lets two other agents keep the records of queries taken here; one of them takes the queries over once this agent has failed. Set it
    alike on all agents. It needs three agents, and `heal`: `true` is refused without that. Not set: as `heal`. Off: a query whose agent has
    failed runs on unwatched, and waits for that agent."""
    orphan_timeout_s: float = 0.0
    """Time after which operators here end if the home of their query has failed or left; 0 for never: they run until somebody drops the
    query (`sbon queries` lists it). Longer: a longer partition of the home costs nothing. Keep it above the longest partition that queries
    are to survive: a home that comes back later finds its operators ended, and its query degraded."""

    @property
    def inherits(self) -> bool:
        """Returns whether queries taken here have keepers: not without `heal`, as an agent that takes a query over has to make lost
        operators again."""
        return self.heal and self.take_over is not False

    @property
    def shared_after_s(self) -> float:
        """Time that the host of an operator that several queries use must have been declared failed before the operator is made elsewhere.
        A little later, feeders with other consumers would give it up, and the batches that wait for it would be lost."""
        return 0.8 * self.lost_consumer_s

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
        if self.deferred_bytes < 0:
            raise ValueError(f"deferred_bytes = {self.deferred_bytes}, expected 0 or more")
        if self.position_bytes_min < 0:
            raise ValueError(f"position_bytes_min = {self.position_bytes_min}, expected 0 or more")
        if self.rerun_rows_max < 0:
            raise ValueError(f"rerun_rows_max = {self.rerun_rows_max}, expected 0 or more")
        if self.operators_max < 0:
            raise ValueError(f"operators_max = {self.operators_max}, expected 0 or more")
        if self.memory_max < 0:
            raise ValueError(f"memory_max = {self.memory_max}, expected bytes, or 0 for half of the memory that there is")
        for name in ("state_memory_max", "state_disk_max"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} = {getattr(self, name)}, expected bytes, or 0")
        if self.state_memory_max and not self.state_disk_max:
            raise ValueError(f"state_memory_max = {self.state_memory_max}, expected state_disk_max with it: states beyond it go to disk")
        if self.take_over and not self.heal:
            raise ValueError("take_over = true, expected heal = true with it: an agent that takes a query over makes lost operators again")
        for name in ("lost_input_s", "lost_consumer_s", "heal_after_s"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} = {getattr(self, name)}, expected 0 or more")
        if not 0 <= self.orphan_timeout_s <= 1e9:
            raise ValueError(f"orphan_timeout_s = {self.orphan_timeout_s}, expected 0 or more")
        for name in ("sample_interval_s", "report_interval_s", "wanted_interval_s"):
            if not 0 < getattr(self, name) <= 1e6:
                raise ValueError(f"{name} = {getattr(self, name)}, expected above 0")
