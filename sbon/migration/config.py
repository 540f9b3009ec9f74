"""Settings of migrations: timeouts of the steps, and how the state is sent."""

import msgspec


class MigrationConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Timeouts of a migration's steps, and how its state is sent. TOML table [migration]."""

    timeout_s: float = 15.0
    """Longest time between two signs of progress, and from the pause to the decision; after it the migration is abandoned. Longer:
    migrations succeed on worse paths."""
    copy_timeout_s: float = 600.0
    """Longest time from the first request to the pause; after it the migration is abandoned. Longer: large states on slow paths get
    through."""
    lease_s: float = 20.0
    """Time for which a neighbour's operators do not move, unless the lock is renewed. Must exceed timeout_s, or two migrations may meet."""
    lease_s_max: float = 120.0
    """Longest lock that another host gets here; a host that asks for more is refused. Shorter: nobody can hold the operators here for long.
    Below the lease_s of other hosts, their operators with links to operators here cannot move."""
    rounds_max: int = 8
    """Most rounds of later input before the operator pauses with the rest. More: a shorter pause of a busy operator, more work."""
    rest_bytes: int = 64 * 1024
    """Bytes of input that may be left for the pause. Less: more rounds, a shorter pause on slow paths."""
    copy_share: float = 0.07
    """Share of a core that making the pieces of a state may take on the old host, and taking them in on the new one, while the operator
    runs on; carrying them comes on top, about twice as much. More: quicker copies. Less: other work on both hosts waits less, and fewer
    sources slow down for a busy machine. The limit counts less as more input waits for the copy."""
    piece_bytes: int = 256 * 1024
    """Largest size of the pieces in which a state travels; on slow paths they are smaller. Smaller: other work waits less, more work for
    the same state."""
    window_bytes: int = 2 * 2**20
    """Most bytes of a state in flight; fewer on slow paths. More: quicker over long paths, more memory on both hosts."""
    input_bytes_max: int = 64 * 2**20
    """Most bytes of input kept for the copy; beyond that the operator pauses at once. More: shorter pauses of busy operators, more
    memory."""
    state_bytes_max: int = 4 * 2**30
    """Largest state, in bytes, that is taken here. Lower: other hosts' operators cannot fill this host's memory."""
    retry_s: float = 1.0
    """Pause between repeated messages once the migration is decided. Shorter: quicker recovery from a lost message, more traffic."""
    prepared_s: float = 5.0
    """Time for which a new host waits in silence before it asks the coordinator about the migration."""
    remembered: int = 1024
    """Number of operators that have left this host and whose new place it still tells to late senders. Older ones are forgotten."""

    def __post_init__(self) -> None:
        if not 0 < self.timeout_s < self.lease_s:
            raise ValueError(f"timeout_s = {self.timeout_s}, expected above 0 and below lease_s = {self.lease_s}")
        if self.lease_s_max < self.lease_s:
            raise ValueError(f"lease_s_max = {self.lease_s_max}, expected at least lease_s = {self.lease_s}")
        if self.retry_s <= 0 or self.prepared_s <= 0:
            raise ValueError("retry_s or prepared_s is not above 0, expected both above 0")
        if self.copy_timeout_s <= 0:
            raise ValueError(f"copy_timeout_s = {self.copy_timeout_s}, expected above 0")
        for name in ("remembered", "rounds_max", "rest_bytes", "window_bytes", "input_bytes_max", "state_bytes_max"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}, expected at least 1")
        if not 0 < self.copy_share <= 1:
            raise ValueError(f"copy_share = {self.copy_share}, expected above 0, to 1")
        if not 1024 <= self.piece_bytes <= 16 * 2**20:
            raise ValueError(f"piece_bytes = {self.piece_bytes}, expected 1024 to {16 * 2**20}")
