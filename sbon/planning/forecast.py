"""Compares predicted with measured latency of a running query: when to predict again, and which source or host has left the profile. A
machine without I/O.

    looked at with each round of reports -> Predict, if there is no prediction yet, or the measured latency has been off for `OFF_S`
    predicted -> the figures that `sbon queries` and telemetry show

The measured latency is off where its 99th percentile differs from the predicted one by more than `OFF_SHARE`. If the answers of a query
with `max_latency` exceed the bound, the query says which source gives more rows than expected, or on which host others use more than when
the latency was predicted.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from sbon.cost.arrivals import Series
from sbon.cost.latency_prediction import LatencyPrediction
from sbon.cost.placed_query import DETAILS, PlacedQuery
from sbon.cost.prediction import Prediction
from sbon.cost.store import CostStore
from sbon.planning.gathering import placed_query
from sbon.planning.ordering import Ordering
from sbon.planning.resizing import OFF_S, OFF_SHARE, resizing_of
from sbon.query.link_bytes import SOURCE_BATCHES_PER_S
from sbon.query.params.source import SourceParams
from sbon.query.plan import LinkSpec, Plan
from sbon.types import NodeId, OperatorId
from sbon.wire.reports import LatencyTold, OperatorReport

OFF_LEAST_MS = 5.0
"""Difference that never counts: a tick of a scheduler."""
TOLD_S = 60.0
"""Pause between two records of the measured latency beside its prediction."""
FIRST_S = 10.0
"""Time after the start until the first prediction, so that it rests on measured costs."""
RATE_LEFT = 1.2
"""A source has left its profile when it gives so many times the expected rows."""
USE_LEFT_CORES = 0.5
"""A host has left its profile when others use so many cores more than when the latency was predicted."""


class Forecast:
    """The predicted latency of one query, compared with measurements.

    Parameters
    ----------
    plan : as placed
    node_of : nodes of its operators, as placed
    shared : operators that ran already
    begun_ms : latency from a source to each shared operator
    now : instant of its start
    candidates : further nodes that its operators may use
    """

    def __init__(
        self,
        plan: Plan,
        node_of: Mapping[OperatorId, NodeId],
        shared: frozenset[OperatorId],
        begun_ms: Mapping[OperatorId, float],
        now: float,
        candidates: Iterable[NodeId] = (),
    ) -> None:
        self.plan, self.node_of, self.shared, self.begun_ms = plan, dict(node_of), shared, dict(begun_ms)
        self.prediction: Prediction | None = None
        self.measured: LatencyTold | None = None
        self.why = ""
        """Why the query was predicted again the last time; empty for the first prediction."""
        self._late = ""
        self.candidates = tuple(candidates)
        self.resizing = resizing_of(plan)
        """Numbers of instances that its operators should have; None if the planner has not chosen them."""
        self.ordering = Ordering(plan)
        self._due_s: float | None = now + FIRST_S
        self._off_since_s: float | None = None
        self._is_asked = False
        self._told_s = 0.0
        self._use: dict[NodeId, float] = {}
        self._rates: dict[OperatorId, float] = {link.source: link.rate_rows_per_s / link.share for link in plan.links}

    def look(self, reports: Mapping[OperatorId, OperatorReport], cost_store: CostStore, now: float) -> bool:
        """Takes a round of reports; returns whether to predict now: then call `predicted` or `failed`."""
        sink = reports.get(self.plan.operators[-1].id)
        self.measured = sink.latency if sink is not None else None
        self._late = self._reason(reports, cost_store, now)
        if self._is_asked or self.measured is None or self.measured.rows == 0:
            return False
        if self._due_s is not None:
            self._is_asked = now >= self._due_s
            return self._is_asked
        if not self._is_off():
            self._off_since_s = None
        elif self._off_since_s is None:
            self._off_since_s = now
        elif now - self._off_since_s >= OFF_S:
            latency = self._latency
            was = f"{latency.p99_s * 1e3:.0f} ms" if latency is not None and latency.p99_s is not None else "no end"
            self.why = f"99 % took {self.measured.p99_ms:.0f} ms, predicted were {was}"
            self._is_asked = True
        return self._is_asked

    def is_to_tell(self, now: float) -> bool:
        """Tells, once in `TOLD_S`, whether to record the measured latency beside the prediction."""
        if self.prediction is None or now - self._told_s < TOLD_S:
            return False
        self._told_s = now
        return True

    def measured_plan(self, reports: Mapping[OperatorId, OperatorReport]) -> Plan:
        """Returns the plan with the rates of rows that operators report, where they do."""
        rates = {operator: report.rows_per_s_out for operator, report in reports.items() if report.rows_per_s_out > 0}
        links = tuple(
            link
            if link.source not in rates
            else msgspec.structs.replace(
                link,
                rate_rows_per_s=rates[link.source],
                rate_bytes_per_s=link.rate_bytes_per_s * rates[link.source] / link.rate_rows_per_s
                if link.rate_rows_per_s > 0
                else link.rate_bytes_per_s,
            )
            for link in self.plan.links
        )
        return msgspec.structs.replace(self.plan, links=links)

    def query(
        self,
        nodes: Mapping[OperatorId, NodeId],
        reports: Mapping[OperatorId, OperatorReport],
        cost_store: CostStore,
        rtt_ms: Callable[[NodeId, NodeId], float | None],
        now: float,
        *,
        anywhere: bool = False,
        detail: str = "fine",
    ) -> PlacedQuery | None:
        """Returns the query as it runs now, with measured rates; None while a round trip is unknown.

        Parameters
        ----------
        nodes : where its operators are now; those that are left out are where they were placed
        rtt_ms : returns the round trip between two nodes
        anywhere : True if operators may move: then all pairs of nodes have a latency, and nodes without one are left out
        detail : the setting `optimiser.predictions`
        """
        self.node_of = {operator: nodes.get(operator, node) for operator, node in self.node_of.items()}
        pairs = {(self.node_of[link.source], self.node_of[link.target]) for link in self.plan.links if self._takes_part(link)}
        others = set(self.candidates)
        if anywhere:
            used = set(self.node_of.values())
            others = {node for node in others - used if all(rtt_ms(node, one) is not None for one in used)}
            pairs = {(source, target) for source in used | others for target in used | others}
        links = []
        for source, target in sorted(pair for pair in pairs if pair[0] != pair[1]):
            told_ms, rtt = cost_store.latency_ms(source, target), rtt_ms(source, target)
            if told_ms is None and rtt is None:
                return None
            links.append((source, target, told_ms if told_ms is not None else (rtt or 0.0) / 2, told_ms is not None))
        found = placed_query(
            cost_store,
            self.measured_plan(reports),
            self.node_of,
            links,
            shared=self.shared,
            begun_ms=self.begun_ms,
            own_cores=self._own_cores(reports),
            arrivals=self._bursts(reports),
            now=now,
        )
        nodes_used = {**{node: cost_store.nodes.of(node, now) for node in others}, **found.nodes}
        return msgspec.structs.replace(found, nodes=nodes_used, detail=DETAILS[detail])

    def _bursts(self, reports: Mapping[OperatorId, OperatorReport]) -> dict[OperatorId, Series]:
        """Returns the rows by quarter of a second of those sources that give them in bursts."""
        sources = (spec.id for spec in self.plan.operators if isinstance(spec.params, SourceParams))
        told = {source: reports[source].bursts for source in sources if source in reports}
        return {source: by_quarter(bursts) for source, bursts in told.items() if bursts is not msgspec.UNSET and any(bursts)}

    def _own_cores(self, reports: Mapping[OperatorId, OperatorReport]) -> dict[NodeId, float]:
        """Returns the cores that the query's own operators use, by node."""
        found: dict[NodeId, float] = {}
        for operator, node in self.node_of.items():
            report = reports.get(operator)
            if report is not None and operator not in self.shared and report.cpu_ns_per_row is not None:
                found[node] = found.get(node, 0.0) + report.cpu_ns_per_row * report.rows_per_s_in / 1e9
        return found

    def _takes_part(self, link: LinkSpec) -> bool:
        return link.source in self.node_of and link.target in self.node_of

    def predicted(self, prediction: Prediction, cost_store: CostStore, now: float) -> None:
        """Takes a prediction."""
        self.prediction, self._is_asked, self._due_s, self._off_since_s = prediction, False, None, None
        self._told_s = now
        self._use = {node: _use(cost_store, node, now) for node in set(self.node_of.values())}

    def failed(self, now: float) -> None:
        """Notes that the prediction failed; the next one is due after `OFF_S`."""
        self._is_asked, self._due_s = False, now + OFF_S

    def row(self) -> dict[str, Any] | None:
        """Returns what `sbon queries --json` shows; None before the first prediction."""
        if self.prediction is None:
            return None
        return {
            **self.prediction.latency.figures(),
            "highest_rate": next((line.figures for line in self.prediction.lines if line.name == "highest rate"), None),
            "rests_on_rules": self.prediction.rests_on_rules,
            "anew_because": self.why,
            "measured": None if self.measured is None else msgspec.structs.asdict(self.measured),
        }

    @property
    def reason(self) -> str:
        """Describes sources and hosts that have left the profile, where answers exceed `max_latency`, operators that have too few
        instances, and an order that does not carry the incoming rows; empty if nothing is wrong."""
        return "; ".join(filter(None, (self._late, self.resizing.reason if self.resizing is not None else "", self.ordering.reason)))

    def wanted_of(self, operators: tuple[OperatorId, ...]) -> int | None:
        """Returns how many instances an operator should have; None if the planner has not chosen their number."""
        if self.resizing is None:
            return None
        return next((n for one, n in zip(self.plan.sizings, self.resizing.wanted, strict=True) if one.operators == operators), None)

    @property
    def slack_ms(self) -> float | None:
        """Returns the ms by which work on its hosts may take longer; None without `max_latency`, or before the first prediction."""
        latency, bound_ms = self._latency, self.plan.max_latency_ms
        return None if latency is None or bound_ms is None else max(0.0, bound_ms - latency.upper_s * 1e3)

    @property
    def _latency(self) -> LatencyPrediction | None:
        return None if self.prediction is None else self.prediction.latency

    def _is_off(self) -> bool:
        latency = self._latency
        if latency is None or self.measured is None:
            return False
        if latency.p99_s is None:
            return True  # predicted to grow without end, but measured
        difference_ms = abs(self.measured.p99_ms - latency.p99_s * 1e3)
        return difference_ms > max(OFF_LEAST_MS, OFF_SHARE * latency.p99_s * 1e3)

    def _reason(self, reports: Mapping[OperatorId, OperatorReport], cost_store: CostStore, now: float) -> str:
        bound_ms = self.plan.max_latency_ms
        if bound_ms is None or self.measured is None or self.measured.max_ms <= bound_ms:
            return ""
        left = []
        for spec in self.plan.operators:
            report, expected = reports.get(spec.id), self._rates.get(spec.id, 0.0)
            if isinstance(spec.params, SourceParams) and report is not None and report.rows_per_s_out > RATE_LEFT * max(expected, 1.0):
                left.append(f"source {spec.params.name} on {report.node} gives {report.rows_per_s_out:.0f} rows/s, expected {expected:.0f}")
        for node, before in sorted(self._use.items()):
            if (use := _use(cost_store, node, now)) > before + USE_LEFT_CORES:
                left.append(f"others use {use:.1f} cores of {node}, expected {before:.1f}")
        why = "; ".join(left) or "all sources and hosts are as expected: the prediction was wrong"
        return f"answers took up to {self.measured.max_ms:.0f} ms, max_latency is {bound_ms:g} ms: {why}"


def by_quarter(rows: Sequence[int]) -> Series:
    """Returns the arrivals of a source that gave so many rows in each quarter of a second, in batches as sources make them."""
    given = np.array(rows, dtype=np.float64)
    return Series(0.0, 0.25, given, np.minimum(given, SOURCE_BATCHES_PER_S / 4), np.zeros(len(given)))


def _use(cost_store: CostStore, node: NodeId, now: float) -> float:
    """Returns the cores that others used of a node in the last ten seconds."""
    others = cost_store.nodes.of(node, now).others
    latest = others.seconds[-10:] if others is not None else ()
    return sum(latest) / len(latest) if latest else 0.0
