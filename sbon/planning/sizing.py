"""Chooses the number of instances of each operator with keys, for queries with `instances = 'auto'`.

The least number carries the rate with `ROOM` to spare, within the time that the network leaves of `max_latency`, if there is one. The model
is that of `sbon plan resources` (`sbon.cost.stages`); here the nodes are those that the query may be placed on, with the cores that they
have left, and the exchange sends incoming rows at once. More instances than cores do not help. See docs/deadlines.md.

A pattern whose windows are dealt (`dealing = 'window'`) gets the number and the length of turns with the fewest copies of a row instead
(`sbon.planning.window_sizing`).
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from sbon.cost.figure import Source
from sbon.cost.placed_query import PlacedQuery
from sbon.cost.resources import NS_PER_S
from sbon.cost.stages import Cluster, Job, Settings, saturation_rate
from sbon.planning.latency_bound import network_s
from sbon.planning.resources import stages_of
from sbon.planning.samples import known_shares
from sbon.planning.window_sizing import InstanceRoom, is_by_window, sized_by_window
from sbon.query.estimate import Rate, estimate
from sbon.query.instances import resting_on
from sbon.query.limits import INSTANCES_MAX
from sbon.query.params.source import SourceParams
from sbon.query.plan import Plan, Sizing
from sbon.search.resources import USE_MAX, Found, Wanted, greatest_rates, limit_of
from sbon.types import NodeId, OperatorId

ROOM = 1.25
"""Multiple of the rate that a number of instances must carry."""
ROOM_LESS = 1.6
"""Multiple of the rate that a number below the present one must carry: a rate that goes up and down must not change it each time."""
QUANTILE = 0.99
HOSTS_MAX = 8
"""Most nodes over which the instances of one operator are assumed to be spread."""
_FREE_LEAST = 0.2
"""Least share of a core that counts: the scheduler of a host leaves operators that much."""
_IN_MEMORY = 1e12


class Chosen(msgspec.Struct, frozen=True):
    """Numbers of instances for one plan."""

    numbers: tuple[int, ...]
    """One for each of the plan's `sizings`."""
    sizings: tuple[Sizing, ...]
    """The plan's sizings, with the figures behind each number; the operators are those of the given plan."""
    problem: str = ""
    """One line on why no number is enough; empty if these are."""
    is_certain: bool = True
    """False: costs of the operators are rules of thumb."""
    turns_us: tuple[int, ...] = ()
    """One for each sizing: length of a turn where windows are dealt to several instances, otherwise 0."""

    def of(self, plan: Plan) -> Plan:
        """Returns the plan that has these numbers of instances, with the figures behind them."""
        return resting_on(plan, self.sizings)


class _Limits(NamedTuple):
    """The model's view of an option."""

    job: Job
    cluster: Cluster
    wanted: Wanted
    maps: int


class _Option(NamedTuple):
    """Instances spread evenly over some nodes."""

    number: int
    hosts: int
    rate_max: float
    """Greatest rate of the sources, rows/s."""
    limits: _Limits

    def limit(self, pace_s: float) -> str:
        """Returns the limit of the rate."""
        job, cluster, wanted, maps = self.limits
        found = Found(
            nodes=self.hosts,
            maps=maps,
            updates=self.number // self.hosts,
            exchange_s=pace_s,
            poll_s=0.0,
            rate_max=max(self.rate_max, 1e-3),
            limit="",
        )
        return limit_of(job, cluster, found, wanted)


def with_measured_rates(query: PlacedQuery) -> PlacedQuery:
    """Returns a query with the rates of sources that run already, where these give more than is declared."""
    rates, known = query.rows_per_s(), dict[str, Rate]()
    for spec in query.plan.operators:
        port = query.statistics[spec.id].ports[0]
        if isinstance(spec.params, SourceParams) and port.law.source is Source.MEASURED and port.rows_per_s > rates.get(spec.id, 0.0):
            known[spec.signature] = Rate(port.rows_per_s)
    if not known:
        return query
    shares = known_shares(query.plan, lambda spec: query.statistics[spec.id])
    return msgspec.structs.replace(query, plan=estimate(query.plan, known, shares))


