"""Holds what the home of a query knows about it: its operators, their hosts and reports, and what is wrong.

`sbon.queries` keeps one record for each query.
"""

from enum import Enum
from typing import TYPE_CHECKING, Any

import msgspec

from sbon.execution.life import State
from sbon.links.link_names import first_name
from sbon.misfits import clause
from sbon.query.instances import sets_of
from sbon.query.multicast_ids import is_multicast
from sbon.query.params.streams import MulticastParams
from sbon.query.plan import LinkSpec, OperatorSpec, Plan, after_crash
from sbon.query.text import describe
from sbon.supervision.deployment import Deployed
from sbon.supervision.dropped import heard_users, is_dropped, is_over, left_to_others
from sbon.supervision.health import GONE, LOST, WITH_HOST, Condition, Health, News
from sbon.supervision.history import History
from sbon.supervision.losses import Losses
from sbon.supervision.multicasts import QueryMulticasts
from sbon.supervision.unmade import heard_over, unmade
from sbon.types import LinkId, NodeId, OperatorId, QueryId
from sbon.wire.reports import OperatorReport

if TYPE_CHECKING:
    from sbon.planning.forecast import Forecast

SERVES_OTHERS = "dropped; its operators serve other queries"
"""Reason of a query of which only the operators that other queries use are left."""


class QueryState(Enum):
    """State of a query, as `sbon queries` shows it."""

    RUNNING = "running"
    RECOVERING = "recovering"
    """Operators that were lost with their hosts are being made again."""
    DEGRADED = "degraded"
    """Something is lost or late; the reason says what."""
    SHARED = "shared"
    """It has been dropped, and only the operators that other queries use are left."""
    FINISHED = "finished"
    """Every source has ended and every answer has been delivered."""
    STOPPING = "stopping"


class BoundState(msgspec.Struct):
    """The slack of a query's delay bound as the hosts were last told, and the note to its submitter about its latency bound."""

    reports: int = 0
    """Number of rounds of reports so far."""
    told_ms: float = 0.0
    """Slack last told, in ms."""
    told_at: int = 0
    """Round in which the slack was last told."""
    settled_at: int = 0
    """Round from which on the reported delay is that of the present hosts."""
    note: str = ""
    """Text for people on a latency bound that may be broken; empty if none may be."""


