"""Latency of rows and windows that pass two stages: maps without keys, then updates by key. Means, variances and quantiles, by phase.

A row is packed at its source (phase 1), sent (2, 3), waits for a map instance (4) and is worked on (5), waits until the batches for the
update instances leave (6), is logged (7, 8; nothing here), waits for a poll (9; nothing where links push), is sent (10), waits (11) and is
worked on (12). Phases are independent, so that their cumulants add up. Settings are arrays: a grid of a hundred thousand takes some tens of
milliseconds.

Where this differs from the paper: batches have a cost of their own; a bulk of batches (all that gathered until a poll, or one of each
sender an interval) is a queue of bulks, not a G/G/1 queue of batches; threads that happen to run together share cores although their mean
demand would fit; quantiles use the shape of the phases. The `docs/deadlines.md` page has the whole model.

Source: Latency-constrained analytics (Li, Diao, Shenoy, VLDB 2015), sections 3.2 to 3.4 and table 2.
"""

import functools
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from sbon.cost.stage_parts import Kind, Part, StageLatency, between, greatest, mixed, part_of, uniform
from sbon.cost.stage_waits import periodic_wait, queue_wait, slowdown
from sbon.errors import ShapeError
from sbon.types import FloatArray

PHASES = 12
USES = ("the cores of the nodes", "the thread of a map instance", "the network interface", "the thread of an update instance")
NS_PER_S = 1e9
_ROUNDS = 6
"""Rounds in which the sharing of cores and the time at work settle: each increases the other."""
_HOT = 16
"""Most update instances in the two hottest of the three groups of `_groups`."""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of a batch at one of the two stages."""

    per_batch_ns: float
    """Reference ns."""
    per_row_ns: float
    scatter: float = 0.0
    """Relative deviation of the cost of a batch."""
    whole: bool = True
    """Rows of a batch leave together at its end, as from operators on columns; if not, one by one."""


class Finalising(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a window: `keys` keys of all instances together, finalised one after the other in each instance."""

    keys: float
    per_key_ns: float


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """The known figures of a query in two stages."""

    map: Step
    update: Step
    rows_out: float = 1.0
    """Rows of a map for each row that it gets (alpha)."""
    row_bytes: float = 100.0
    sent_bytes: float = 50.0
    """Bytes of a row between map and update."""
    finalising: Finalising | None = None
    """None: each row is answered as it comes."""
    hot_shares: tuple[float, ...] = ()
    """Share of rows of each of the hottest keys; all other keys are dealt evenly."""
    arrival_scatter: float = 0.0
    """Relative deviation of the rows of a source's batch, beyond that of Poisson arrivals."""


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes that are alike."""

    cores: int
    speed: float = 1.0
    """Reference ns per ns of one core."""
    bandwidth_bytes_per_s: float = 125e6
    propagation_s: float = 0.0001


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that a planner chooses. Each may be a number or an array; they are broadcast against each other."""

    nodes: FloatArray | float
    maps: FloatArray | float
    """Map instances of each node."""
    updates: FloatArray | float
    """Update instances of each node."""
    pace_s: FloatArray | float
    """Interval of the batches of sources."""
    exchange_s: FloatArray | float
    """Interval in which maps send to updates."""
    poll_s: FloatArray | float = 0.0
    """Interval in which updates ask for batches; 0: links push."""


def dealt_shares(hot_shares: Sequence[float], instances: int) -> FloatArray:
    """Returns each instance's share of all rows, greatest first, (instances,). The n-th hottest key goes where a fixed hash puts it.

    Examples
    --------
    >>> dealt_shares((), 4)
    array([0.25, 0.25, 0.25, 0.25])
    """
    if instances < 1:
        raise ShapeError(f"{instances} instances, expected 1 at least")
    hot = np.asarray(hot_shares, dtype=np.float64)
    if hot.size and not (hot.min() >= 0 and hot.sum() <= 1 + 1e-9):
        raise ShapeError("shares of keys, expected 0 or more and a sum of 1 at most")
    found = np.full(instances, max(0.0, 1 - float(hot.sum())) / instances)
    # The golden ratio spreads numbers evenly but not regularly; it stands for the hash of a key.
    np.add.at(found, ((np.arange(len(hot)) * 0.6180339887498949 % 1.0) * instances).astype(np.int64), hot)
    return np.sort(found)[::-1]


