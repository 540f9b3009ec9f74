"""Settings of migrations: timeouts of the steps, and how the state is sent."""

import msgspec


class MigrationConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Timeouts of a migration's steps, and how its state is sent. TOML table [migration]."""

    timeout_s: float = 15.0
    """Between two signs of progress, and from the pause to the decision; after it the migration is abandoned. Longer: worse paths."""
    copy_timeout_s: float = 600.0
    """From the first question to the pause; after it the migration is abandoned. Longer: large states on slow paths get through."""
    lease_s: float = 20.0
    """Time for which neighbours keep still without another word. Must exceed timeout_s, or two migrations may meet."""
    lease_s_max: float = 120.0
    """Longest promise to keep still that is given to another host; one that asks for more is refused. Shorter: nobody can hold the
    operators here for long; below others' lease_s, their operators beside ours do not move."""
    rounds_max: int = 8
    """Rounds of input given since, before the operator pauses with what is left. More: a shorter pause of a busy operator, more work."""
    rest_bytes: int = 64 * 1024
    """So much input may be left for the pause. Less: more rounds, a shorter pause on slow paths."""
    copy_share: float = 0.07
    """Share of a core that making the pieces of a state may take on the old host, and taking them in on the new one, while the operator
    runs on; carrying them comes on top, about twice as much. More: quicker copies; less: other work on both hosts waits less, and fewer
    sources slow down for a busy machine. The more input waits for the copy, the less it holds back."""
    piece_bytes: int = 256 * 1024
    """Largest size of the pieces in which a state travels; on slow paths they are smaller. Smaller: other work waits less, more work for
    the same state."""
    window_bytes: int = 2 * 2**20
    """Bytes of a state under way at once, at most; fewer on slow paths. More: quicker over long paths, more memory on both hosts."""
    input_bytes_max: int = 64 * 2**20
    """Input kept for the copy; at this the operator pauses, however much is left. More: busier operators pause shortly, more memory."""
    state_bytes_max: int = 4 * 2**30
    """A state larger than this is not taken here. Lower: other hosts' operators cannot fill this one's memory."""
    retry_s: float = 1.0
    """Pause between repeated words once decided. Shorter: quicker recovery from a lost message, more traffic."""
    prepared_s: float = 5.0
    """Time for which a new host waits in silence before it asks the coordinator about the migration."""
    remembered: int = 1024
    """Operators that have left this host and whose new place it still tells to latecomers. Older ones are forgotten."""

    def __post_init__(self) -> None:
        if not 0 < self.timeout_s < self.lease_s:
            raise ValueError(f"timeout_s = {self.timeout_s}, expected above 0 and below lease_s = {self.lease_s}")
        if self.lease_s_max < self.lease_s:
            raise ValueError(f"lease_s_max = {self.lease_s_max}, expected at least lease_s = {self.lease_s}")
        if self.retry_s <= 0 or self.prepared_s <= 0:
            raise ValueError("retry_s and prepared_s, expected above 0")
        if self.copy_timeout_s <= 0:
            raise ValueError(f"copy_timeout_s = {self.copy_timeout_s}, expected above 0")
        for name in ("remembered", "rounds_max", "rest_bytes", "window_bytes", "input_bytes_max", "state_bytes_max"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}, expected at least 1")
        if not 0 < self.copy_share <= 1:
            raise ValueError(f"copy_share = {self.copy_share}, expected above 0, to 1")
        if not 1024 <= self.piece_bytes <= 16 * 2**20:
            raise ValueError(f"piece_bytes = {self.piece_bytes}, expected 1024 to {16 * 2**20}")