def chosen(
    query: PlacedQuery, hot_shares: Sequence[tuple[float, ...]] = (), measured_cores: Sequence[float] = (), *, room: float = ROOM
) -> Chosen:
    """Returns the least number of instances of each of the plan's `sizings`.

    Parameters
    ----------
    query : placed without its bound, or as it runs
    hot_shares : by sizing, the share of rows of each of its hottest keys, as far as they are known
    measured_cores : by sizing, the cores that its instances use as the query runs; without them, they follow from the costs
    room : times the rate that must be carried
    """
    plan, numbers, found, problem, used = query.plan, list[int](), list[Sizing](), "", 0.0
    turns_us = [0] * len(plan.sizings)
    bound_s = None if plan.max_latency_ms is None else (plan.max_latency_ms / 1e3 - network_s(query)) / len(plan.sizings)
    for place, sizing in enumerate(plan.sizings):
        hot = hot_shares[place] if hot_shares else ()
        job, rate = stages_of(query, sizing.operators, hot)
        if measured_cores:
            job = _as_measured(query, job, rate, sizing.operators, measured_cores[place])
        if rate <= 0:
            numbers.append(len(sizing.operators))
            found.append(sizing)
            turns_us[place] = sizing.turn_us
            continue
        if is_by_window(query, sizing):
            by_window = sized_by_window(query, sizing, job, rate * job.rows_out, bound_s, _places(query, used), room)
            numbers.append(by_window.number)
            found.append(by_window.sizing)
            turns_us[place] = by_window.turn_us
            problem = problem or by_window.problem
            used += by_window.sizing.cores + rate * job.map.per_row_ns / NS_PER_S / _speed(query)
            continue
        options = list(_options(query, sizing, job, bound_s, used))
        carrying = [one for one in options if one.rate_max >= room * rate] or [one for one in options if one.rate_max >= rate]
        best = min(carrying, key=lambda one: (one.number, one.hosts), default=max(options, key=lambda one: (one.rate_max, -one.number)))
        cores = _cores(query, job, rate, best.number, _speed(query))
        used += cores + rate * job.map.per_row_ns / NS_PER_S / _speed(query)
        most = max(one.number for one in options)
        told = Sizing(sizing.operators, rate * job.rows_out, cores, most)
        if best.rate_max < rate and not problem:
            problem = _problem(query, told, best, rate, max(hot, default=0.0))
        numbers.append(best.number)
        found.append(told)
    certain = all(query.statistics[one].source is not Source.RULE for sizing in plan.sizings for one in sizing.operators)
    return Chosen(tuple(numbers), tuple(found), problem, certain, tuple(turns_us))


def _cores(query: PlacedQuery, job: Job, rate: float, number: int, speed: float) -> float:
    """Returns the cores that so many instances need, each with a batch at each pace."""
    busy_ns = rate * job.rows_out * job.update.per_row_ns + number * job.update.per_batch_ns / query.pace_s
    return busy_ns / NS_PER_S / speed


def _as_measured(query: PlacedQuery, job: Job, rate: float, operators: Sequence[OperatorId], cores: float) -> Job:
    """Returns the job with the costs of updates scaled to the measured cores at this rate, because batches may come at another pace."""
    speed = sum(query.nodes[query.node_of[one]].speed.value for one in operators) / len(operators)
    expected = _cores(query, job, rate, len(operators), speed)
    if expected <= 0 or cores <= 0:
        return job
    update = job.update
    factor = cores / expected
    costs = {"per_batch_ns": update.per_batch_ns * factor, "per_row_ns": update.per_row_ns * factor}
    return msgspec.structs.replace(job, update=msgspec.structs.replace(update, **costs))


def _problem(query: PlacedQuery, told: Sizing, best: _Option, rate: float, hottest: float) -> str:
    """Returns why no number of instances of an operator is enough."""
    kind = next(str(type(spec.params).__struct_config__.tag) for spec in query.plan.operators if spec.id == told.operators[0])
    if hottest * told.cores >= 1:
        return (
            f"one key of the {kind} has {hottest:.0%} of its {told.rate_rows_per_s:,.0f} rows/s, {hottest * told.cores:.1f} cores, and one "
            "instance works on all of them: no number of instances helps; aggregate in front, or leave the key out"
        )
    within = "" if query.plan.max_latency_ms is None else f" within max_latency = {query.plan.max_latency_ms:g} ms"
    instances = "1 instance" if told.most == 1 else f"up to {told.most} instances"
    return (
        f"the {kind} gets {told.rate_rows_per_s:,.0f} rows/s, {told.cores:.1f} cores; with {instances}, for which there are cores, it "
        f"carries {best.rate_max / rate:.0%} of that{within}, by {best.limit(query.pace_s)}: use fewer rows, or more or faster nodes"
        + ("" if not within else ", or allow a later answer")
    )


