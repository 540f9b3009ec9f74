"""Admission under `max_latency`: places a query so that the predicted latency of its answers keeps within the bound, or says why that is
impossible.

    begin -> Attempt -> placed, predicted  -> within the bound: Admitted
                     -> not within: another Attempt, with less room for the network, without the nodes that are overloaded
                     -> no placement, or no attempt left -> Refused, or Admitted where only rules of thumb speak against it

Placement can bound only the network's part of a latency exactly (`delay_bound`), and this part depends most on the chosen nodes. So an
attempt gives the strategy a delay bound: the latency bound less the time that the query needs beside the network. Among placements within
it the strategy takes the one of the least network usage. The delay bound of the placement that is admitted stays in force while the query
runs, so that no review, multicast or move uses up the time that waiting and computing need.
"""

import math
from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from sbon.cost.figure import Source
from sbon.cost.latency_case import PROPAGATION_ERROR, WAITING
from sbon.cost.latency_prediction import milliseconds, work_s
from sbon.cost.placed_query import PlacedQuery
from sbon.cost.prediction import Prediction, predict
from sbon.errors import DelayBoundError, LatencyBoundError, PlacementError, SbonError
from sbon.optimiser.placed import Placed
from sbon.query.params.kinds import held_for_s
from sbon.query.params.source import SinkParams
from sbon.query.params.streams import ExchangeParams, MergeParams, SplitParams
from sbon.query.plan import Plan
from sbon.types import NodeId, OperatorId

ATTEMPTS_MAX = 4
SHRINK_LEAST = 0.02
"""Least share of the bound by which the network's part falls from one attempt to the next."""


NO_HARM: dict[NodeId, tuple[float, float]] = {}


def harmed(query: PlacedQuery) -> dict[NodeId, tuple[float, float]]:
    """Returns the nodes on which a query would break the bound of a running one: the time for which it delays others, and their spare time,
    in s."""
    spare = {name: node.spare_s for name, node in query.nodes.items() if node.spare_s is not None}
    if not spare:
        return NO_HARM
    takes = work_s(query)
    return {name: (takes[name], spare_s) for name, spare_s in spare.items() if takes.get(name, 0.0) > spare_s}


def crowded(query: PlacedQuery) -> dict[NodeId, tuple[float, float]]:
    """Returns the nodes that report too little memory for the rows that operators hold for a time: bytes needed and available.

    The bytes needed are the rate times the time, or follow from the measured state of such an operator at another rate.
    """
    held: dict[NodeId, float] = {}
    for spec in query.plan.operators:
        if spec.id not in query.shared and (held_s := held_for_s(spec.params)) > 0:
            links = [link for link in query.plan.links if link.target == spec.id]
            measured = query.statistics[spec.id].state_at(sum(link.rate_rows_per_s for link in links))
            needed = measured.value if measured is not None else held_s * sum(link.rate_bytes_per_s for link in links)
            held[query.node_of[spec.id]] = held.get(query.node_of[spec.id], 0.0) + needed
    has = {node: query.nodes[node].memory_bytes for node in held}
    return {node: (needed, has[node]) for node, needed in held.items() if 0 < has[node] < needed}


def with_known_figures(prediction: Prediction, query: PlacedQuery, bound_ms: float) -> Prediction:
    """Returns the prediction without the cost of a sink, exchange or merge that has never run, if only those are rules and the bound is
    broken without them, too.

    Every sink is new, and would make every prediction rest on rules; so would each new number of instances.
    """
    by_rule = new_by_rule(query)
    if not by_rule or prediction.latency.upper_s * 1e3 <= bound_ms:
        return prediction
    known = predict(msgspec.structs.replace(query, shared=query.shared | by_rule), ())
    if known.latency.upper_s * 1e3 <= bound_ms:
        return prediction
    return msgspec.structs.replace(known, operators={source: count for source, count in known.operators.items() if source != Source.RULE})


def new_by_rule(query: PlacedQuery) -> frozenset[OperatorId]:
    """Returns the operators whose cost is a rule, if these are only the sink, exchanges and merges; else none."""
    by_rule = [spec for spec in query.plan.operators if query.statistics[spec.id].source is Source.RULE]
    is_new = all(isinstance(spec.params, SinkParams | ExchangeParams | SplitParams | MergeParams) for spec in by_rule)
    return frozenset(spec.id for spec in by_rule) if is_new else frozenset()


class Attempt(msgspec.Struct, frozen=True):
    """Asks the caller to place this plan without these nodes, predict it, and call `placed`; or to call `unplaceable`."""

    plan: Plan
    excluded: frozenset[NodeId]
    nodes: Mapping[OperatorId, NodeId] = {}
    """Nodes on which operators must be; empty: where they cost least."""


