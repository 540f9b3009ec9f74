"""Settings of the membership protocol, and limits of a member's labels."""

import msgspec

from sbon.errors import ConfigError

LABELS_MAX = 16
LABELS_BYTES_MAX = 512
"""Most bytes of a member's labels. They share a datagram with everything else, so more would displace news."""


class MembershipConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings for finding other agents and detecting failed ones. TOML table [membership]."""

    interval_s: float = 0.6
    """Pause between an agent's probes, each to one peer. Shorter: crashes noticed sooner, fresher coordinates, more traffic."""
    timeout_s_min: float = 0.2
    """Shortest wait for a direct reply, however near the peer. Shorter: busy peers are needlessly probed through others."""
    timeout_s_max: float = 0.5
    """Longest wait for a direct reply; used until the peer's RTT is known. Longer: crashes of far peers are noticed later."""
    indirect_probes: int = 3
    """Peers asked to probe a silent one. More: fewer false suspicions on bad paths, more traffic for every silent peer."""
    health_max: int = 4
    """Slowdown of an agent that doubts its own health: intervals and timeouts grow to at most 1 + this many times their length."""
    stall_s: float = 0.3
    """A timer this late means that this agent, not its peers, was stopped: pending timeouts are extended by the lost time."""
    suspicion_s: float = 2.0
    """A suspect's shortest time to object, when enough members suspect it. Shorter: crashes declared sooner, but also slow agents."""
    suspicion_ratio_max: float = 3.0
    """A suspect's time to object while only one member suspects it, as a multiple of suspicion_s. Larger: a single false accuser does less
    harm."""
    suspicion_confirmations: int = 3
    """Independent confirmations that reduce the time to suspicion_s. More: fewer false declarations, later detection."""
    gossip_interval_s: float = 0.2
    """Pause between messages that carry only news; they are sent only while there is news. Shorter: news spreads faster."""
    gossip_fanout: int = 3
    """Peers that get the news each time. More: news spreads faster, with more duplicates."""
    retransmit_multiplier: int = 4
    """An agent sends a piece of news this many times log10 of the members. Fewer: some agents get it only at a push-pull."""
    vitals_per_datagram: int = 4
    """Other members' coordinates added to each probe and reply. More: fresher tables, about 50 bytes each."""
    push_pull_interval_s: float = 30.0
    """Pause between exchanges of the whole table with one peer, which deliver news that gossip missed. Grows with log2 of the members above
    32."""
    reconnect_interval_s: float = 10.0
    """Pause between attempts to reach a failed member or an unknown seed. Shorter: healed partitions join sooner, more failed dials."""
    join_backoff_s_min: float = 0.5
    """First pause before the seeds are tried again while none has answered; doubles each time."""
    join_backoff_s_max: float = 30.0
    """Longest pause between attempts to join."""
    failed_keep_s: float = 86_400.0
    """Time for which a failed or departed member is remembered (and, if failed, dialled). Longer: longer partitions heal by themselves."""
    ping_count: int = 3
    """Quick probes in a measurement on request; the fastest counts. More: steadier values, slower answers."""
    ping_timeout_s: float = 1.0
    """Longest duration of a measurement on request; it then ends with the replies so far."""
    members_max: int = 10_000
    """Most known members; more are refused and counted. Bounds memory against floods of invented names."""
    introductions_max: int = 2048
    """Most names announced by other members that wait for their first answer; new names displace the oldest. Lower: large overlays are
    learnt later."""
    introductions_per_teller_max: int = 512
    """Most such names from one member. Lower: less room for invented names, more exchanges until a newcomer knows a large overlay."""
    pending_max: int = 512
    """Most pending probes for others and measurements. Bounds memory and the use of this agent to flood another."""

    def __post_init__(self) -> None:
        for name in ("interval_s", "timeout_s_min", "stall_s", "suspicion_s", "gossip_interval_s", "push_pull_interval_s"):
            _positive(name, getattr(self, name))
        for name in ("reconnect_interval_s", "join_backoff_s_min", "failed_keep_s", "ping_timeout_s"):
            _positive(name, getattr(self, name))
        if not self.timeout_s_min <= self.timeout_s_max:
            raise ValueError(f"timeout_s_max = {self.timeout_s_max}, expected timeout_s_min = {self.timeout_s_min} or more")
        if not self.join_backoff_s_min <= self.join_backoff_s_max:
            raise ValueError(f"join_backoff_s_max = {self.join_backoff_s_max}, expected join_backoff_s_min or more")
        if not self.suspicion_ratio_max >= 1:
            raise ValueError(f"suspicion_ratio_max = {self.suspicion_ratio_max}, expected 1 or more")
        for name, low, high in (
            ("indirect_probes", 0, 16),
            ("health_max", 0, 16),
            ("suspicion_confirmations", 0, 16),
            ("gossip_fanout", 1, 16),
            ("retransmit_multiplier", 1, 16),
            ("vitals_per_datagram", 0, 16),
            ("ping_count", 1, 16),
            ("members_max", 1, 100_000),
            ("introductions_max", 1, 100_000),
            ("introductions_per_teller_max", 1, 100_000),
            ("pending_max", 1, 100_000),
        ):
            if not low <= getattr(self, name) <= high:
                raise ValueError(f"{name} = {getattr(self, name)}, expected {low} to {high}")


def _positive(name: str, value: float) -> None:
    if not 0 < value < float("inf"):
        raise ValueError(f"{name} = {value}, expected a positive number")


def check_labels(labels: dict[str, str]) -> dict[str, str]:
    """Returns the labels after checking that they fit into gossip.

    Raises
    ------
    ConfigError
        There are more than 16 labels, keys and values exceed 512 bytes together, or a key is empty.
    """
    if len(labels) > LABELS_MAX:
        raise ConfigError(f"labels: {len(labels)} of them, expected {LABELS_MAX} at most")
    if "" in labels:
        raise ConfigError("labels: an empty name, expected at least one character")
    size = labels_bytes(labels)
    if size > LABELS_BYTES_MAX:
        raise ConfigError(f"labels: {size} bytes of names and values, expected {LABELS_BYTES_MAX} at most")
    return labels


def labels_bytes(labels: dict[str, str]) -> int:
    """Returns an upper bound of the bytes that the labels take on the wire."""
    return sum(len(key.encode()) + len(value.encode()) + 4 for key, value in labels.items())
