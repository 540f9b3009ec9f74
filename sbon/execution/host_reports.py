"""Reports of one host about itself: figures and costs of its operators, and the host's own capacity."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from sbon.cost.store import CostStore
from sbon.execution.instance import Instance
from sbon.execution.port_costs import PortCosts
from sbon.execution.reporting import operator_report
from sbon.ports import Executor
from sbon.query.params.joined import JoinParams
from sbon.query.signature import likeness
from sbon.state_budget import StateBudget
from sbon.types import NodeId, OperatorId, QueryId
from sbon.wire.costs import NodeTold
from sbon.wire.reports import FilePosition, OperatorReport, OperatorReports


class HostReports:
    """Reports of one host.

    Parameters
    ----------
    place : tells where an operator that was here has gone, with the epoch of the move; None if unknown
    latency_ms : returns the one-way latency to a node; None if unknown
    missed : called when a report says that an operator is missing: it is about to be made here again
    position : returns the position kept here of a source that reads a file; None if there is none
    """

    def __init__(
        self,
        me: NodeId,
        machine: Executor,
        instances: Mapping[OperatorId, Instance],
        place: Callable[[OperatorId], tuple[NodeId, int] | None],
        cost_store: CostStore,
        budget: StateBudget,
        latency_ms: Callable[[NodeId], float | None],
        missed: Callable[[], None],
        position: Callable[[OperatorId], FilePosition | None] = lambda operator: None,
    ) -> None:
        self._me = me
        self._machine = machine
        self._instances = instances
        self._place = place
        self._budget = budget
        self._latency_ms = latency_ms
        self._missed = missed
        self._position = position
        self.cost_store = cost_store

    def sample(self) -> None:
        """Samples all rates, and the use of the processors; called every `sample_interval_s`."""
        now = self._machine.now()
        for instance in self._instances.values():
            instance.sample(now, self._me)
        cpu_ns = {instance.id: instance.figures.accounts.cpu_ns for instance in self._instances.values()}
        cores, used = self._machine.workers, self._machine.processors()
        self.cost_store.sample(now, used.use * cores, cpu_ns, used.use * cores - (cores - used.free_cores))
        if self._instances and self.cost_store.wants_share(self._machine.workers, now):
            self._machine.execute(self._machine.share_of_core, self._shared_out, rows=0)

    def time_kernel(self, done: Callable[[], None]) -> None:
        """Measures the speed of this machine on a thread, unless it is known, and then calls `done`."""
        if self.cost_store.is_timed:
            done()
            return
        work = partial(self.cost_store.time_once, lambda: self._machine.meter(brief=True))
        self._machine.execute(work, lambda _: done(), rows=0)

    def _shared_out(self, share: float | BaseException | None) -> None:
        if not isinstance(share, BaseException):
            self.cost_store.shared_out(share)

    def report(self, operators: Sequence[OperatorId], query: QueryId = "") -> OperatorReports:
        """Answers the home of a query: figures and costs of its operators, and this host's own capacity."""
        here = [self._instances[operator].spec.signature for operator in operators if operator in self._instances]
        reports = tuple(self._figures(operator, query) for operator in operators)
        if any(report.state == "missing" for report in reports):
            self._missed()
        return OperatorReports(reports=reports, costs=self.cost_store.costs(here, self._machine.now()), host=self.told())

    def told(self) -> NodeTold:
        """Returns this host's processors, memory, latencies to its consumers and spare time, for other agents."""
        targets = {output.node for instance in self._instances.values() for output in instance.outputs.values() if output.node != self._me}
        latencies = ((node, self._latency_ms(node)) for node in sorted(targets))
        known = tuple((node, latency_ms) for node, latency_ms in latencies if latency_ms is not None)
        return self.cost_store.own(self._machine.workers, self._budget.limit_bytes, self._machine.now(), known, self._spare_s())

    def _spare_s(self) -> float | None:
        """Returns by how much longer work may take here before a query breaks its `max_latency`; None if no query here has one."""
        slacks = [slack for instance in self._instances.values() for slack in instance.users.busy_slack_ms.values()]
        return max(0.0, min(slacks)) / 1e3 if slacks else None

    def _figures(self, operator: OperatorId, query: QueryId) -> OperatorReport:
        """Returns the figures of one operator; one that has left is reported as `moved`, an unknown one as `missing`."""
        instance = self._instances.get(operator)
        if instance is not None:
            return operator_report(instance, self._me, query)
        gone = self._place(operator)
        if gone is not None:
            return OperatorReport(id=operator, state="moved", node=gone[0], epoch=gone[1])
        return OperatorReport(id=operator, state="missing", node=self._me, position=self._position(operator) or msgspec.UNSET)


def measure_costs(instance: Instance, cost_store: CostStore, now: float) -> None:
    """Pools an operator's costs with those of all others here that compute the same."""
    spec, brought = instance.spec, instance.figures.costs_brought
    if brought is not None:
        cost_store.statistics.brought("moved here", brought, now)
    fit = cost_store.fit(spec.signature, spec.ports, now, likeness(spec.params, spec.schema))
    instance.figures.port_costs = PortCosts(fit, cost_store.speed.value, pairs=isinstance(spec.params, JoinParams))
