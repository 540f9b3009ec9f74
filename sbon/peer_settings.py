"""Settings of the connections to other agents."""

import msgspec


class PeerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Connections to other agents. TOML table [peers]."""

    dial_backoff_s_min: float = 0.2
    """Pause before a failed connection is dialled again; doubles with each attempt. Shorter: faster reconnection after a restart, more
    failed attempts."""
    dial_backoff_s_max: float = 5.0
    """Longest pause between attempts. Shorter: faster reconnection after a long outage, more failed attempts during it."""
    handshake_timeout_s: float = 5.0
    """Time to open a connection and complete its handshake: several round trips to the farthest peer. Shorter: far or busy peers cannot be
    reached."""
    accept_timeout_s: float = 3.0
    """Time for the handshake of an accepted connection. Shorter: strangers occupy a place for less time."""
    keepalive_s: float = 2.0
    """Idle time after which a peer is pinged. Shorter: dead connections are noticed earlier, more small packets."""
    silence_timeout_s: float = 6.0
    """Silence after which a connection is closed; several keep-alive intervals. Shorter: losses are noticed earlier, more false alarms when
    peers are busy."""
    idle_s: float = 15.0
    """Idle time after which a connection that is not needed is closed. Longer: fewer handshakes, more open sockets."""
    answer_timeout_s: float = 60.0
    """Time after which an unanswered incoming request counts as lost; longer than the timeout of any request."""
    incoming_max: int = 1024
    """Most connections from other agents. A further connection closes the oldest of the address that holds most. Lower: less memory under
    attack, smaller overlays."""
    handshaking_max: int = 64
    """Most accepted connections in the handshake, each of which costs a key exchange. A further connection closes the oldest of the address
    that holds most."""
    handshaking_per_source_max: int = 32
    """Most handshakes from one IPv4 address, or one IPv6 network of 64 bits. A further connection closes the oldest of these. Lower: agents
    that start together behind one address have to try again."""
    requests_max: int = 256
    """Most open requests to one address, and from one connection. Higher: more memory when a peer is slow."""
    check_addresses: bool = True
    """Accepts messages in a member's name on an accepted connection only if the connection comes from that member's address. False: for
    members whose connections come from other addresses than they advertise (some kinds of NAT); then any member can speak for any other."""
    frame_bytes_max: int = 64 * 1024 * 1024
    """Largest message in bytes; it must exceed any batch and any operator state. Lower: less memory, but larger states cannot move."""
    slack_bytes_max: int = 256 * 1024
    """Most bytes of small messages (such as acknowledgements) that may still be written while the send buffer is full."""
    backlog_bytes_max: int = 8 * 1024 * 1024
    """Most bytes of replies that may be written while the send buffer is full. A peer that sends requests but does not read the replies is
    disconnected."""

    def __post_init__(self) -> None:
        if not 0 < self.dial_backoff_s_min <= self.dial_backoff_s_max:
            raise ValueError(f"dial_backoff_s_min = {self.dial_backoff_s_min}, expected 0 < dial_backoff_s_min <= dial_backoff_s_max")
        if not 0 < self.keepalive_s < self.silence_timeout_s:
            raise ValueError(f"keepalive_s = {self.keepalive_s}, expected 0 < keepalive_s < silence_timeout_s")
        for name in ("handshake_timeout_s", "accept_timeout_s", "idle_s", "answer_timeout_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} = {getattr(self, name)}, expected more than 0")
        counts = ("incoming_max", "handshaking_max", "handshaking_per_source_max", "requests_max", "slack_bytes_max", "backlog_bytes_max")
        for name in counts:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}, expected at least 1")
        if not 64 * 1024 <= self.frame_bytes_max <= 2**31:
            raise ValueError(f"frame_bytes_max = {self.frame_bytes_max}, expected 65536 to 2147483648")
