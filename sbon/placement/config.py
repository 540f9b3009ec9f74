"""Settings of placement."""

from typing import Literal, TypeAlias

import msgspec

StrategyName: TypeAlias = Literal["least-usage", "relaxation", "producer", "consumer", "random"]


class PlacementConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the choice of nodes for operators. TOML table [placement]."""

    strategy: StrategyName = "least-usage"
    """`least-usage` minimises network usage itself and chooses by measured RTTs; `relaxation` is the paper's springs and nearest node;
    `producer`, `consumer` and `random` are there for comparison."""
    candidates: int = 10
    """Nodes asked for an operator before one is chosen (the paper's k); least-usage asks up to twice as many. More: nearer to the best
    node, more questions a query."""
    candidates_max: int = 160
    """Largest number of candidates, to which it doubles where none can host an operator. More: fuller overlays still find room."""
    probes: int = 100
    """RTTs that candidates may be asked for, for each unpinned operator of a query. More: nearer to the best, more probes on the network;
    0 chooses by coordinates alone."""
    delta: float = 0.1
    """Damping of a spring (relaxation): the share of the force that moves an operator in one step. Higher: faster, at 2 unstable."""
    force_threshold: float = 1.0
    """Springs rest when no force is stronger, in ms (relaxation). Lower: more precise, more steps."""
    iterations_max: int = 1000
    """Steps after which springs rest in any case. More: more precise where rates differ by orders of magnitude, up to 15 us each."""
    load_weight: float = 1.0
    """Weight of a millisecond of the load dimension relative to one of RTT (least-usage); 0 ignores load. Higher: work spreads over more
    nodes and travels farther."""
    reuse: bool = True
    """Use running operators of other queries that compute the same. Off: every query runs operators of its own."""

    def __post_init__(self) -> None:
        if not 1 <= self.candidates <= self.candidates_max:
            raise ValueError(f"candidates = {self.candidates}, expected 1 to candidates_max = {self.candidates_max}")
        if self.candidates_max > 10_000:
            raise ValueError(f"candidates_max = {self.candidates_max}, expected at most 10000")
        if not 0 <= self.probes <= 100_000:
            raise ValueError(f"probes = {self.probes}, expected 0 to 100000")
        if not 0 < self.delta <= 1:
            raise ValueError(f"delta = {self.delta}, expected more than 0, at most 1")
        if not self.force_threshold > 0:
            raise ValueError(f"force_threshold = {self.force_threshold}, expected more than 0")
        if not 1 <= self.iterations_max <= 1_000_000:
            raise ValueError(f"iterations_max = {self.iterations_max}, expected 1 to 1000000")
        if not 0 <= self.load_weight <= 1000:
            raise ValueError(f"load_weight = {self.load_weight}, expected 0 to 1000")