def _options(query: PlacedQuery, sizing: Sizing, job: Job, bound_s: float | None, used: float) -> Iterator[_Option]:
    """Yields numbers of instances with the greatest rate of each: on one node, on two ...

    Parameters
    ----------
    used : cores that other operators of the query take, on the strongest nodes first
    """
    branches = max(1, sum(link.target == sizing.operators[0] for link in query.plan.links))
    for hosts, most, cluster in _clusters(query, used):
        each = np.arange(1, most + 1, dtype=np.float64)
        maps = max(1.0, branches / hosts)
        settings = Settings(nodes=float(hosts), maps=maps, updates=each, pace_s=query.pace_s, exchange_s=query.pace_s)
        wanted = Wanted(latency_s=bound_s if bound_s is not None and bound_s > 0 else 3600.0, quantile=QUANTILE, pace_s=query.pace_s)
        if bound_s is None or bound_s <= 0:  # without a bound only the load counts; below the network's own time, admission says so
            rates = USE_MAX * saturation_rate(job, cluster, settings)
        else:
            rates = greatest_rates(job, cluster, settings, wanted)
        for count, rate_max in zip(each.astype(int).tolist(), rates.tolist(), strict=True):
            yield _Option(count * hosts, hosts, rate_max, _Limits(job, cluster, wanted, math.ceil(maps)))


def _clusters(query: PlacedQuery, used: float) -> Iterator[tuple[int, int, Cluster]]:
    """Yields one node, two ... with the most instances on each of them, as a cluster of nodes like the weakest."""
    nodes = _nodes(query, used)
    for hosts in range(1, min(HOSTS_MAX, len(nodes)) + 1):
        free, name = nodes[hosts - 1]
        cores, speed = max(1, round(free)), query.nodes[name].speed.value
        names = [node for _, node in nodes[:hosts]]
        cluster = Cluster(
            cores=cores,
            speed=speed * min(1.0, max(_FREE_LEAST, free) / cores),
            bandwidth_bytes_per_s=_bandwidth(query, names),
            propagation_s=max((_way_s(query, a, b) for a in names for b in names if a != b), default=0.0),
        )
        yield hosts, max(1, min(cores, INSTANCES_MAX // hosts)), cluster


def _places(query: PlacedQuery, used: float) -> list[InstanceRoom]:
    """Returns the numbers of instances that there is room for."""
    return [
        InstanceRoom(count * hosts, hosts, cluster.speed, cluster.propagation_s)
        for hosts, most, cluster in _clusters(query, used)
        for count in range(1, most + 1)
    ]


def _nodes(query: PlacedQuery, used: float) -> list[tuple[float, NodeId]]:
    """Returns the cores that are left of each node, with its name; the strongest first."""
    found = []
    for name, node in query.nodes.items():
        speed = node.speed.value * NS_PER_S
        found.append((float(node.capacity_ns(1, 1.0)[0]) / speed, name))
    found.sort(key=lambda one: (-one[0] * query.nodes[one[1]].speed.value, one[1]))
    left = []
    for free, name in found:
        taken = min(used, free)
        used -= taken
        left.append((free - taken, name))
    return sorted(left, key=lambda one: (-one[0] * query.nodes[one[1]].speed.value, one[1]))


def _speed(query: PlacedQuery) -> float:
    """Returns the speed of the strongest node, in whose cores work is counted."""
    return query.nodes[_nodes(query, 0.0)[0][1]].speed.value


def _way_s(query: PlacedQuery, source: NodeId, target: NodeId) -> float:
    try:
        return query.network.propagation_s(source, target)
    except KeyError:  # no stream goes there as the query runs
        return 0.0


def _bandwidth(query: PlacedQuery, nodes: Sequence[NodeId]) -> float:
    pairs = [(a, b) for a in nodes for b in nodes if a != b]
    return min((query.network.bandwidths.of(*pair, query.now).value for pair in pairs), default=_IN_MEMORY)