class Admitted(msgspec.Struct, frozen=True):
    """The query may run as placed."""

    placed: Placed
    delay_bound_ms: float | None
    """Time that the network may take while the query runs; None: no bound."""
    note: str = ""
    """Text for people on a bound that may be broken by rules of thumb alone; empty if none may be."""


class Refused(msgspec.Struct, frozen=True):
    """The query may not run."""

    problem: SbonError


Action: TypeAlias = Attempt | Admitted | Refused


class Admission:
    """Admits one query.

    Parameters
    ----------
    plan : with `max_latency_ms`, or without; then only the bounds of running queries count
    excluded : nodes that count as full
    """

    def __init__(self, plan: Plan, excluded: frozenset[NodeId] = frozenset()) -> None:
        self._plan, self._excluded = plan, excluded
        self._bound_ms = math.inf if plan.max_latency_ms is None else plan.max_latency_ms
        self._delay_ms = min(self._bound_ms, math.inf if plan.delay_bound_ms is None else plan.delay_bound_ms)
        self._attempts = 0
        self._best: tuple[float, Placed, Prediction] | None = None

    def begin(self) -> Action:
        """Returns the first attempt."""
        return self._attempt()

    def predicted(self, placed: Placed, query: PlacedQuery) -> Action:
        """Judges a placement; predicts it first, which takes some hundredths of a second."""
        return self.placed(placed, with_known_figures(predict(query, ()), query, self._bound_ms), harmed(query), crowded(query))

    def placed(
        self,
        placed: Placed,
        prediction: Prediction,
        harm: Mapping[NodeId, tuple[float, float]] = NO_HARM,
        crowd: Mapping[NodeId, tuple[float, float]] = NO_HARM,
    ) -> Action:
        """Judges a placement by its prediction.

        Parameters
        ----------
        harm : nodes on which it would break a running query's bound: the time for which it delays others, and their spare time, in s
        crowd : nodes without memory for the rows that it holds: bytes needed and available
        """
        if harm or crowd:
            return self._harmful(placed, prediction, harm, crowd)
        latency = prediction.latency
        upper_ms = latency.upper_s * 1e3
        if upper_ms <= self._bound_ms:
            return self._admitted(placed, prediction)
        if self._best is None or upper_ms < self._best[0]:
            self._best = upper_ms, placed, prediction
        network_ms = latency.parts_s.get("network", 0.0) * 1e3
        free = {node for operator, node in placed.nodes.items() if self._is_free(operator)}
        blamed = frozenset(free & {*latency.overloaded, *latency.at_worst_overloaded})
        over_ms = upper_ms - self._bound_ms
        shrunk_ms = (placed.decision.delay_ms if placed.decision.delay_ms is not None else network_ms) - max(
            SHRINK_LEAST * self._bound_ms, over_ms if math.isfinite(over_ms) else 0.0
        )
        if self._attempts >= ATTEMPTS_MAX or not free or (shrunk_ms <= 0 and not blamed):
            return self._ended()
        if blamed:
            self._excluded |= blamed
        else:
            self._delay_ms = min(self._delay_ms, shrunk_ms)
        return self._attempt()

    def _harmful(
        self,
        placed: Placed,
        prediction: Prediction,
        harm: Mapping[NodeId, tuple[float, float]],
        crowd: Mapping[NodeId, tuple[float, float]],
    ) -> Action:
        """Tries without the nodes where running queries would be harmed, or memory is short; refuses if there are no others, but admits
        with a note where only rules of thumb predict harm."""
        free = frozenset(node for operator, node in placed.nodes.items() if self._is_free(operator) and node in {*harm, *crowd})
        if free and self._attempts < ATTEMPTS_MAX:
            self._excluded |= free
            return self._attempt()
        if crowd:
            node, (needs, has) = max(crowd.items(), key=lambda one: one[1][0] - one[1][1])
            return Refused(
                PlacementError(
                    f"rows that the query holds on {node} (rate x the time of WITHIN, or of the join) need {needs / 2**20:,.0f} MiB, and "
                    f"there are {has / 2**20:,.0f} MiB for states: hold them for less time, or use fewer rows, or a node with more memory"
                )
            )
        node, (takes_s, spare_s) = max(harm.items(), key=lambda one: one[1][0] - one[1][1])
        if prediction.rests_on_rules:
            late = f"a running query with max_latency on {node} may be late: this one may hold it up for {milliseconds(takes_s)} ms at once"
            return self._admitted(placed, prediction, f"{late}, by {thumbs(prediction)}")
        return Refused(
            PlacementError(
                f"a query with max_latency on {node} would be late: work there may take {milliseconds(spare_s)} ms longer, and this query "
                f"holds it up for {milliseconds(takes_s)} ms at once; use smaller batches or fewer rows, or another node"
            )
        )

    def unplaceable(self, problem: SbonError) -> Action:
        """Ends after an attempt without a placement: with the best placement that was found before, or with the reason."""
        if self._best is not None:
            return self._ended()
        if isinstance(problem, DelayBoundError) and (self._plan.delay_bound_ms is None or self._bound_ms < self._plan.delay_bound_ms):
            least_ms = math.ceil(10 * problem.reachable_ms) / 10
            return Refused(
                PlacementError(
                    f"no placement keeps within max_latency = {self._bound_ms:g} ms: the network alone takes {least_ms:.1f} ms on the "
                    f"shortest ways, and no answer can be sooner; ask for more than that, or for sources and a sink that are nearer"
                )
            )
        return Refused(problem)

    def _attempt(self) -> Attempt:
        self._attempts += 1
        delay_ms = self._delay_ms if math.isfinite(self._delay_ms) else None
        return Attempt(msgspec.structs.replace(self._plan, delay_bound_ms=delay_ms), self._excluded)

    def _is_free(self, operator: str) -> bool:
        return any(spec.id == operator and spec.pinned is None for spec in self._plan.operators)

    def _admitted(self, placed: Placed, prediction: Prediction, note: str = "") -> Admitted:
        network_ms = prediction.latency.parts_s.get("network", 0.0) * 1e3 * (1 + PROPAGATION_ERROR)
        upper_ms = prediction.latency.upper_s * 1e3
        beside_ms = max(0.0, upper_ms - network_ms) if math.isfinite(upper_ms) else 0.0
        own_ms = self._plan.delay_bound_ms if self._plan.delay_bound_ms is not None else math.inf
        least_ms = placed.decision.delay_ms if placed.decision.delay_ms is not None else 0.0
        bound_ms = max(least_ms, min(own_ms, self._bound_ms - beside_ms))
        return Admitted(placed, bound_ms if math.isfinite(bound_ms) else None, note)

    def _ended(self) -> Action:
        """Refuses; or admits the best placement, where a rule of thumb is all that speaks against it."""
        assert self._best is not None
        _, placed, prediction = self._best
        latency = prediction.latency
        least_ms = latency.worst_s.low * 1e3 if latency.worst_s is not None else math.inf
        if prediction.rests_on_rules and (least_ms <= self._bound_ms or latency.worst_s is None):
            return self._admitted(placed, prediction, doubt(self._bound_ms, prediction))
        return Refused(LatencyBoundError(refusal(self._bound_ms, prediction)))


