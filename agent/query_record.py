"""What the agent that took a query knows of it: its operators and where they are, how they do, and what is wrong."""

from enum import Enum
from typing import Any

import msgspec

from agent.deployment import Deployed
from sbon.query.plan import LinkSpec, OperatorSpec, Plan
from sbon.query.text import describe
from sbon.types import LinkId, NodeId, OperatorId
from sbon.wire import OperatorReport


class QueryState(Enum):
    """As `sbon queries` shows it."""

    RUNNING = "running"
    DEGRADED = "degraded"
    """It has lost something: answers are missing or late. The reason says what."""
    FINISHED = "finished"
    """Every source has ended and every answer has been delivered."""
    STOPPING = "stopping"


class Trouble(msgspec.Struct, frozen=True, array_like=True):
    """One thing that is wrong with one operator."""

    operator: OperatorId
    reason: str


class QueryRecord:
    """One query."""

    def __init__(self, plan: Plan, deployed: Deployed, me: NodeId, wall_s: float) -> None:
        self.plan = plan
        self.id = plan.query
        self.name = plan.name
        self.owner = me
        self.started_wall_s = wall_s
        self.state = QueryState.RUNNING
        self.specs: dict[OperatorId, OperatorSpec] = {spec.id: spec for spec in deployed.operators}
        self.links: tuple[LinkSpec, ...] = deployed.links
        self.nodes: dict[OperatorId, NodeId] = dict(deployed.nodes)
        self.reports: dict[OperatorId, OperatorReport] = {}
        self.troubles: dict[OperatorId, str] = {}
        self.gone: set[OperatorId] = set()
        """Operators that will not come back: failed, or forgotten by a host that has restarted."""
        self.migrations = 0

    @property
    def sink(self) -> OperatorId:
        """The operator that takes the answers."""
        return self.plan.operators[-1].id

    @property
    def sink_node(self) -> NodeId:
        """Where the answers go."""
        return self.nodes[self.sink]

    @property
    def reason(self) -> str:
        """What is wrong, one sentence; empty if nothing is."""
        return "; ".join(self.troubles[operator] for operator in sorted(self.troubles))

    def text_of(self, operator: OperatorId) -> str:
        """One line about an operator."""
        spec = self.specs.get(operator)
        return describe(spec.params) if spec is not None else "shared with another query"

    def reported(self, report: OperatorReport) -> None:
        """A host has told how one of the operators does."""
        operator = report.id
        if report.state == "moved":
            self.nodes[operator] = report.node
            return
        if report.state == "missing":
            self.gone.add(operator)
            self.troubles[operator] = f"{operator} ({self.text_of(operator)}) is not on {report.node} any more"
            return
        self.reports[operator] = report
        if report.state == "failed":
            self.gone.add(operator)
            self.troubles[operator] = f"{operator} ({self.text_of(operator)}) failed on {report.node}: {report.reason}"
        elif missing := sorted(self._links_from(operator) - {link for link, *_ in report.links}):
            self.troubles[operator] = f"{operator} ({self.text_of(operator)}) on {report.node} has given up its link {missing[0]}"
        else:
            self.troubles.pop(operator, None)

    def _links_from(self, operator: OperatorId) -> set[LinkId]:
        return {link.id for link in self.links if link.source == operator}

    def node_failed(self, node: NodeId) -> None:
        """A host has been declared failed."""
        for operator, where in self.nodes.items():
            if where == node:
                self.troubles[operator] = f"{operator} ({self.text_of(operator)}) was on {node}, which failed"

    def settle(self) -> None:
        """Running or degraded, by what is wrong."""
        if self.state in (QueryState.RUNNING, QueryState.DEGRADED):
            self.state = QueryState.DEGRADED if self.troubles else QueryState.RUNNING

    def link_rates(self) -> list[tuple[OperatorId, OperatorId, float]]:
        """Source, target and measured bytes/s of the links made for the query, or the plan's figure until there is one."""
        measured = {link: rate for report in self.reports.values() for link, _, _, _, rate in report.links}
        return [(link.source, link.target, measured.get(link.id, link.rate_bytes_per_s)) for link in self.links]

    def row(self, network_usage: float | None) -> dict[str, Any]:
        """As `sbon queries --json` shows it."""
        sink = self.reports.get(self.sink)
        return {
            "id": self.id,
            "name": self.name,
            "state": self.state.value,
            "reason": self.reason,
            "owner": self.owner,
            "sql": self.plan.sql,
            "sink_node": self.sink_node,
            "operators": [self._operator_row(operator) for operator in self.nodes],
            "rows_out": sink.rows_in if sink is not None else 0,
            "late_rows": sum(report.late_rows for report in self.reports.values()),
            "dropped_rows": sum(report.dropped_rows for report in self.reports.values()),
            "network_usage": network_usage,
            "migrations": self.migrations,
            "started_wall_s": self.started_wall_s,
        }

    def _operator_row(self, operator: OperatorId) -> dict[str, Any]:
        spec = self.specs.get(operator)
        return {
            "id": operator,
            "kind": spec.params.__struct_config__.tag if spec is not None else "shared",
            "text": self.text_of(operator),
            "node": self.nodes[operator],
            "pinned": spec is not None and spec.pinned is not None,
            "reused": spec is None,
            "lost": operator in self.troubles,
        }
