"""Settings of a node's coordinate."""

from typing import Literal

import msgspec


class CoordinateConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings for computing a coordinate from RTT samples. TOML table [coordinate]."""

    algorithm: Literal["refit", "vivaldi"] = "refit"
    """`refit` re-fits the node to its remembered samples and is the more accurate; `vivaldi` forgets each sample after one step and
    costs about a quarter."""
    filter_window: int = 10
    """Samples per peer that the percentile filter looks at. More: steadier, slower to follow a change."""
    filter_percentile: float = 20.0
    """Percentile of the window that counts as the RTT. Lower: less disturbed by queues and busy processes, more by a single low reading."""
    filter_span_s: float = 60.0
    """Older samples leave the window. Longer: steadier for peers that are seldom probed, slower to follow a change."""
    filter_keep: int = 4
    """Number of samples that stay however old they are, while the newest is within `shift_ratio` of the filtered RTT. More: less noise in
    overlays where a peer is probed less than once in `filter_span_s`; small changes of its RTT show later."""
    shift_samples: int = 4
    """Number of samples in a row beyond `shift_ratio` of the filtered RTT that make a new level; the window restarts with them. Fewer:
    faster after a route change, more easily fooled by a burst."""
    shift_ratio: float = 1.3
    """Factor above or below the filtered RTT beyond which a sample counts as evidence of a new level."""
    rtt_ms_max: float = 60_000.0
    """A longer RTT is refused and counted."""
    jump_ms_max: float = 2_000.0
    """The farthest that one pass over the samples may move the node. Lower: safer against liars, slower from a cold start."""
    memory_peers: int = 512
    """Peers whose samples are remembered. More: more accurate; each costs about 0.4 kB and 0.01 microseconds an update."""
    sample_half_life_s: float = 300.0
    """Age at which a sample counts half. Shorter: follows a changing network sooner, with fewer samples to rest on."""
    shock_ratio: float = 1.6
    """When fresh samples are predicted this many times worse than usual, the network counts as changed, and remembered samples age faster.
    Lower: follows changes sooner, but forgets in vain when the network is merely noisy."""
    shock_half_lives: float = 0.5
    """Half-lives by which every new sample ages the remembered ones while the network counts as changed. 0 switches this off."""
    trust_floor: float = 0.5
    """Added to every peer's error estimate when samples are weighed. Lower: peers with a small error estimate count more, and so do liars
    that claim one."""
    rtt_floor_ms: float = 10.0
    """An RTT below this weighs no more than one of this length. Lower: near pairs are fitted better, at the cost of all others."""
    scale_factor: float = 1.0
    """Relative error at which a sample loses half its weight, as a multiple of the node's error estimate. Lower: fits most samples more
    closely and the rest less."""
    scale_min: float = 0.05
    """Lower bound of the relative error at which a sample loses half its weight."""
    scale_max: float = 1.0
    """Upper bound of the relative error at which a sample loses half its weight. Lower: harder for a new node to find its place, and for
    liars to push it."""
    across: float = 0.03
    """Resistance across the line of sight in a pass. Higher: slower, steadier."""
    prior_samples: float = 0.2
    """Resistance against any move, in samples. Higher: steadier while there are few samples."""
    step_share: float = 0.7
    """Share of a pass's computed move that the node makes. Higher: faster, but nodes that all move at once may overshoot."""
    early_samples: int = 32
    """Number of first samples of a new node, for each of which it makes `passes_early` passes."""
    passes_early: int = 3
    """Passes per sample for a new node. More: it finds its place sooner and uses more CPU."""
    fit_every: int = 2
    """Samples per pass after the first `early_samples`. More: cheaper, slower to follow the peers' moves."""
    error_share: float = 0.05
    """Weight of a new sample in the error estimate. Higher: faster, noisier."""
    vivaldi_ce: float = 0.25
    """Weight of a new sample in the error estimate. Higher: faster, noisier."""
    vivaldi_cc: float = 0.25
    """Greatest share of its error that a Vivaldi step removes. Higher: faster, noisier."""
    gravity_ms: float = 2000.0
    """Distance from the origin at which a node is pulled back by 1 ms a sample, against drift of the whole space; the pull grows with the
    square of the distance (Ledlie et al., NSDI 2007). Lower: nodes stay nearer the origin, but the space is bent. 0 switches the pull
    off."""

    def __post_init__(self) -> None:
        for name, low, high in (
            ("filter_window", 1, 1000),
            ("filter_keep", 1, 1000),
            ("filter_percentile", 0, 100),
            ("shift_samples", 2, 1000),
            ("memory_peers", 4, 100_000),
            ("shock_half_lives", 0, 100),
            ("across", 0, 1),
            ("prior_samples", 0, 1000),
            ("early_samples", 1, 1_000_000),
            ("passes_early", 1, 100),
            ("fit_every", 1, 1000),
            ("gravity_ms", 0, 1e6),
        ):
            if not low <= getattr(self, name) <= high:
                raise ValueError(f"{name} = {getattr(self, name)}, expected {low} to {high}")
        for name, above, high in (
            ("filter_span_s", 0, 1e9),
            ("shift_ratio", 1, 1000),
            ("rtt_ms_max", 0, 100_000),
            ("jump_ms_max", 0, 100_000),
            ("sample_half_life_s", 0, 1e9),
            ("shock_ratio", 1, 1e9),
            ("trust_floor", 0, 1000),
            ("rtt_floor_ms", 0, 100_000),
            ("scale_factor", 0, 1000),
            ("scale_min", 0, 1000),
            ("scale_max", 0, 1000),
            ("step_share", 0, 1),
            ("error_share", 0, 1),
            ("vivaldi_ce", 0, 1),
            ("vivaldi_cc", 0, 1),
        ):
            if not above < getattr(self, name) <= high:
                raise ValueError(f"{name} = {getattr(self, name)}, expected more than {above}, at most {high}")
        if self.scale_max < self.scale_min:
            raise ValueError(f"scale_max = {self.scale_max}, expected scale_min = {self.scale_min} or more")
