"""Finds new hosts for the operators of a host that leaves: asks candidates and takes the one of least cost, even if the move saves nothing.

`sbon.rearranging.leaving` uses it.

Each operator has an `Attempt` (`sbon.optimiser.attempts`). If no candidate has room for a whole group of linked operators, they are placed
separately. An operator that all candidates have refused is given up.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from sbon.execution.instance import Instance
from sbon.optimiser.attempts import Attempt, Stage
from sbon.optimiser.config import OptimiserConfig
from sbon.optimiser.views import OperatorView, bodies
from sbon.placement.candidates import CandidateReport
from sbon.placement.config import PlacementConfig
from sbon.query.params.kinds import needs_of
from sbon.rearranging.rebalancing import view_of
from sbon.rearranging.reviewing import Surroundings
from sbon.types import NodeId, OperatorId

if TYPE_CHECKING:
    from sbon.cost.space import CostSpace
    from sbon.optimiser.local import LocalOptimiser

ANSWER_TIMEOUT_S = 1.5
"""Seconds that candidates may take to answer. A candidate that is slow now is not suitable."""
ASKED_MAX = 100
"""Most candidates asked for one operator. If so many have no room, others probably have none either."""


class Seeking:
    """Finds hosts for the operators of one host.

    Parameters
    ----------
    changed : called when candidates have answered
    """

    def __init__(
        self,
        around: Surroundings,
        optimiser: OptimiserConfig,
        placement: PlacementConfig,
        rng: np.random.Generator,
        changed: Callable[[], None],
    ) -> None:
        self._around = around
        self._optimiser = optimiser
        self._placement = placement
        self._rng = rng
        self._changed = changed
        self._me = around.directory.me
        self._machine: LocalOptimiser | None = None
        self._attempts: dict[OperatorId, Attempt] = {}

    def attempt(self, operator: OperatorId) -> Attempt:
        """Returns the attempt of an operator."""
        return self._attempts.setdefault(operator, Attempt())

    def moving(self) -> set[OperatorId]:
        """Returns the operators whose migrations are under way."""
        return {operator for operator, attempt in self._attempts.items() if attempt.stage is Stage.MOVING}

    def refused(self, there: NodeId) -> None:
        """Notes that a host has refused an operator. Operators that were to go there and have not started seek another host."""
        for attempt in self._attempts.values():
            attempt.refused_another(there)

    def seek(self, instances: Sequence[Instance]) -> None:
        """Asks candidates for each group of linked operators, and for each single operator."""
        singles = [self._view(instance) for instance in instances]
        groups = [view for view in bodies(singles) if not any(self.attempt(operator).alone for operator in view.operators)]
        grouped = {operator for view in groups for operator in view.operators}
        for view in (*groups, *(view for view in singles if view.id not in grouped)):
            self._ask(view)

    def _view(self, instance: Instance) -> OperatorView:
        """Describes an operator to the optimiser, with at least 1 byte/s on each link, so that links without traffic so far count, too."""
        view = view_of(instance, self._me, self._around.host.now())
        neighbours = tuple(msgspec.structs.replace(n, rate_bytes_per_s=max(n.rate_bytes_per_s, 1.0)) for n in view.neighbours)
        return msgspec.structs.replace(view, neighbours=neighbours)

    def _ask(self, view: OperatorView) -> None:
        from sbon.cost.space import CostSpace

        # Neighbours on this host will move or end, so a place near them has no value.
        away = tuple(n for n in view.neighbours if n.node != self._me and not self._around.gossip.departure_of(n.node))
        view = msgspec.structs.replace(view, neighbours=away or view.neighbours)
        attempts = [self.attempt(operator) for operator in view.operators]
        space = CostSpace(self._around.gossip.coordinates())
        candidates = self._candidates(view, space, attempts)
        if not candidates:
            for attempt in attempts:
                attempt.nobody_left(len(attempts), self._around.host.now(), self._rng)
            return
        waiting = set(candidates)
        reports: dict[NodeId, CandidateReport] = {}

        def answered(node: NodeId, report: CandidateReport | None) -> None:
            waiting.discard(node)
            if report is not None:
                reports[node] = report
            if not waiting:
                self._choose(view, candidates, reports, space, attempts)
                self._changed()

        for attempt in attempts:
            attempt.ask()
        about = tuple(dict.fromkeys(neighbour.node for neighbour in view.neighbours))
        present = [i for operator in view.operators if (i := self._around.operators.instances.get(operator)) is not None]
        needs = needs_of(instance.spec.params for instance in present)
        timeout_s = min(ANSWER_TIMEOUT_S, self._optimiser.answer_timeout_s)
        for node in candidates:
            self._around.candidate_questions.ask(node, about, (), timeout_s, answered, needs=needs)

    def _candidates(self, view: OperatorView, space: "CostSpace", attempts: Sequence[Attempt]) -> tuple[NodeId, ...]:
        """Returns the untried nodes of least estimated cost; the node of the heaviest link comes first if it is untried."""
        tried = {node for attempt in attempts for node in attempt.refused | attempt.unlucky}
        others = [node for node in self._around.gossip.alive_labels() if node != self._me and node not in tried]
        if len(tried) >= ASKED_MAX or not others:
            return ()
        if self._machine is None:
            from sbon.optimiser.local import LocalOptimiser

            self._machine = LocalOptimiser(self._optimiser, self._rng, self._placement)
        rates: dict[NodeId, float] = {}
        for neighbour in view.neighbours:
            rates[neighbour.node] = rates.get(neighbour.node, 0.0) + neighbour.rate_bytes_per_s
        heaviest = sorted(rates, key=lambda node: (-rates[node], node))[:1]
        count = self._optimiser.candidates
        ranked = self._machine.promising(view, space, count + len(tried) + 1, self._around.remembering.remembered(rates))
        free = set(others)
        return tuple(node for node in dict.fromkeys((*heaviest, *ranked, *others)) if node in free)[:count]

    def _choose(
        self,
        view: OperatorView,
        asked: Iterable[NodeId],
        reports: dict[NodeId, CandidateReport],
        space: "CostSpace",
        attempts: Sequence[Attempt],
    ) -> None:
        from sbon.optimiser.refuges import refuges
        from sbon.placement.models import model_of

        found = refuges(view, reports, space, model_of(self._placement))
        for attempt in attempts:
            attempt.chosen(found, asked, reports)