def thumbs(prediction: Prediction) -> str:
    """Returns how many operators' costs are rules of thumb, for people."""
    count, total = prediction.operators[Source.RULE], sum(prediction.operators.values())
    return f"rules of thumb for {count} of {total} operators that never ran"


def doubt(bound_ms: float, prediction: Prediction) -> str:
    """Returns why a bound may not be kept, by rules of thumb alone."""
    latency = prediction.latency
    if latency.worst_s is None:
        what = f"{', '.join(latency.overloaded)} may have {latency.overload()}"
    else:
        upper = "no upper bound" if math.isinf(latency.upper_s) else f"{milliseconds(latency.upper_s)} ms at most"
        what = f"predicted are {milliseconds(latency.worst_s.value)} ms, {upper}"
    return f"max_latency = {bound_ms:g} ms may not be kept: {what}, by {thumbs(prediction)}; `sbon queries` shows what they take"


def refusal(bound_ms: float, prediction: Prediction) -> str:
    """Returns why a query is refused: the predicted latency, its parts, and what would have to change."""
    latency = prediction.latency
    if latency.worst_s is None:
        return (
            f"max_latency = {bound_ms:g} ms cannot be kept: {', '.join(latency.overloaded)} would have {latency.overload()}, and "
            "answers would be later and later; use fewer rows, or faster nodes (`sbon plan capacity` tries other rates)"
        )
    parts = sorted(((part, name) for name, part in latency.parts_s.items()), reverse=True)
    made_of = ", ".join(f"{name} {milliseconds(part)} ms" for part, name in parts[:3])
    worst = latency.worst_s
    if math.isinf(latency.upper_s):
        what = f"{', '.join(latency.at_worst_overloaded)} may have more load than capacity: use fewer rows, or faster nodes"
    else:
        changes = {
            "network": "bring sources and sink nearer to each other",
            WAITING: "give the nodes on the way less other work or more cores",
        }
        change = changes.get(parts[0][1] if parts else "", "")
        if not change and parts:
            change = f"use fewer rows, or a faster node than {parts[0][1]}"
        what = f"ask for {math.ceil(latency.upper_s * 1e3)} ms, or {change}"
    upper = "without an upper bound" if math.isinf(latency.upper_s) else f"{milliseconds(latency.upper_s)} ms at most"
    return f"max_latency = {bound_ms:g} ms cannot be kept: predicted are {milliseconds(worst.value)} ms, {upper} ({made_of}); {what}"
