"""Finds the least number of nodes, with instances and intervals, on which a job keeps a bound of its latency at a rate.

For a number of nodes, the greatest rate is that of the best setting of a grid: instances of maps and updates of a node, exchange interval,
and poll interval where links poll. Latency grows with the rate, so each setting's greatest rate is found by bisection, for all settings at
once; settings whose greatest rate cannot be the best are dropped. Then the grid is refined around the best setting.

Source: Latency-constrained analytics (Li, Diao, Shenoy, VLDB 2015), section 3.1, equation 1.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from sbon.cost.stage_parts import StageLatency
from sbon.cost.stages import USES, Cluster, Job, Settings, latency, saturation_rate
from sbon.errors import ConfigError
from sbon.types import FloatArray

if TYPE_CHECKING:
    import numpy.typing as npt

PLAN_NODES_MAX = 100
MARGIN = 0.05
"""Part of the bound that a plan keeps free: the model errs by that much on either side."""
USE_MAX = 0.95
"""Greatest share of a thread, of cores or of a network interface that a plan uses: beyond it the model does not predict waits."""
NEARLY = 0.01
"""Part of the greatest rate that is given up for a lower latency."""
_PARTS = 512
"""Number of parts of the range of a rate; the rate of the best setting is found within one part."""
_TRIED = 512
"""Pairs of setting and rate that are tried at once, at least."""
_LEAST = 1e-3
"""The least rate that is tried, rows/s."""
_FINER = 2
_NEAR = np.array([0.62, 0.79, 0.92, 1.0, 1.09, 1.27, 1.6])
INTERVALS_S = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.45, 0.7, 1.0, 1.5, 2.5)


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """The requirements on a plan.

    Raises
    ------
    ConfigError
        A number is out of range.
    """

    latency_s: float
    quantile: float | None = None
    """Share of rows, or windows, that must be in time; None: the mean counts."""
    rate: float | None = None
    """Rows/s; None: the greatest rate that `nodes_max` nodes can carry."""
    nodes_max: int = PLAN_NODES_MAX
    pace_s: float = 0.005
    polls: bool = False
    """True if updates ask for batches in intervals, too."""
    instances_max: int = 0
    """Most instances of maps, and of updates, on a node; 0: twice its cores."""

    def __post_init__(self) -> None:
        if not 0 < self.latency_s < math.inf:
            raise ConfigError(f"a latency of {self.latency_s} s, expected more than 0")
        if self.quantile is not None and not 0 < self.quantile < 1:
            raise ConfigError(f"quantile {self.quantile}, expected between 0 and 1, such as 0.99")
        if self.rate is not None and not 0 < self.rate < math.inf:
            raise ConfigError(f"a rate of {self.rate} rows/s, expected more than 0")
        if self.nodes_max < 1 or not 0 < self.pace_s < math.inf:
            raise ConfigError(f"{self.nodes_max} nodes and a pace of {self.pace_s} s, expected 1 node at least, and more than 0 s")

    def of(self, found: StageLatency) -> FloatArray:
        """Returns the latency that the bound is for."""
        return found.mean_s if self.quantile is None else found.quantile_s(self.quantile)

    def is_kept(self, found: StageLatency) -> "npt.NDArray[np.bool_]":
        """Tells which settings keep the bound, with the margins of a plan."""
        return np.asarray((self.of(found) <= self.latency_s * (1 - MARGIN)) & (found.load <= USE_MAX))


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """The best setting of a number of nodes."""

    nodes: int
    maps: int
    updates: int
    exchange_s: float
    poll_s: float
    rate_max: float
    """The greatest rate within the bound, rows/s."""
    limit: str
    """The limit of that rate: the latency, or the resource that is nearly used up."""

    def settings(self, pace_s: float) -> Settings:
        """Returns the setting for the model."""
        return Settings(
            nodes=float(self.nodes),
            maps=float(self.maps),
            updates=float(self.updates),
            pace_s=pace_s,
            exchange_s=self.exchange_s,
            poll_s=self.poll_s,
        )


def greatest_rates(job: Job, cluster: Cluster, settings: Settings, wanted: Wanted, at_least: float | None = None) -> FloatArray:
    """Returns each setting's greatest rate within the bound, rows/s; 0 where even the least rate is too late.

    Parameters
    ----------
    settings : one axis of settings
    at_least : if given, only rates above this matter, and only that of the best setting is exact
    """
    given = np.broadcast_arrays(*(np.atleast_1d(np.asarray(value, dtype=np.float64)) for value in msgspec.structs.astuple(settings)))
    columns = np.stack(given)
    high = USE_MAX * saturation_rate(job, cluster, _settings(columns))
    low = np.zeros_like(high)
    alive = np.flatnonzero(high > 0)
    parts, wanted_parts = 1, _PARTS if at_least is not None else _PARTS**2
    while parts < wanted_parts:
        least = _LEAST if at_least is None else max(_LEAST, at_least, float(low.max(initial=0.0)) * (1 + 1e-3))
        alive = alive[high[alive] > least]
        if not alive.size:
            break
        count = max(1, _TRIED // alive.size)  # few settings are tried at many rates at once: a call takes as long for a hundred as for one
        start = np.maximum(low[alive], least)
        tried = start + (high[alive] - start) * np.arange(count + 1)[:, None] / (count + 1)
        is_kept = wanted.is_kept(latency(job, cluster, _settings(columns[:, alive]), tried))
        edges = np.concatenate([low[alive][None], tried, high[alive][None]])
        kept, place = np.cumprod(is_kept, axis=0).sum(axis=0), np.arange(alive.size)
        low[alive], high[alive] = edges[kept, place], edges[kept + 1, place]
        parts *= count + 1
    return low


def _settings(columns: FloatArray) -> Settings:
    nodes, maps, updates, pace, exchange, poll = columns
    return Settings(nodes=nodes, maps=maps, updates=updates, pace_s=pace, exchange_s=exchange, poll_s=poll)


def best_of(job: Job, cluster: Cluster, nodes: int, wanted: Wanted) -> Found | None:
    """Returns the setting with the greatest rate on so many nodes; None if no rate is within the bound."""
    grid, most = _coarse(cluster, wanted), _instances(cluster, wanted)
    best, rate = grid[:, 0], 0.0
    for number in range(_FINER + 1):
        rates = greatest_rates(job, cluster, _on(nodes, wanted, grid), wanted, at_least=rate)
        if rates.max() > rate:
            best, rate = grid[:, int(np.argmax(rates))], float(rates.max())
        if rate <= 0:
            return None
        near = 1 + (_NEAR - 1) / 3**number
        around = [near * best[2], near * best[3] if best[3] > 0 else np.zeros(1)]
        instances = [np.unique(np.clip(one + np.arange(-1.0, 2.0), 1, most)) for one in best[:2]]
        grid = np.stack([one.ravel() for one in np.meshgrid(*instances, *around, indexing="ij")])
    # Where cores are the limit, many settings carry about the same rate: take the one of the least latency.
    grid = np.concatenate([_coarse(cluster, wanted), grid, best[:, None]], axis=1)
    seen = latency(job, cluster, _on(nodes, wanted, grid), (1 - NEARLY) * rate)
    best = grid[:, int(np.argmin(np.where(wanted.is_kept(seen), wanted.of(seen), np.inf)))]
    rate = float(greatest_rates(job, cluster, _on(nodes, wanted, best[:, None]), wanted)[0])
    maps, updates, exchange, poll = best.tolist()
    found = Found(
        nodes=nodes,
        maps=int(maps),
        updates=int(updates),
        exchange_s=exchange,
        poll_s=poll,
        rate_max=rate,
        limit="",
    )
    return msgspec.structs.replace(found, limit=limit_of(job, cluster, found, wanted))


def _instances(cluster: Cluster, wanted: Wanted) -> int:
    return wanted.instances_max or 2 * cluster.cores


def _coarse(cluster: Cluster, wanted: Wanted) -> FloatArray:
    """Returns all settings that are tried first: maps, updates, exchange and poll interval, (4, settings)."""
    intervals = np.array([one for one in INTERVALS_S if one < 2 * wanted.latency_s] or [wanted.latency_s / 4])
    polls = intervals if wanted.polls else np.zeros(1)
    counts = np.unique(np.array([1, 2, 3, 4, 6, 8, 12, 16, math.inf]).clip(1, _instances(cluster, wanted)))
    return np.stack([one.ravel() for one in np.meshgrid(counts, counts, intervals, polls, indexing="ij")])


def _carry(job: Job, cluster: Cluster, wanted: Wanted, rate: float, counts: Sequence[int]) -> list[bool]:
    """Tells which numbers of nodes carry a rate with one of the coarse settings."""
    grid = _coarse(cluster, wanted)
    nodes = np.repeat(np.array(counts, dtype=np.float64), grid.shape[1])
    many = np.tile(grid, (1, len(counts)))
    # Settings whose cores or threads cannot carry the rate need no model of waits.
    found = np.zeros(nodes.size, dtype=bool)
    likely = np.flatnonzero(saturation_rate(job, cluster, _on(nodes, wanted, many)) * USE_MAX >= rate)
    if likely.size:
        found[likely] = wanted.is_kept(latency(job, cluster, _on(nodes[likely], wanted, many[:, likely]), rate))
    return [bool(one.any()) for one in found.reshape(len(counts), -1)]


def _on(nodes: float | FloatArray, wanted: Wanted, grid: FloatArray) -> Settings:
    maps, updates, exchange, poll = grid
    return Settings(nodes=nodes, maps=maps, updates=updates, pace_s=wanted.pace_s, exchange_s=exchange, poll_s=poll)


def limit_of(job: Job, cluster: Cluster, found: Found, wanted: Wanted) -> str:
    """Returns the limit of a setting's rate: the latency, or the resource that is nearly used up."""
    uses = latency(job, cluster, found.settings(wanted.pace_s), found.rate_max).uses
    fullest = int(np.argmax(uses))
    return USES[fullest] if float(uses[fullest]) > 0.98 * USE_MAX else f"the latency (at {float(uses[fullest]):.0%} of {USES[fullest]})"


class ResourcePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The least nodes that carry a rate within a bound."""

    best: Found
    pace_s: float
    mean_s: float
    """Mean latency, predicted at the requested rate, or at the greatest if none is requested."""
    latency_s: float
    """Latency by the bounded metric, predicted at that rate."""
    rate: float
    by_nodes: tuple[Found, ...]
    """The best setting for each number of nodes that was tried."""


def plan_resources(job: Job, cluster: Cluster, wanted: Wanted) -> ResourcePlan:
    """Returns the least number of nodes, with its settings.

    Raises
    ------
    ConfigError
        No setting keeps the bound, or carries the rate; the message says the least bound, or the greatest rate and why.

    Source
    ------
    Latency-constrained analytics, section 3.1.
    """
    looked: dict[int, Found | None] = {}

    def at(nodes: int) -> Found | None:
        if nodes not in looked:
            looked[nodes] = best_of(job, cluster, nodes, wanted)
        return looked[nodes]

    least = wanted.nodes_max
    if wanted.rate is not None:
        _check_hottest(job, cluster, wanted.rate)
        low, high = 0, wanted.nodes_max + 1  # `low` carries too little, `high` is not allowed
        while high - low > 1:
            counts = sorted({low + max(1, round((high - low) * step / 6)) for step in range(1, 6)} - {high})
            carried = [count for count, carries in zip(counts, _carry(job, cluster, wanted, wanted.rate, counts), strict=True) if carries]
            low, high = max([low, *(count for count in counts if not carried or count < carried[0])]), min([high, *carried])
        least = min(high, wanted.nodes_max)
        before = at(least - 1) if least > 1 else None
        if before is not None and before.rate_max >= wanted.rate:  # a finer setting than the coarse ones
            least -= 1
    best = at(least)
    if best is None:
        raise ConfigError(
            f"no setting keeps {_ms(wanted.latency_s)}: the least that can be had is {_ms(least_latency_s(job, cluster, wanted))} "
            f"(pace {_ms(wanted.pace_s)}, propagation {_ms(cluster.propagation_s)}, batches); allow more, or a shorter pace"
        )
    if wanted.rate is not None and best.rate_max < wanted.rate:
        raise ConfigError(
            f"{wanted.rate:,.0f} rows/s do not fit {wanted.nodes_max} nodes within {_ms(wanted.latency_s)}: "
            f"at most {best.rate_max:,.0f} rows/s, by {best.limit}; allow more nodes or a later answer"
        )
    rate = best.rate_max if wanted.rate is None else wanted.rate
    found = latency(job, cluster, best.settings(wanted.pace_s), rate)
    return ResourcePlan(
        best=best,
        pace_s=wanted.pace_s,
        mean_s=float(found.mean_s),
        latency_s=float(wanted.of(found)),
        rate=rate,
        by_nodes=tuple(one for _, one in sorted(looked.items()) if one is not None),
    )


def least_latency_s(job: Job, cluster: Cluster, wanted: Wanted) -> float:
    """Returns the least latency of any setting, at a rate of 1 row/s."""
    most = _instances(cluster, wanted)
    nodes, counts = np.unique([1.0, float(wanted.nodes_max)]), np.unique([1.0, float(most)])
    shortest = np.array([*INTERVALS_S, 0.001, 0.002])
    grid = [one.ravel() for one in np.meshgrid(nodes, counts, counts, shortest, shortest if wanted.polls else np.zeros(1), indexing="ij")]
    settings = Settings(nodes=grid[0], maps=grid[1], updates=grid[2], pace_s=wanted.pace_s, exchange_s=grid[3], poll_s=grid[4])
    return float(np.min(wanted.of(latency(job, cluster, settings, 1.0))))


def _check_hottest(job: Job, cluster: Cluster, rate: float) -> None:
    """Refuses a key whose rows alone take more than a core: no number of instances helps."""
    hottest = max(job.hot_shares, default=0.0)
    cores = hottest * rate * job.rows_out * job.update.per_row_ns / 1e9 / cluster.speed
    if cores >= 1:
        raise ConfigError(
            f"one key has {hottest:.1%} of all rows, {cores:.1f} cores at {rate:,.0f} rows/s, and its rows are worked on by one instance: "
            "aggregate in front, or leave it out"
        )


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:,.3g} ms" if seconds < 1 else f"{seconds:,.3g} s"
