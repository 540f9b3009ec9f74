"""The local optimiser of a host (SBON, section 3.2): reviews the placement of running operators, asks candidates and starts migrations.

The node runs it.

Once per interval, it reviews every operator on this host that may move, alone and in a group with the linked operators on this host. Two
operators with a strong link hold each other in place, so they move only as a group, one after the other.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from sbon.errors import MigrationError
from sbon.execution.instance import Instance
from sbon.migration.outcome import MigrationRecord
from sbon.optimiser.config import OptimiserConfig
from sbon.optimiser.views import Insert, Migrate, Neighbour, OperatorView, Stay, bodies
from sbon.placement.config import PlacementConfig
from sbon.query.params.kinds import needs_of
from sbon.rearranging.reviewing import Reports, Reviewing, Surroundings
from sbon.types import NodeId, OperatorId

if TYPE_CHECKING:
    from sbon.cost.space import CostSpace
    from sbon.optimiser.local import LocalOptimiser


class Rebalancing(Reviewing["LocalOptimiser"]):
    """The local optimiser of one host."""

    def __init__(
        self, around: Surroundings, config: OptimiserConfig, placement: PlacementConfig, is_considering: Callable[[OperatorId], bool]
    ) -> None:
        super().__init__(around, config, placement)
        self._is_considering = is_considering
        self._machine_rng = around.host.rng.spawn(1)[0]
        self._asking: set[tuple[OperatorId, ...]] = set()
        self._following: dict[OperatorId, tuple[deque[OperatorId], NodeId, str]] = {}

    @property
    def _machine(self) -> "LocalOptimiser":
        """Returns the optimiser; loads it when an operator first may move, because most agents host none."""
        if self._loaded is None:
            from sbon.optimiser.local import LocalOptimiser

            self._loaded = LocalOptimiser(self._config, self._machine_rng, self._placement)
        return self._loaded

    def migration_ended(self, record: MigrationRecord) -> None:
        """Handles the end of a migration away from this host. After a commit, the rest of the group follows; otherwise it stays."""
        following = self._following.pop(record.operator, None)
        if record.committed:
            self._machine.forget(record.operator)
            if following is not None:
                # Not at once: the message that unlocks the rest of the group, from this host to itself, is still under way.
                self._host.call_soon(partial(self._migrate, *following))

    def _review_all(self) -> None:
        if self._loaded is not None:
            self._loaded.keep(self._operators.instances)
        if not self._config.enabled:
            return
        movable = [i for i in self._operators.instances.values() if self._migrations.may_migrate(i.id)]
        if not movable:
            return
        from sbon.cost.space import CostSpace

        space = CostSpace(self._gossip.coordinates())
        single = [self._view(instance) for instance in movable]
        views = (*single, *bodies(single))

        def review() -> None:
            for view in views:
                self._review(view, space)

        self._remembering.refresh(self._unheard(views, space), review)

    def _unheard(self, views: Sequence[OperatorView], space: "CostSpace") -> dict[NodeId, list[NodeId]]:
        """Returns the neighbours' nodes to ask for RTTs, each with the promising candidates to ask about."""
        about: dict[NodeId, dict[NodeId, None]] = {}
        for view in views:
            nodes = [neighbour.node for neighbour in view.neighbours]
            stale = self._remembering.stale(nodes)
            if stale:
                known = self._remembering.remembered(nodes)
                promising = self._machine.promising(view, space, self._config.neighbour_rtts, known)
                for node in stale:
                    about.setdefault(node, {}).update(dict.fromkeys(promising))
        return {node: list(others) for node, others in about.items()}

    def _review(self, view: OperatorView, space: "CostSpace") -> None:
        if view.operators in self._asking:
            return
        remembered = self._remembering.remembered(neighbour.node for neighbour in view.neighbours)
        question = self._machine.review(view, space, self._host.now(), remembered)
        if question is None:
            return
        self._asking.add(view.operators)

        def answered(reports: Reports) -> None:
            self._asking.discard(view.operators)
            self._decide(view, reports)

        needs = needs_of(i.spec.params for operator in view.operators if (i := self._operators.instances.get(operator)) is not None)
        self._ask(question, answered, needs)

    def _decide(self, asked: OperatorView, reports: Reports) -> None:
        instances = [self._operators.instances.get(operator) for operator in asked.operators]
        present = [i for i in instances if i is not None and self._migrations.may_migrate(i.id)]
        if len(present) < len(asked.operators):
            return
        views = [self._view(instance) for instance in present]
        now_views = [view for view in bodies(views) if view.operators == asked.operators] if len(views) > 1 else views
        if not now_views:
            return
        view = self._with_computing(now_views[0], present, reports)
        verdict = self._machine.decide(view, reports, self._gossip.coordinates(), self._host.now())
        self._log(asked, verdict)
        if isinstance(verdict, Migrate) and not any(self._is_considering(operator) for operator in verdict.operators):
            self._migrate(deque(verdict.operators), verdict.to, verdict.reason)

    def _with_computing(self, view: OperatorView, instances: Sequence[Instance], reports: Reports) -> OperatorView:
        """Adds how much longer the operator's work takes on each candidate, if a query with a bound uses it."""
        if math.isinf(view.delay_slack_ms):
            return view
        now, cost_store = self._host.now(), self._candidate_questions.cost_store
        here = cost_store.nodes.of(view.here, now)
        from sbon.cost.computing import Work, longer_ms

        figures = [instance.figures for instance in instances]
        cores = sum(one.rate_in.per_s * (one.accounts.cpu_ns_per_row or 0.0) / 1e9 for one in figures)
        work = Work(cores, sum(one.step_cost.per_batch_s for one in figures))
        return msgspec.structs.replace(
            view, computing_ms={node: longer_ms(work, here, cost_store.nodes.of(node, now)) for node in reports if node != view.here}
        )

    def _migrate(self, operators: deque[OperatorId], there: NodeId, reason: str) -> None:
        if not operators:
            return
        operator = operators.popleft()
        self._following[operator] = (operators, there, reason)
        try:
            self._migrations.migrate(operator, there, reason)
        except MigrationError as problem:
            del self._following[operator]
            self._recording.review(operator, (operator,), "hindered", str(problem))

    def _log(self, view: OperatorView, verdict: Migrate | Insert | Stay) -> None:
        self._recording.review(view.id, view.operators, type(verdict).__name__.lower(), verdict.reason, verdict.alternatives)

    def _view(self, instance: Instance) -> OperatorView:
        return view_of(instance, self._directory.me, self._host.now())


def view_of(instance: Instance, here: NodeId, now: float) -> OperatorView:
    """Describes an operator of this host to the optimiser."""
    incoming = [Neighbour(i.node, i.steady_rate.per_s, True, i.link.source, i.delay_ms) for i in instance.inputs.values()]
    outgoing = [Neighbour(o.node, o.steady_rate.per_s, False, o.link.target) for o in instance.outputs.values()]
    return OperatorView(
        id=instance.id,
        here=here,
        neighbours=tuple(incoming + outgoing),
        changes=instance.figures.migrations,
        since_change_s=None if instance.figures.arrived_at_s is None else now - instance.figures.arrived_at_s,
        state_bytes=instance.figures.state_bytes,
        delay_slack_ms=instance.users.delay_slack_ms,
    )
