"""Makes telemetry rows of decisions and observations: placements, reviews, migrations, recoveries, members, queries, sinks."""

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import sbon
from sbon.digest import Digest
from sbon.optimiser.views import Considered
from sbon.query.text import describe
from sbon.telemetry import rows
from sbon.types import NodeId, OperatorId

if TYPE_CHECKING:
    from sbon.migration.outcome import MigrationRecord
    from sbon.optimiser.decision import CandidateView, Decision, PlacedOperator
    from sbon.query.plan import Plan
    from sbon.supervision.history import Happening
    from sbon.supervision.record import QueryRecord
    from sbon.supervision.recovering import Reached
    from sbon.supervision.recovery import Recovered

REVIEWS_REMEMBERED = 1024
"""Most operators whose decision to move is kept until the migration has ended, because of the predicted network usage in it."""
CONSIDERED_RECORDED = 5
"""Most nodes of a review that are recorded: the best."""
MICROSECONDS = 1_000_000


class Recording:
    """Makes telemetry rows, on the agent's thread.

    Parameters
    ----------
    record : takes a row
    now, wall : return monotonic seconds, and seconds since 1970
    latency_window_s : time over which latencies at a sink are summarised
    """

    def __init__(
        self, record: Callable[[rows.Row], None], now: Callable[[], float], wall: Callable[[], float], latency_window_s: float
    ) -> None:
        self._record = record
        self._now = now
        self._wall = wall
        self._latency_window_s = latency_window_s
        self._wishes: OrderedDict[OperatorId, tuple[float | None, float | None]] = OrderedDict()
        self._sinks: dict[OperatorId, _Sink] = {}

    # -------------------------------------------------------------------------------------------------- the optimisers

    def placement(self, plan: "Plan", decision: "Decision") -> None:
        """Records a deployed decision of the full optimiser."""
        ids = {(link.source, link.target): link for link in plan.links}
        links = [
            rows.PlacedLinkRecord(
                ids[link.source, link.target].id,
                link.source,
                link.target,
                link.source_node,
                link.target_node,
                float(ids[link.source, link.target].rate_rows_per_s),
                float(link.rate_bytes_per_s),
                float(link.latency_ms),
                bool(link.measured),
            )
            for link in decision.links
        ]
        self._record(
            rows.Placement(
                plan.query,
                plan.sql,
                float(decision.usage_here),
                _finite(decision.usage_producer),
                _finite(decision.usage_consumer),
                _finite(decision.delay_ms),
                _finite(decision.delay_bound_ms),
                decision.candidates_asked,
                decision.rtts_measured,
                tuple(_placed(plan, placed) for placed in decision.explanation),
                tuple(links),
                tuple(decision.dropped),
            )
        )

    def review(
        self, operator: OperatorId, operators: Iterable[OperatorId], verdict: str, reason: str, considered: Sequence[Considered] = ()
    ) -> None:
        """Records a review of operators that would move together; `considered` are the nodes, best first."""
        together = tuple(operators)
        if verdict == "migrate" and considered:
            for one in together:
                self._wishes[one] = (_finite(considered[0].usage_here_bytes), _finite(considered[0].usage_bytes))
                self._wishes.move_to_end(one)
            while len(self._wishes) > REVIEWS_REMEMBERED:
                self._wishes.popitem(last=False)
        self._record(rows.Review(operator, together, verdict, reason, tuple(map(_alternative, considered[:CONSIDERED_RECORDED]))))

    def multicast(self, event: str, operator: OperatorId, multicast: OperatorId, node: NodeId, reason: str = "") -> None:
        """Records a multicast that was made or folded."""
        self._record(rows.MulticastChange(event, operator, multicast, node, reason))

    def migration(self, record: "MigrationRecord") -> None:
        """Records a migration that has ended."""
        before, after = self._wishes.pop(record.operator, (None, None))
        wall_s, now = self._wall(), self._now()

        def at(phase: str) -> int | None:
            reached = record.phases.get(phase)
            return None if reached is None else int((wall_s - (now - reached)) * MICROSECONDS)

        self._record(
            rows.MigrationRow(
                operator=record.operator,
                queries=tuple(record.queries),
                from_node=record.here,
                to_node=record.there,
                committed=record.committed,
                reason=record.reason,
                outcome=record.outcome,
                asked_at=int((wall_s - record.seconds) * MICROSECONDS),
                locked_at=at("preparing"),
                prepared_at=at("copying"),
                paused_at=at("transferring"),
                moved_at=at("committing"),
                ended_at=int(wall_s * MICROSECONDS),
                pause_ms=record.pause_s * 1000,
                duration_ms=record.seconds * 1000,
                state_bytes=record.state_bytes,
                usage_before_bytes=before,
                usage_after_bytes=after,
                copied_at=at("pausing"),
                rounds=record.rounds,
            )
        )

    def recovery(self, record: "QueryRecord", done: "Recovered", happening: "Happening", reached: "Reached") -> None:
        """Records operators that were lost with their hosts and run again.

        Parameters
        ----------
        happening : the recovery's entry in the query's history
        reached : the time at which each phase of the last attempt was reached
        """
        ends_s, now = happening.at_wall_s, self._now()
        at = {phase.value: int((ends_s - (now - reached_s)) * MICROSECONDS) for phase, reached_s in reached.items()}
        operators = []
        for change in happening.operators:
            go_on, kind = done.go_on[change.operator], record.kind_of(change.operator)
            rows_lost, node = sum(go_on.lost_rows.values()), done.nodes[change.operator]
            lost_state = go_on.state_until_us is not None
            operators.append(rows.RecoveredOperator(change.operator, kind, change.before, node, lost_state, rows_lost, go_on.windows))
        self._record(
            rows.RecoveryRow(
                query=record.id,
                operators=tuple(operators),
                epoch=done.epoch,
                attempts=done.attempts,
                lost_at=int((ends_s - done.seconds) * MICROSECONDS),
                placing_at=at.get("placing"),
                fencing_at=at.get("fencing"),
                making_at=at.get("making"),
                beginning_at=at.get("beginning"),
                recovered_at=int(ends_s * MICROSECONDS),
                duration_ms=done.seconds * 1000,
                rows_lost=happening.rows or 0,
                rows_exact=bool(happening.is_exact),
                windows_lost=happening.windows,
            )
        )

    # ------------------------------------------------------------------------------------- agents, members and queries

    def agent(self, event: str, address: str, labels: Mapping[str, str]) -> None:
        """Records the agent's start or stop."""
        told = tuple(rows.Label(key, value) for key, value in sorted(labels.items()))
        self._record(rows.AgentChange(event, address, told, sbon.__version__))

    def probe(self, peer: NodeId, rtt_ms: float, predicted_ms: float) -> None:
        """Records an answered probe."""
        self._record(rows.Probe(peer, round(float(rtt_ms), 3), round(float(predicted_ms), 3)))

    def member(self, name: NodeId, before: str | None, after: str, incarnation: int) -> None:
        """Records a member's new state."""
        self._record(rows.MemberChange(name, before, after, incarnation))

    def query(self, record: "QueryRecord") -> None:
        """Records a query that has begun, has become degraded or healthy again, or has ended."""
        operators = tuple(rows.QueryOperator(operator, node, operator not in record.specs) for operator, node in record.nodes.items())
        row = rows.QueryChange(record.id, record.name, record.state.value, record.reason, record.sink_node, operators)
        self._record(row)

    def prediction(self, record: "QueryRecord") -> None:
        """Records the latest prediction of a query's latency, and the measured latency."""
        told = record.forecast.row() if record.forecast is not None else None
        if told is None:
            return
        measured = told["measured"] or {}
        self._record(
            rows.PredictionRow(
                query=record.id,
                worst_ms=told["worst_ms"],
                worst_low_ms=told["worst_low_ms"],
                worst_high_ms=told["worst_high_ms"],
                p99_ms=told["p99_ms"],
                mean_ms=told["mean_ms"],
                parts=tuple(rows.LatencyPart(name, float(part)) for name, part in told["parts_ms"].items()),
                rests_on_rules=told["rests_on_rules"],
                anew_because=told["anew_because"],
                max_latency_ms=record.plan.max_latency_ms,
                measured_rows=measured.get("rows"),
                measured_mean_ms=measured.get("mean_ms"),
                measured_p99_ms=measured.get("p99_ms"),
                measured_max_ms=measured.get("max_ms"),
            )
        )

    # ------------------------------------------------------------------------------------------------ latency at sinks

    def delivered(self, operator: OperatorId, queries: Iterable[str], stimulus_s: float, count: int) -> None:
        """Counts rows that a sink here has taken, by their stimulus time (wall clock)."""
        if count == 0:
            return
        sink = self._sinks.get(operator)
        if sink is None:
            sink = self._sinks[operator] = _Sink(tuple(sorted(queries)), self._wall(), self._now())
        sink.digest.add((self._wall() - stimulus_s) * 1000, count)

    def look_at_sinks(self) -> None:
        """Records the latency windows that are over; called periodically."""
        now = self._now()
        for operator, sink in list(self._sinks.items()):
            if now - sink.begun_s >= self._latency_window_s:
                self.sink_ended(operator)

    def sink_ended(self, operator: OperatorId) -> None:
        """Records the open latency window of a sink. The sink's next delivery begins another window."""
        sink = self._sinks.pop(operator, None)
        if sink is None:
            return
        digest = sink.digest
        buckets = tuple(rows.Bucket(number, count) for number, count in digest.buckets)
        window_s = max(0.0, round(self._now() - sink.begun_s, 6))
        quantiles = [digest.quantile(share) for share in (0.5, 0.9, 0.99)]
        for query in sink.queries:
            self._record(
                rows.Latency(
                    query=query,
                    operator=operator,
                    begun_at=int(sink.begun_wall_s * MICROSECONDS),
                    window_s=window_s,
                    rows=digest.rows,
                    batches=digest.additions,
                    p50_ms=quantiles[0],
                    p90_ms=quantiles[1],
                    p99_ms=quantiles[2],
                    max_ms=digest.max_ms,
                    buckets=buckets,
                )
            )


