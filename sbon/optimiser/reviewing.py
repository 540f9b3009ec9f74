"""Decides on one kind of change for an optimiser of running operators (SBON, section 3.2). A machine without I/O.

    review -> None                 nothing to do: cooling down, or nothing is new since the last look
           -> Ask -> decide -> Stay       no saving, or not sure of it yet
                            -> Migrate, Insert

Candidates are asked for their RTTs. The saving of a candidate is the cost now minus the cost after the change, both from RTTs measured in
the same way at the same time.

Noise must not move operators back and forth: a saving must be measured repeatedly (`sbon.optimiser.trials`). The threshold rises with each
recent change and falls with time, so that even nodes of equal cost do not swap operators for ever.

`sbon.optimiser.local` moves operators, `sbon.optimiser.multicast` splits their outputs.
"""

import abc
import math
from collections.abc import Container, Mapping
from typing import Any, Generic, TypeVar

from sbon.cost.model import CostModel
from sbon.cost.space import CostSpace
from sbon.cost_space.coordinate import Coordinate
from sbon.optimiser.config import OptimiserConfig
from sbon.optimiser.trials import REMEMBERED_MAX, REQUIRED_FRACTION_MAX, AnyConsidered, Certainty, Trials, noise_of_a_node, raised
from sbon.optimiser.views import Ask, Insert, Migrate, OperatorView, SourceView, Stay
from sbon.placement.candidates import CandidateReport
from sbon.placement.remembered import NOTHING, Remembered
from sbon.types import NodeId, OperatorId

AnyView = TypeVar("AnyView", OperatorView, SourceView)


class _Memory:
    """The optimiser's memory of one operator or body."""

    def __init__(self, trials: Trials, here: NodeId) -> None:
        self.trials = trials
        self.here = here
        self.mark: Any = None
        """Conditions under which candidates were last looked for; None if they have not been."""
        self.looked_at_s = -math.inf


