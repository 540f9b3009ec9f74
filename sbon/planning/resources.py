"""`sbon plan resources`: how many nodes, instances and which intervals a query needs for a bound of its latency.

The query counts as two stages: the operators without keys (map), and the operator with keys behind them (update). Rows are dealt to the
instances of an operator with keys by ranges of the keys' hash.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from sbon.cost.figure import Edge
from sbon.cost.placed_query import PlacedQuery
from sbon.cost.stages import Cluster, Finalising, Job, Step
from sbon.cost.statistics import PortStatistics
from sbon.errors import ConfigError, QueryError
from sbon.planning.options import number
from sbon.query.instances import sets_of
from sbon.query.params.joined import JoinParams, WindowJoinParams
from sbon.query.params.matched import MatchParams
from sbon.query.params.ordered import DeduplicateParams, OverParams
from sbon.query.params.rowwise import FunctionParams
from sbon.query.params.source import SourceParams
from sbon.query.params.windowed import SessionParams, WindowParams
from sbon.query.plan import OperatorSpec
from sbon.query.spans import parse_interval
from sbon.search.resources import PLAN_NODES_MAX, Wanted, plan_resources
from sbon.types import OperatorId

FINALISED_NS = 100.0
"""Cost of an answer at the end of a window, until it is measured apart from that of its rows."""
_IN_MEMORY = 1e12
"""Bytes/s between instances on one node."""
_SCATTER = 0.3
"""Relative deviation of the cost of a batch, until it is measured."""


def keys_of(spec: OperatorSpec) -> int:
    """Returns the number of keys by which an operator's rows may be dealt to instances; 0 if they may not."""
    match spec.params:
        case WindowParams(keys=keys) | SessionParams(keys=keys):
            return len(keys)
        case DeduplicateParams(keys=names):
            return len(names)
        case MatchParams(partition=names) | OverParams(partition=names):
            return len(names)
        case JoinParams(left_keys=pairs) | WindowJoinParams(left_keys=pairs):
            return len(pairs)
        case FunctionParams(partition=names):
            return len(names)
    return 0


def job_of(query: PlacedQuery, hot_shares: tuple[float, ...] = ()) -> tuple[Job, float, OperatorSpec]:
    """Returns a query as two stages, the rows/s of its sources, and the operator with keys.

    Raises
    ------
    ConfigError
        No operator has keys, or several have; the message names them.
    """
    plan = query.plan
    dealt = {one: found.operators for found in sets_of(plan) for one in found.operators}
    keyed = [spec for spec in plan.operators if keys_of(spec) and dealt.get(spec.id, (spec.id,))[0] == spec.id]
    if not keyed:
        raise ConfigError("no operator of this query has keys, so instances cannot share its rows; add GROUP BY, or PARTITION BY, a column")
    if len(keyed) > 1:
        names = ", ".join(f"{spec.id} ({_kind(spec)})" for spec in keyed)
        raise ConfigError(f"several operators of this query have keys: {names}; a plan is made for one, so split the query into views")
    job, rate = stages_of(query, dealt.get(keyed[0].id, (keyed[0].id,)), hot_shares)
    if rate <= 0:
        raise ConfigError("the rate of the sources is not known: declare rows_per_second, or let them run for a while")
    return job, rate, keyed[0]


def stages_of(query: PlacedQuery, updates: Sequence[OperatorId], hot_shares: tuple[float, ...] = ()) -> tuple[Job, float]:
    """Returns the two stages up to an operator with keys, and the rows/s of the sources before it: 0 if no rows are known to come.

    Parameters
    ----------
    updates : the operator, or all its instances
    """
    plan, rates = query.plan, query.rows_per_s()
    into = sum(link.rate_rows_per_s for link in plan.links if link.target in updates)
    before = {name for one in updates for name in _upstream(query, one)}
    sources = [spec.id for spec in query.sources if spec.id in before]
    rate = sum(rates.get(one, 0.0) for one in sources)
    if rate <= 0 or into <= 0:
        return Job(map=Step(per_batch_ns=0.0, per_row_ns=0.0), update=Step(per_batch_ns=0.0, per_row_ns=0.0)), 0.0
    map_batch = map_row = update_batch = update_row = 0.0
    for spec in plan.operators:
        if spec.id in updates:
            per_batch, per_row, rows = _cost(query, spec)
            update_batch, update_row = update_batch + per_batch / len(updates), update_row + per_row * rows / into
        elif spec.id in before and not isinstance(spec.params, SourceParams) and not keys_of(spec):
            per_batch, per_row, rows = _cost(query, spec)
            map_batch, map_row = map_batch + per_batch, map_row + per_row * rows / rate
    window = next(spec for spec in plan.operators if spec.id in updates).params
    finalising = None
    if isinstance(window, WindowParams):
        answers_per_s = sum(link.rate_rows_per_s for link in plan.links if link.source in updates)
        finalising = Finalising(keys=max(1.0, answers_per_s * window.slide_us / 1e6), per_key_ns=FINALISED_NS)
    job = Job(
        map=Step(per_batch_ns=map_batch, per_row_ns=map_row, scatter=_SCATTER),
        update=Step(per_batch_ns=update_batch, per_row_ns=update_row, scatter=_SCATTER),
        rows_out=into / rate,
        row_bytes=_row_bytes(query, sources),
        sent_bytes=_row_bytes(query, [link.source for link in plan.links if link.target in updates]),
        finalising=finalising,
        hot_shares=hot_shares,
    )
    return job, rate