class _Sink:
    """Open latency window of one sink."""

    def __init__(self, queries: tuple[str, ...], wall_s: float, now: float) -> None:
        self.queries = queries
        self.begun_wall_s = wall_s
        self.begun_s = now
        self.digest = Digest()


def _placed(plan: "Plan", placed: "PlacedOperator") -> rows.PlacedOperatorRecord:
    spec = next(spec for spec in plan.operators if spec.id == placed.operator)
    return rows.PlacedOperatorRecord(
        placed.operator,
        str(spec.params.__struct_config__.tag),
        describe(spec.params),
        placed.node,
        placed.pinned,
        placed.reuse.operator if placed.reuse is not None else None,
        tuple(map(_candidate, placed.candidates)),
    )


def _candidate(view: "CandidateView") -> rows.CandidateRecord:
    return rows.CandidateRecord(
        view.node,
        _finite(view.usage_bytes),
        _finite(view.predicted_usage_bytes),
        bool(view.measured),
        float(view.load_ms),
        int(view.free_slots),
        view.answered,
        view.runs,
    )


def _alternative(site: Considered) -> rows.AlternativeRecord:
    return rows.AlternativeRecord(
        site.node,
        _finite(site.usage_bytes),
        _finite(site.usage_here_bytes),
        _finite(site.saving_fraction),
        _finite(site.required_fraction),
        bool(site.measured),
    )


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)