class Optimiser(abc.ABC, Generic[AnyView, AnyConsidered]):
    """Decides on one kind of change to the operators of one node.

    Parameters
    ----------
    config : settings of the thresholds
    model : what to minimise
    """

    ENDS_MIN = 1
    """Least number of links that a change is about."""
    SUBJECT = "{}"
    """Subject of sentences about a saving, with a place for the candidate's name."""

    def __init__(self, config: OptimiserConfig, model: CostModel) -> None:
        self._config = config
        self._model = model
        self._memory: dict[tuple[OperatorId, ...], _Memory] = {}
        self._noise = noise_of_a_node(config)

    def review(
        self, view: AnyView, coordinates: Mapping[NodeId, Coordinate] | CostSpace, now: float, remembered: Remembered = NOTHING
    ) -> Ask | None:
        """Returns the nodes to ask about a change; None if there is no reason to look.

        `coordinates` must include nodes that may be asked, and neighbours. To review many operators, build one `CostSpace`. `remembered`
        holds RTTs that the neighbours' nodes know from their probing.
        """
        space = coordinates if isinstance(coordinates, CostSpace) else CostSpace(coordinates)
        memory = self._remember(view)
        cooling = view.since_change_s is not None and view.since_change_s < self._config.cooldown_s
        flowing = sum(end.rate_bytes_per_s for end in view.ends) > 0
        if cooling or not flowing or not self._is_known(view, space):
            memory.trials.end()
            return None
        watched: tuple[NodeId, ...] = tuple(node for node in memory.trials.watched if node in space)
        if watched:
            return Ask(view.id, (view.here, *watched), view.about)
        mark = self._mark(view, space)
        is_new = memory.mark is None or self._differs(mark, memory.mark)
        if not is_new and now - memory.looked_at_s < self._config.lookup_interval_s:
            return None
        memory.mark, memory.looked_at_s = mark, now
        candidates: tuple[NodeId, ...] = self._candidates(view, space, mark, remembered)
        return Ask(view.id, (view.here, *candidates), view.about) if candidates else None

    def decide(
        self,
        view: AnyView,
        reports: Mapping[NodeId, CandidateReport],
        coordinates: Mapping[NodeId, Coordinate] | CostSpace,
        now: float,
    ) -> Migrate | Insert | Stay:
        """Decides from the answers to an Ask. `reports` holds the answers by node, this node's own included."""
        space = coordinates if isinstance(coordinates, CostSpace) else CostSpace(coordinates)
        trials = self._remember(view).trials
        if not self._is_known(view, space):
            trials.end()
            return Stay(view.id, f"fewer than {self.ENDS_MIN} neighbours are left, or one's node has no coordinate any more")
        candidates = trials.begin(node for node in reports if node != view.here and node in space)
        found = [self._considered(view, node, reports, space, trials) for node in candidates]
        trials.learn()
        return self._verdict(view, tuple(sorted(found, key=lambda one: (-one.saving_fraction, one.node))))

    def is_unsure(self, operator: OperatorId) -> bool:
        """Tells whether a saving has been seen for an operator alone and is being measured again."""
        memory = self._memory.get((operator,))
        return memory is not None and bool(memory.trials.watched)

    def forget(self, operator: OperatorId) -> None:
        """Drops an operator that no longer runs here."""
        for key in [key for key in self._memory if operator in key]:
            del self._memory[key]

    def keep(self, here: Container[OperatorId]) -> None:
        """Drops all operators that are not in `here`, since most end without notice."""
        self._memory = {key: memory for key, memory in self._memory.items() if all(operator in here for operator in key)}

    @abc.abstractmethod
    def _mark(self, view: AnyView, space: CostSpace) -> Any:
        """Returns the conditions under which candidates would be looked for."""

    @abc.abstractmethod
    def _differs(self, mark: Any, before: Any) -> bool:
        """Tells whether the conditions have changed enough to look for candidates again."""

    @abc.abstractmethod
    def _candidates(self, view: AnyView, space: CostSpace, mark: Any, remembered: Remembered) -> tuple[NodeId, ...]:
        """Returns the nodes to ask, the most promising first."""

    @abc.abstractmethod
    def _considered(
        self, view: AnyView, node: NodeId, reports: Mapping[NodeId, CandidateReport], space: CostSpace, trials: Trials
    ) -> AnyConsidered:
        """Compares one candidate with this node."""

    @abc.abstractmethod
    def _hindrance(self, view: AnyView, considered: AnyConsidered) -> str:
        """Returns a reason against the change besides its saving; empty if there is none."""

    @abc.abstractmethod
    def _change(self, view: AnyView, best: AnyConsidered, reason: str, considered: tuple[AnyConsidered, ...]) -> Migrate | Insert:
        """Returns the change that is certain to save."""

    def _is_known(self, view: AnyView, space: CostSpace) -> bool:
        return len(view.ends) >= self.ENDS_MIN and view.here in space and all(end.node in space for end in view.ends)

    def _verdict(self, view: AnyView, found: tuple[AnyConsidered, ...]) -> Migrate | Insert | Stay:
        """Decides to make the change, to measure again, or to stay."""
        memory = self._remember(view)
        hopeful = [one for one in found if one.saving_fraction > one.required_fraction and not self._hindrance(view, one)]
        if not hopeful:
            memory.trials.end()
            return Stay(view.id, self._why_not(view, found), found)
        certainty, best = memory.trials.judge(hopeful)
        subject = self.SUBJECT.format(best.node)
        if certainty is Certainty.SURE:
            reason = (
                f"{subject} saves {best.saving_fraction:z.0%} of the cost of {best.usage_here_bytes:.4g} bytes in transit on "
                f"{view.here}, seen in {best.seen} reviews; {best.required_fraction:.0%} required"
            )
            return self._change(view, best, reason, found)
        if certainty is Certainty.NOISE:
            return Stay(view.id, f"the saving of {best.saving_fraction:z.0%} on {best.node} stays within the noise", found)
        reason = f"{subject} may save {best.saving_fraction:z.0%}, seen in {best.seen} reviews; asking again"
        return Stay(view.id, reason, found, pending=True)

    def _why_not(self, view: AnyView, found: tuple[AnyConsidered, ...]) -> str:
        if not found:
            return "no candidate has answered"
        best = found[0]
        if best.saving_fraction > best.required_fraction:
            return f"{best.node} would save {best.saving_fraction:z.0%}, but {self._hindrance(view, best)}"
        return f"the best alternative, {best.node}, saves {best.saving_fraction:z.1%}; {best.required_fraction:.0%} required"

    def _required(self, view: AnyView, cost_here: float, predicted: float, least_fraction: float, least_bytes: float) -> float:
        """Returns the saving that a change must exceed, as a share of the cost here."""
        if cost_here <= 0:
            return REQUIRED_FRACTION_MAX
        by_fraction = min(least_fraction * raised(self._config, view.changes, view.since_change_s), REQUIRED_FRACTION_MAX)
        return max(by_fraction, least_bytes / cost_here) + self._config.prediction_margin * predicted / cost_here

    def _remember(self, view: AnyView) -> _Memory:
        memory = self._memory.pop(view.operators, None)
        if memory is None or memory.here != view.here:
            memory = _Memory(Trials(self._config, self._noise), view.here)
        self._memory[view.operators] = memory
        while len(self._memory) > REMEMBERED_MAX:
            del self._memory[next(iter(self._memory))]
        return memory