def _law_of(port: PortStatistics, frame: float) -> tuple[float, float]:
    """Returns the cost of a batch and of a row where batches of `frame` rows are expected.

    Batches that were smaller when they were measured may stay so: the cost of the additional batches is added to that of the rows. If all
    batches had one size, their cost cannot be separated from that of their rows.
    """
    per_batch, per_row = port.law.at(Edge.EXPECTED, frame, port.open_windows)
    was = port.rows_per_batch
    return per_batch, per_row + (per_batch * (1 / was - 1 / frame) if 0 < was < frame else 0.0)


def _cost(query: PlacedQuery, spec: OperatorSpec) -> tuple[float, float, float]:
    """Returns the cost of a batch and of a row of an operator, and the rows/s into it; costs of several ports are weighted by their
    rows."""
    ports = query.statistics[spec.id].ports
    rows = [0.0] * len(ports)
    for link in query.plan.links:
        if link.target == spec.id and link.port < len(ports):
            rows[link.port] += link.rate_rows_per_s
    frame, total = query.rows_per_batch()[spec.id], sum(rows)
    laws = [_law_of(port, frame) for port in ports]
    shares = [one / total for one in rows] if total > 0 else [1.0, *[0.0] * (len(ports) - 1)]
    per_batch, per_row = (sum(share * law[part] for share, law in zip(shares, laws, strict=True)) for part in (0, 1))
    return per_batch, per_row, total


def _kind(spec: OperatorSpec) -> str:
    return str(type(spec.params).__struct_config__.tag)


def _upstream(query: PlacedQuery, of: str) -> set[str]:
    found, waiting = set[str](), [of]
    while waiting:
        target = waiting.pop()
        for link in query.plan.links:
            if link.target == target and link.source not in found:
                found.add(link.source)
                waiting.append(link.source)
    return found


def _row_bytes(query: PlacedQuery, senders: list[str]) -> float:
    links = [link for link in query.plan.links if link.source in senders]
    rows = sum(link.rate_rows_per_s for link in links)
    return sum(link.rate_bytes_per_s for link in links) / rows if rows > 0 else 0.0


def cluster_of(query: PlacedQuery) -> Cluster:
    """Returns a cluster of nodes like the weakest of the query's nodes, as far from each other as the farthest two."""
    nodes = list(query.nodes.values())
    pairs = [(source, target) for source in query.nodes for target in query.nodes if source != target]
    return Cluster(
        cores=max(1, int(min(node.cores for node in nodes))),
        speed=min(node.speed.value for node in nodes),
        bandwidth_bytes_per_s=min((query.network.bandwidths.of(*pair, query.now).value for pair in pairs), default=_IN_MEMORY),
        propagation_s=max((query.network.propagation_s(*pair) for pair in pairs), default=0.0),
    )


def resources(query: PlacedQuery, options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the least nodes that keep a bound at a rate, with their instances and intervals.

    Raises
    ------
    ConfigError
        An option cannot be used, the query has no keys, or nothing keeps the bound.
    """
    text = options.get("max_latency")
    if not isinstance(text, str):
        raise ConfigError("max_latency is missing: say how late an answer may be, such as --max-latency 1s")
    try:
        bound_s = parse_interval(text) / 1e6
    except QueryError as problem:
        raise ConfigError(f"max_latency = {text!r} is no time span, write it like 500ms or 2s") from problem
    quantile = number(options, "quantile", 0.0, 0.0, 0.999999)
    nodes = int(number(options, "nodes", PLAN_NODES_MAX, 1, PLAN_NODES_MAX))
    hottest = number(options, "hottest", 0.0, 0.0, 1.0)
    job, expected, update = job_of(query, (hottest,) if hottest else ())
    rate = number(options, "rate", expected, 1e-6, 1e15)
    cluster = cluster_of(query)
    wanted = Wanted(latency_s=bound_s, quantile=quantile or None, rate=rate, nodes_max=nodes, pace_s=query.pace_s)
    plan = plan_resources(job, cluster, wanted)
    return {
        "operator": update.id,
        "kind": _kind(update),
        "rests_on_rules": any(one.source.value == "rule" for one in query.statistics.values()),
        "cluster": msgspec.to_builtins(cluster),
        "rate": rate,
        "max_latency_s": bound_s,
        "quantile": wanted.quantile,
        **msgspec.to_builtins(plan.best),
        "pace_s": plan.pace_s,
        "mean_s": plan.mean_s,
        "latency_s": plan.latency_s,
        "by_nodes": [msgspec.to_builtins(one) for one in plan.by_nodes],
    }
