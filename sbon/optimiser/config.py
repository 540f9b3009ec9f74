"""Settings of the optimisers."""

from typing import Literal

import msgspec


class OptimiserConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the review of running operators: when they are placed again, and when they move. TOML table [optimiser]."""

    enabled: bool = True
    """Re-place this agent's operators. Off: operators stay where they were first placed."""
    interval_s: float = 10.0
    """Pause between two reviews of an operator. Shorter: quicker answers to change, more questions to other agents."""
    answer_timeout_s: float = 3.0
    """Time that candidates may take to answer, of a new query too. Longer: slow nodes are still considered, queries start later."""
    displacement_threshold_ms: float = 2.0
    """Candidates are looked for only when an operator's best point has moved this far since the last look. Lower: more lookups."""
    lookup_interval_s: float = 60.0
    """Candidates are looked for after this time in any case, since nodes and loads change without moving the point."""
    neighbour_rtts: int = 64
    """Number of nearby nodes, and of promising ones, to which the nodes of an operator's neighbours are asked for the RTTs that they
    remember, before candidates are looked for (of a new query, too). More: better candidates where coordinates are poor, larger answers (20
    bytes each, for each query that is placed and once in lookup_interval_s); 0: coordinates alone."""
    candidates: int = 10
    """Nodes asked about one operator, its neighbours' nodes included. More: better places found, more questions."""
    saving_min_fraction: float = 0.01
    """An operator moves only if its network usage falls by this share. Lower: nearer to the best, more migrations for little."""
    saving_min_bytes: float = 1.0
    """An operator moves only if this many bytes in transit are saved. Lower: even a trickle is moved about."""
    prediction_margin: float = 0.3
    """A saving must also exceed this share of the usage that is predicted by coordinates, not measured. Lower: trusts coordinates more."""
    confirmations: int = 4
    """Reviews in a row that must find the saving before an operator moves. More: less moved by noise, slower."""
    samples_max: int = 20
    """Reviews after which a saving that is still uncertain is given up until the next look. More: smaller savings are found."""
    noise_fraction: float = 0.1
    """Standard deviation of a measured saving that is expected before it is known. Higher: calmer, slower."""
    certainty: float = 5.0
    """Standard errors by which the mean saving must exceed its threshold. Higher: calmer, slower."""
    cooldown_s: float = 30.0
    """An operator that has moved stays at least this long. Longer: calmer, slower."""
    damping: float = 5.0
    """Share of the threshold by which each earlier migration raises it for the next one (1: by once the threshold). Higher: calmer."""
    damping_migrations_max: int = 5
    """Earlier migrations that count. More: an operator that has moved often gets harder to move."""
    damping_half_life_s: float = 1800.0
    """The raise has fallen to half after so long without a migration. Longer: calmer."""
    replan: bool = True
    """Give running queries with instances = 'auto' the number of instances that their measured rates need, and any running query that no
    placement carries another order of its operators. Off, or enabled = false: only when `sbon replan` asks for it."""
    predictions: Literal["fine", "coarse"] = "fine"
    """Effort for the predicted latency of running queries whose sources have bursts. `coarse` looks at the 16 s around the greatest burst
    instead of the whole minute, and draws sizes of batches once instead of five times: several times quicker, less exact."""
    multicast: bool = True
    """Split the outputs of this agent's operators by multicast operators near several consumers. Off: one copy goes to each consumer."""
    multicast_saving_min_fraction: float = 0.05
    """A multicast must save this share of what the outputs cost, beside saving_min_fraction. Lower: more of them for less, each of which
    takes a slot, a hop and work of its host."""
    amortise_s: float = 300.0
    """Within this time the saving must have paid for carrying the operator's state to its new node. Shorter: large states stay."""

    def __post_init__(self) -> None:
        for name in ("interval_s", "answer_timeout_s", "lookup_interval_s", "damping_half_life_s", "amortise_s"):
            if not 0 < getattr(self, name) <= 1e9:
                raise ValueError(f"{name} = {getattr(self, name)}, expected more than 0")
        for name in (
            "displacement_threshold_ms",
            "saving_min_bytes",
            "prediction_margin",
            "cooldown_s",
            "damping",
            "noise_fraction",
            "certainty",
        ):
            if not 0 <= getattr(self, name) <= 1e9:
                raise ValueError(f"{name} = {getattr(self, name)}, expected 0 or more")
        for name in ("saving_min_fraction", "multicast_saving_min_fraction"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}, expected 0 up to below 1")
        if self.samples_max < self.confirmations:
            raise ValueError(f"samples_max = {self.samples_max}, expected at least confirmations = {self.confirmations}")
        if not 0 <= self.neighbour_rtts <= 256:
            raise ValueError(f"neighbour_rtts = {self.neighbour_rtts}, expected 0 to 256")
        if self.candidates < 1 or self.confirmations < 1 or self.damping_migrations_max < 0:
            raise ValueError("candidates and confirmations, expected at least 1; damping_migrations_max, expected 0 or more")