class QueryRecord:
    """One query.

    Parameters
    ----------
    delay_ms : latency of its longest path, as predicted by placement
    """

    def __init__(self, plan: Plan, deployed: Deployed, me: NodeId, wall_s: float, delay_ms: float | None = None) -> None:
        self.plan = plan
        self.id = plan.query
        self.name = plan.name
        self.former: QueryId = ""
        """Id that the query had before its home restarted; empty if it did not."""
        self.owner = me
        self.started_wall_s = wall_s
        self.state = QueryState.RUNNING
        self.specs: dict[OperatorId, OperatorSpec] = {spec.id: spec for spec in deployed.operators}
        self.links: tuple[LinkSpec, ...] = deployed.links
        self.nodes: dict[OperatorId, NodeId] = dict(deployed.nodes)
        self.epochs: dict[OperatorId, int] = {}
        """Epoch of an operator on its host in `nodes`; missing if unknown."""
        self.reports: dict[OperatorId, OperatorReport] = {}
        self.health = Health()
        self.losses = Losses()
        self.multicasts = QueryMulticasts()
        self.history = History()
        self.bounds = BoundState()
        self.forecast: Forecast | None = None
        """Predicted latency, beside the measured one; None if nobody predicts it."""
        self.late = ""
        """Describes by how much the delay bound is exceeded; empty if it is not."""
        self.delay_ms = delay_ms
        """Latency of the longest path from a source to the sink, in ms: as the sink's host last reported, or as predicted until it does."""

    @property
    def movable(self) -> int:
        """Number of operators that are not known to be pinned."""
        return sum(operator not in self.specs or self.specs[operator].pinned is None for operator in self.nodes)

    @property
    def sink(self) -> OperatorId:
        """Id of the operator that takes the answers."""
        return self.plan.operators[-1].id

    @property
    def sink_node(self) -> NodeId:
        """Host of the sink; empty if the query has been dropped."""
        return self.nodes.get(self.sink, "")

    @property
    def reason(self) -> str:
        """Describes what is wrong; empty if nothing is."""
        step, troubles = self.health.healing.step, self.health.reasons
        is_over = is_dropped(self) or self.state is QueryState.FINISHED
        remedy = self._remedy if troubles and not step and not is_over else ""
        slow = self.forecast.reason if self.forecast is not None else ""
        cut_off = self.health.healing.ownership if self.health.healing.is_cut_off else ""
        dropped = SERVES_OTHERS if is_dropped(self) else ""
        said = [dropped, cut_off, step, *troubles, remedy, self.health.healing.waits_for, self.late, slow]
        return "; ".join([*filter(None, said), *self.losses.told(self.text_of), *self.health.healing.account.sentences(self.text_of)])

    @property
    def left_out(self) -> list[str]:
        """Rows that the query's sources could not use: a clause for each source. The query runs on with the others."""
        return [
            f"{self.text_of(operator) if operator in self.specs else operator} on {report.node}: {said}"
            for operator, report in sorted(self.reports.items())
            if (said := clause(report.misfits, report.dropped_rows))
        ]

    @property
    def _remedy(self) -> str:
        """Advice to the user if something has been lost; otherwise empty."""
        again = f"DROP SINK {self.name}" if self.name != self.id else f"`sbon drop {self.id}`"
        if self.health.those(GONE | {Condition.LEFT}):
            return f"what is gone does not come back: {again}, then submit it again"
        if away := self.health.those(frozenset({Condition.AWAY})):
            nodes = ", ".join(sorted({self.nodes[operator] for operator in away}))
            return f"if {nodes} stays away: {again}, then submit it again"
        return ""

    def text_of(self, operator: OperatorId) -> str:
        """Returns one line about an operator."""
        spec = self.specs.get(operator)
        if spec is None and is_multicast(operator):
            return describe(MulticastParams(self.multicasts.feeders.get(operator, operator)))
        return describe(spec.params) if spec is not None else "shared with another query"

    def kind_of(self, operator: OperatorId) -> str:
        """Returns the operator's kind: `window`, `sink` and so on, `multicast`, or `shared` for an operator of another query."""
        spec = self.specs.get(operator)
        if spec is not None:
            return str(spec.params.__struct_config__.tag)
        return "multicast" if is_multicast(operator) else "shared"

    def moved(self, operator: OperatorId, node: NodeId, epoch: int) -> bool:
        """Takes the new host of an operator; ignores news of earlier epochs. Returns whether the host has changed."""
        if self.health.healing.plans.moved(operator, node, epoch):
            return False
        if operator not in self.nodes or epoch <= self.epochs.get(operator, -1):
            return False
        self.epochs[operator] = epoch
        before, self.nodes[operator] = self.nodes[operator], node
        return before != node

    def reported(self, report: OperatorReport) -> None:
        """Takes a host's report on one of the operators."""
        operator = report.id
        if operator in self.health.healing.over:
            return
        if report.state == "moved":
            self.moved(operator, report.node, report.epoch)
            return
        if report.state == "over":
            heard_over(self, report)
            return
        self.health.healing.heard_position(report)
        if report.state == "missing" and is_multicast(operator) and not self.multicasts.missed(operator):
            return
        if report.state != "missing":
            self.reports[operator] = report
            self.health.healing.unmade.pop(operator, None)
            heard_users(self, report)
            self.health.healing.heard_begin(report)
            self.epochs[operator] = report.epoch
            self.losses.reported(report, self._links_from(operator))
            self.health.healing.account.not_written(operator, report.lost_rows or 0)
            if report.unmatched_rows:
                self.health.healing.account.has_left_over(operator, report.epoch, report.unmatched_rows)
            elif not report.is_found and report.state != State.BUILDING.value:
                self.health.healing.account.not_found(operator, report.epoch)
            if operator == self.sink and report.upstream_delay_ms is not None:
                self.delay_ms = report.upstream_delay_ms
            for ended in self.multicasts.heard(report, self.nodes):
                self._multicast_ended(ended, operator)
        news, reason = self._news(report)
        self.health.heard(operator, news, f"{operator} ({self.text_of(operator)}) {reason}")

    def _news(self, report: OperatorReport) -> tuple[News, str]:
        """Returns the news in a report about the health of an operator, and a clause that says it."""
        node = report.node
        if report.state == "missing":
            return News.MISSING, f"is not on {node} any more"
        if report.state == "failed":
            return News.FAILED, f"failed on {node}: {report.reason}"
        if missing := [link for link in sorted(self._links_from(report.id)) if not self._carried(report, link)]:
            return News.GAVE_UP_LINK, f"on {node} has given up its link {missing[0]}"
        if report.state == "degraded":
            return News.IDLES, f"on {node} does nothing: {report.reason}"
        if report.held_up:
            return News.IDLES, f"on {node} is held up by {report.held_up}"
        if report.state == "stalled":
            return News.STALLS, f"waits on {node}: {report.reason}"
        return News.RUNS, ""

    def _carried(self, report: OperatorReport, link: LinkId) -> bool:
        return any(known == link for known, *_ in report.links) or self.multicasts.carry(
            report.id, link, self.reports, self.health.those(GONE)
        )

    def _multicast_ended(self, name: OperatorId, feeder: OperatorId) -> None:
        """Forgets a multicast that has ended; its links belong to its feeder again."""
        self.reports.pop(name, None)
        self.health.forget(name)
        self.epochs.pop(name, None)
        self.links = tuple(msgspec.structs.replace(link, source=feeder) if link.source == name else link for link in self.links)

    def lost_links(self) -> list[LinkSpec]:
        """Returns the links that lead to living operators, and that nothing feeds any more."""
        carrier = self.multicasts.carriers(self.links, self.reports)
        gone = set(self.health.those(GONE)) - (self.lost if self.health.healing.is_on else frozenset())
        fed_by = [(link, {link.source, carrier.get(link.id, link.source)}) for link in self.links if link.target not in gone]
        return [link for link, sources in fed_by if sources & gone]

    def unfed_links(self) -> list[LinkSpec]:
        """Returns links whose source has given them up, or has them under another id, while their target, as far as is known, still waits
        for rows.

        Links of operators in an attempt of a recovery are left out: the recovery sees to them.
        """
        found, gone = [], {*self.health.those(GONE | WITH_HOST), *self.health.healing.turned, *unmade(self)}
        for link in self.links:
            source, target = self.reports.get(link.source), self.reports.get(link.target)
            if source is not None and target is not None and not {link.source, link.target} & gone:
                is_away = target.node != self.nodes.get(link.target) or source.node != self.nodes.get(link.source)
                is_fed = self._carried(source, link.id) and not is_apart(link, source, target)
                if not is_away and not is_fed and not self._leads_nowhere(link.target):
                    found.append(link)
        return found

    def _leads_nowhere(self, operator: OperatorId) -> bool:
        """Tells whether all consumers of an operator in this query are gone. If it got rows, it would only hold up its sources."""
        targets = [link.target for link in self.links if link.source == operator]
        lost = LOST - {Condition.CUT_OFF}
        return bool(targets) and all(self.health.of(target) in lost or self._leads_nowhere(target) for target in targets)

    def refed(self, old: LinkSpec, new: LinkSpec) -> None:
        """Notes that a link has been replaced; rows in transit on the old one are lost."""
        self.links = tuple(new if link.id == old.id else link for link in self.links)
        self.losses.refed(old, new)

    def _links_from(self, operator: OperatorId) -> set[LinkId]:
        return {link.id for link in self.links if link.source == operator and link.target not in self.health.healing.over}

    def node_failed(self, node: NodeId, *, left: bool = False) -> None:
        """Notes that a host has been declared failed, or has left in good order."""
        for operator, where in self.nodes.items():
            if where == node and operator not in self.health.healing.over:
                reason = f"{operator} ({self.text_of(operator)}) was on {node}, which {'has left' if left else 'failed'}"
                self.health.heard(operator, News.HOST_LEFT if left else News.HOST_FAILED, reason)

    def settle(self) -> None:
        """Sets the state to running or degraded, depending on what is wrong; without a sink, to shared."""
        if self.state in (QueryState.RUNNING, QueryState.DEGRADED, QueryState.RECOVERING, QueryState.SHARED):
            is_slow = self.forecast is not None and bool(self.forecast.reason)
            wrong = self.health.is_degraded or is_slow or self.late or self.losses.unpackable
            runs = QueryState.SHARED if is_dropped(self) else QueryState.DEGRADED if wrong else QueryState.RUNNING
            self.state = QueryState.RECOVERING if self.health.healing.step else runs

    # ------------------------------------------------------------------------------------------------------ recovery

    @property
    def lost(self) -> frozenset[OperatorId]:
        """Operators made for this query that are gone with their hosts and may be made again, once for all queries that use them.

        Leaves out operators that are left to other queries and had finished: nobody knows whether the others have had all rows of them.
        """
        left = left_to_others(self)
        gone = frozenset(self.health.those(WITH_HOST)) & self.specs.keys()
        return frozenset(operator for operator in gone if operator not in left or not is_over(self, operator))

    def link_rates(self) -> list[tuple[OperatorId, OperatorId, float]]:
        """Returns source, target and bytes per second of the query's links: the measured rate, or the plan's until there is one.

        For a link to a multicast it is the query's share of the rate.
        """
        measured = {link: rate for report in self.reports.values() for link, _, _, _, rate in report.links}
        carrier = self.multicasts.carriers(self.links, self.reports)
        own = [(carrier.get(link.id, link.source), link.target, measured.get(link.id, link.rate_bytes_per_s)) for link in self.links]
        return own + list(self.multicasts.feeding(self.reports))

    def row(self, network_usage: float | None) -> dict[str, Any]:
        """Returns the row that `sbon queries --json` shows."""
        sink = self.reports.get(self.sink)
        return {
            "id": self.id,
            "name": self.name,
            "former": self.former or None,
            "state": self.state.value,
            "reason": "; ".join(filter(None, [self.reason, *self.left_out])),
            "owner": self.owner,
            "keepers": list(self.health.healing.keepers),
            "ownership": self.health.healing.ownership or None,
            "sql": self.plan.sql,
            "sink_node": self.sink_node or None,
            "operators": [self._operator_row(operator) for operator in self.nodes],
            "rows_out": sink.rows_in if sink is not None else 0,
            "late_rows": sum(report.late_rows for report in self.reports.values()),
            "lost_rows": self.losses.rows + self.health.healing.account.rows,
            "lost": self.health.healing.account.told(self.text_of),
            "dropped_rows": sum(report.dropped_rows for report in self.reports.values()),
            "misfits": [
                {"operator": operator, "node": report.node, **msgspec.structs.asdict(misfit)}
                for operator, report in sorted(self.reports.items())
                for misfit in report.misfits
            ],
            "network_usage": network_usage,
            "delay_ms": self.delay_ms,
            "delay_bound_ms": self.plan.delay_bound_ms,
            "max_latency_ms": self.plan.max_latency_ms,
            "after_crash": after_crash(self.plan.operators),
            "instances": [
                {**one.told(self.nodes), "wanted": self.forecast.wanted_of(one.operators) if self.forecast is not None else None}
                for one in sets_of(self.plan)
                if self.nodes.keys() >= set(one.operators)
            ],
            "prediction": self.forecast.row() if self.forecast is not None else None,
            "replanning": self.health.healing.plans.step or None,
            "migrations": self.history.migrations,
            "started_wall_s": self.started_wall_s,
        }

    def _operator_row(self, operator: OperatorId) -> dict[str, Any]:
        spec = self.specs.get(operator)
        return {
            "id": operator,
            "kind": self.kind_of(operator),
            "text": self.text_of(operator),
            "node": self.nodes[operator],
            "pinned": spec is not None and spec.pinned is not None,
            "reused": spec is None and not is_multicast(operator),
            "lost": self.health.of(operator) in LOST,
        }


def is_apart(link: LinkSpec, source: OperatorReport, target: OperatorReport) -> bool:
    """Tells from reports whether the source has a link under any id, and one of its ends has it under another id than the query."""
    name = first_name(link.id)
    given = [known for known, *_ in source.links if first_name(known) == name]
    taken = [known for known, _ in target.received if first_name(known) == name]
    return bool(given) and any(known != link.id for known in (*given, *taken))


def is_undecided(report: OperatorReport, known: int) -> bool:
    """Tells whether a report is from a copy that waits for the command to run, which never comes if its operator does not move after all.

    Parameters
    ----------
    known : the epoch that the operator is known to have
    """
    return report.state == State.PREPARED.told and report.epoch > known