@functools.lru_cache(maxsize=4096)
def _groups(hot_shares: tuple[float, ...], instances: int) -> tuple[tuple[float, float], ...]:
    """Returns three groups of instances (hottest, hot, others): rows of an instance over those of an average one, and share of all rows."""
    shares = dealt_shares(hot_shares, instances)
    cuts = [0, 1, max(1, min(_HOT, instances // 4)), instances]
    found = []
    for start, end in itertools.pairwise(cuts):
        rows = float(shares[start:end].sum())
        found.append((rows / max(1, end - start) * instances, rows) if end > start else (1.0, 0.0))
    return tuple(found)


def latency(job: Job, cluster: Cluster, settings: Settings, rate: FloatArray | float) -> StageLatency:
    """Returns the latency of every setting at a rate.

    Parameters
    ----------
    rate : rows/s of all sources together; broadcast against the settings

    Returns
    -------
    StageLatency
        Latency of windows if the job has `finalising`, else of rows.

    Raises
    ------
    ShapeError
        A number is out of range, or shapes do not fit.

    Source
    ------
    Latency-constrained analytics, sections 3.2 and 3.3, table 2, equation 2.
    """
    grid = _grid(settings, rate)
    senders, receivers = grid.senders, grid.receivers
    load = _load(job, cluster, grid)
    early = _until_sent(job, cluster, grid, load)
    hot = _hot_groups(job, receivers)
    factors, weights = hot[:, 0], hot[:, 1]
    of_groups, busy = _at_update(job, cluster, grid, load, factors)
    late = [mixed(one, weights) for one in of_groups]
    if job.finalising is not None:
        early = [greatest(early, senders)]
        late = [*late, _finalised(job.finalising, cluster, grid, load)]
    parts = (*early, *late)

    busiest = np.where(weights > 0, busy, 0.0).max(axis=0)
    uses = np.stack([load.cores, load.map_s / grid.pace_s, load.wire, busiest])
    is_over = uses.max(axis=0) >= 1
    total = np.sum([one.cumulants for one in parts], axis=0)
    total[1] += between(sum((one.mean_s for one in of_groups), np.zeros_like(weights)), weights)
    total[0] = np.where(is_over, np.inf, total[0])
    by_phase = np.zeros((PHASES, *senders.shape))
    for one in parts:
        by_phase[one.phase - 1] += one.mean_s
    return StageLatency(parts, total, by_phase, uses, senders)


class _Grid(NamedTuple):
    """Settings and a rate, as arrays of one shape."""

    nodes: FloatArray
    maps: FloatArray
    updates: FloatArray
    pace_s: FloatArray
    exchange_s: FloatArray
    poll_s: FloatArray
    rows: FloatArray
    """Rows/s of all sources together."""

    @property
    def senders(self) -> FloatArray:
        """Returns the number of map instances on all nodes."""
        return self.nodes * self.maps

    @property
    def receivers(self) -> FloatArray:
        """Returns the number of update instances on all nodes."""
        return self.nodes * self.updates


def _grid(settings: Settings, rate: FloatArray | float) -> _Grid:
    """Broadcasts settings and rate against each other, and checks them."""
    given = (settings.nodes, settings.maps, settings.updates, settings.pace_s, settings.exchange_s, settings.poll_s, rate)
    try:
        grid = _Grid(*(one.astype(np.float64) for one in np.broadcast_arrays(*given)))
    except ValueError as problem:
        raise ShapeError(f"settings of the shapes {[np.shape(one) for one in given]}: {problem}") from problem
    counts_fit = min(grid.nodes.min(), grid.maps.min(), grid.updates.min()) >= 1
    if not (counts_fit and min(grid.pace_s.min(), grid.exchange_s.min(), grid.rows.min()) > 0 and grid.poll_s.min() >= 0):
        raise ShapeError("settings with no node, instance, pace, interval or rate, expected 1 at least, and above 0 s and 0 rows/s")
    return grid


class _Load(NamedTuple):
    """Batches of both stages, and the load that they put on threads, cores and network interfaces."""

    map_s: FloatArray
    """Time of a map's batch, longer where threads share cores."""
    map_scv: FloatArray
    """Squared coefficient of variation of the cost of a map's batch."""
    map_busy: FloatArray
    """Share of the time that a map instance works, with a core of its own."""
    sent_rows: FloatArray
    """Rows of a batch from a map instance to an update instance."""
    update_rate: FloatArray
    """Batches per second at an update instance."""
    slow: FloatArray
    """Factor by which shared cores lengthen the work."""
    cores: FloatArray
    """Share of a node's cores that is used."""
    in_s: FloatArray
    """Time of a source's batch on the network interface."""
    sent_s: FloatArray
    """Time of a map's batch on the network interface."""
    wire: FloatArray
    """Share of the network interface that is used."""

    @property
    def wire_free(self) -> FloatArray:
        """Returns the share of the network interface that is free, kept above 0."""
        return np.maximum(1 - self.wire, 1e-3)


def _load(job: Job, cluster: Cluster, grid: _Grid) -> _Load:
    """Returns batches and load of both stages."""
    senders, receivers = grid.senders, grid.receivers
    core, wire = cluster.speed * NS_PER_S, cluster.bandwidth_bytes_per_s

    # Batches: rows in each, cost alone on a core, squared coefficient of variation of that cost.
    map_rows = grid.rows * grid.pace_s / senders
    map_alone = (job.map.per_batch_ns + job.map.per_row_ns * map_rows) / core
    row_part = job.map.per_row_ns * map_rows / core / np.maximum(map_alone, 1e-30)
    map_scv = job.map.scatter**2 + row_part**2 * (1 / np.maximum(map_rows, 1e-9) + job.arrival_scatter**2)
    sent_rows = grid.rows * job.rows_out * grid.exchange_s / senders / receivers
    update_rate = senders / grid.exchange_s
    update_alone = (job.update.per_batch_ns + job.update.per_row_ns * sent_rows) / core
    map_busy, update_busy = map_alone / grid.pace_s, update_alone * update_rate
    cores = (grid.maps * map_busy + grid.updates * update_busy) / cluster.cores

    # Threads that run together share cores; that makes them run longer, and so more of them together.
    others = grid.maps + grid.updates - 1
    slow = np.ones_like(others)
    for _ in range(_ROUNDS if float(others.max()) >= cluster.cores else 0):
        at_work = grid.maps * np.minimum(map_busy * slow, 1.0) + grid.updates * np.minimum(update_busy * slow, 1.0)
        slow = slowdown(others, at_work / (others + 1), 0.0, cluster.cores)

    in_s, sent_s = map_rows * job.row_bytes / wire, sent_rows * job.sent_bytes / wire
    wire_load = (grid.maps / grid.pace_s * in_s) + grid.updates * update_rate * sent_s
    return _Load(map_alone * slow, map_scv, map_busy, sent_rows, update_rate, slow, cores, in_s, sent_s, wire_load)


def _until_sent(job: Job, cluster: Cluster, grid: _Grid, load: _Load) -> list[Part]:
    """Returns phases 1 to 6: from the source until the batches of the maps leave."""
    # The batches that an update instance fetches at once hold up those for the maps of its node, which then come together.
    sent_load = grid.updates * load.update_rate * load.sent_s
    bulk_s = grid.senders * grid.poll_s / grid.exchange_s * load.sent_s
    in_wait, in_variance = queue_wait(grid.pace_s / grid.maps, 1.0, load.in_s, np.zeros_like(load.in_s))
    held = sent_load * bulk_s / 2 / load.wire_free
    map_wait, map_variance = queue_wait(grid.pace_s, 0.0, load.map_s, load.map_scv)
    map_load = np.minimum(load.map_s / grid.pace_s, 0.999)
    together = sent_load * bulk_s / 2 * map_load / (1 - map_load)
    return [
        uniform(1, grid.pace_s),
        part_of(3, Kind.FIXED, load.in_s + cluster.propagation_s, 0.0),
        part_of(2, Kind.WAIT, in_wait + held, in_variance + held * bulk_s * 2 / 3),
        part_of(4, Kind.WAIT, map_wait + together, map_variance + together * bulk_s * map_load * 2 / 3),
        part_of(5, Kind.WAIT, load.map_s, load.map_scv * load.map_s**2) if job.map.whole else uniform(5, load.map_s),
        uniform(6, grid.exchange_s),
    ]


def _at_update(job: Job, cluster: Cluster, grid: _Grid, load: _Load, factors: FloatArray) -> tuple[list[Part], FloatArray]:
    """Returns phases 9 to 12 of groups of update instances, and the share of time that they work, (groups, ...).

    Parameters
    ----------
    factors : rows of each group's instances over the average, (groups, ...)
    """
    core = cluster.speed * NS_PER_S
    rows = load.sent_rows * factors
    alone = (job.update.per_batch_ns + job.update.per_row_ns * rows) / core
    row_part = job.update.per_row_ns * rows / core / np.maximum(alone, 1e-30)
    scv = job.update.scatter**2 + row_part**2 / np.maximum(rows, 1e-9)
    service = alone * load.slow
    busy = service * load.update_rate
    own_s = rows * job.sent_bytes / cluster.bandwidth_bytes_per_s
    leaves_whole = job.update.whole or job.finalising is not None
    last = Part(12, Kind.WAIT, service, scv * service**2) if leaves_whole else uniform(12, service)
    return [*_received(grid, load, service, scv, busy, own_s, cluster.propagation_s), last], busy


def _finalised(finalising: Finalising, cluster: Cluster, grid: _Grid, load: _Load) -> Part:
    """Returns the end of windows, as a part of phase 12."""
    keys = np.maximum(finalising.keys / grid.receivers, 1.0)
    together = slowdown(grid.maps, np.minimum(load.map_busy * load.slow, 1.0), grid.updates - 1, cluster.cores)
    whole_s = keys * finalising.per_key_ns / (cluster.speed * NS_PER_S) * together
    return part_of(12, Kind.UNIFORM, (1 + 1 / keys) * whole_s / 2, (1 - 1 / keys**2) * whole_s**2 / 12)


def saturation_rate(job: Job, cluster: Cluster, settings: Settings) -> FloatArray:
    """Returns the rate at which a thread, the cores of a node or its network interface is used up, rows/s; 0 where the costs per batch
    alone use it up.

    Raises
    ------
    ShapeError
        A number is out of range, or shapes do not fit.
    """
    given = (settings.nodes, settings.maps, settings.updates, settings.pace_s, settings.exchange_s)
    try:
        nodes, maps, updates, pace, exchange = (one.astype(np.float64) for one in np.broadcast_arrays(*given, settings.poll_s)[:5])
    except ValueError as problem:
        raise ShapeError(f"settings of the shapes {[np.shape(one) for one in given]}: {problem}") from problem
    senders, receivers, core = nodes * maps, nodes * updates, cluster.speed * NS_PER_S
    groups = _hot_groups(job, receivers)
    factor = np.where(groups[:, 1] > 0, groups[:, 0], 0.0).max(axis=0)
    # All uses are linear in the rate: a constant part for batches, and a part for each row.
    map_batches, map_rows = job.map.per_batch_ns / core / pace, job.map.per_row_ns / core / senders
    update_batches = job.update.per_batch_ns / core * senders / exchange
    update_rows = job.update.per_row_ns / core * job.rows_out / receivers
    cores_batches = (maps * map_batches + updates * update_batches) / cluster.cores
    cores_rows = (maps * map_rows + updates * update_rows) / cluster.cores
    wire_rows = (maps * job.row_bytes / senders + updates * job.sent_bytes * job.rows_out / receivers) / cluster.bandwidth_bytes_per_s
    found: FloatArray = np.minimum.reduce(
        [
            (1 - cores_batches) / np.maximum(cores_rows, 1e-30),
            (1 - map_batches) / np.maximum(map_rows, 1e-30),
            1 / np.maximum(wire_rows, 1e-30),
            (1 - update_batches) / np.maximum(update_rows * factor, 1e-30),
        ]
    )
    return np.maximum(found, 0.0)


def _hot_groups(job: Job, receivers: FloatArray) -> FloatArray:
    """Returns rows over the average, and share of rows, of the groups of update instances: (1 or 3, 2, ...)."""
    if not job.hot_shares:
        return np.ones((1, 2, *receivers.shape))
    counts, where = np.unique(receivers.round().astype(np.int64), return_inverse=True)
    table = np.array([_groups(job.hot_shares, int(count)) for count in counts])
    return np.moveaxis(table[where].reshape(*receivers.shape, 3, 2), (-2, -1), (0, 1))


def _received(
    grid: _Grid, load: _Load, service: FloatArray, scv: FloatArray, busy: FloatArray, own_s: FloatArray, propagation_s: float
) -> list[Part]:
    """Returns phases 9 to 11 of groups of update instances, (groups, ...), or (...) where they are the same for all.

    Parameters
    ----------
    service, scv : time of a batch in s, and the squared coefficient of variation of its cost
    busy : share of the time that an instance works
    own_s : time of a batch on the network interface
    """
    senders, exchange, poll, mean_s = grid.senders, grid.exchange_s, grid.poll_s, load.sent_s
    polls = poll > 0
    # A bulk: the batches that have gathered until a poll. A row is more often in a large bulk than in a small one.
    ratio = np.where(polls, poll / exchange, 0.0)
    fraction = ratio - np.floor(ratio)
    bulk = np.maximum(senders * ratio, 1e-9)
    bulk_variance = senders * fraction * (1 - fraction)
    beside = np.where(polls, np.maximum(bulk + bulk_variance / bulk - 1, 0.0), 0.0)
    nothing = np.zeros_like(own_s)
    # Batches of a bulk keep their order: a batch that came early has waited long for the poll and is served first.
    width = np.maximum(poll - beside * np.maximum(service, own_s), 0.0)
    found = [Part(9, Kind.UNIFORM, poll / 2, width**2 / 12)]
    # Pushed: a sender's batches for all instances leave at once. Polled: other instances of the node fetch through the same interface.
    leaving = np.where(polls, 0.0, (grid.receivers - 1) * mean_s)
    jam = np.where(polls, (grid.updates - 1) * senders / exchange * mean_s * bulk * mean_s / 2 / load.wire_free, 0.0)
    found += [
        Part(10, Kind.FIXED, own_s * np.where(polls, 1.0, 2.0) + beside * own_s / 2 + propagation_s, nothing),
        uniform(10, leaving),
        Part(10, Kind.WAIT, jam, jam * bulk * mean_s * 2 / 3),
        Part(11, Kind.FIXED, beside * np.maximum(service - own_s, 0.0) / 2, nothing),
    ]
    pushed, pushed_variance = periodic_wait(senders, service, busy, scv)
    bulk_scv = bulk_variance / bulk**2 + scv / bulk
    carried, carried_variance = queue_wait(np.where(polls, poll, 1.0), 0.0, np.where(polls, bulk * service, 0.0), bulk_scv)
    is_less = polls & (carried < pushed)
    found.append(Part(11, Kind.WAIT, np.where(is_less, carried, pushed), np.where(is_less, carried_variance, pushed_variance)))
    return found
