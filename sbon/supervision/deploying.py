"""Carries out the actions of a query's deployment (`sbon.supervision.deployment`). `sbon.queries.queries` calls it."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

from sbon.errors import SbonError
from sbon.optimiser.placed import Placed
from sbon.query.plan import Plan
from sbon.supervision.delay_bounds import movable_of, slack_ms
from sbon.supervision.deployment import Action, Ask, Assignment, Deployed, Deployment, Free, Place, Refuse, Run, Step
from sbon.types import NodeId
from sbon.wire.deployment import Release
from sbon.wire.messages import Message
from sbon.wire.requests import Messages

INSTANTIATE_TIMEOUT_S = 15.0
"""Timeout for making an operator, in seconds: a host that runs its first one has to load libraries, which takes a second or two on a small
machine."""


class Placing(Protocol):
    """Chooses hosts for the operators of a query."""

    def place(
        self, plan: Plan, done: Callable[[Placed | SbonError], None], excluded: frozenset[NodeId] = ..., *, share: bool = ...
    ) -> None:
        """Places a query; `done` gets the result."""


class Deploying:
    """Places and deploys one query; `done` gets the placement and what runs, or the first error."""

    def __init__(
        self, plan: Plan, directory: Messages, placing: Placing, done: Callable[[tuple[Placed, Deployed] | SbonError], None]
    ) -> None:
        self._plan = plan
        self._directory = directory
        self._placing = placing
        self._done = done
        self._placed: Placed | None = None
        self._machine = Deployment(plan, directory.me)

    def begin(self) -> None:
        """Places and deploys the query."""
        self._perform(self._machine.place())

    def _perform(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Place(excluded, share):
                    self._placing.place(self._plan, self._chosen, excluded, share=share)
                case Ask(step):
                    self._directory.request(step.node, step.message, partial(self._answered, step), INSTANTIATE_TIMEOUT_S)
                case Free(node):
                    self._directory.tell(node, Release(query=self._plan.query))
                case Run(deployed):
                    assert self._placed is not None
                    self._done((self._placed, deployed))
                case Refuse(problem):
                    self._done(problem)

    def _chosen(self, result: Placed | SbonError) -> None:
        if isinstance(result, SbonError):
            self._perform(self._machine.placed(result))
            return
        self._placed = result
        slack = slack_ms(result.decision.delay_bound_ms, result.decision.delay_ms, movable_of(self._plan, len(result.reused)))
        self._perform(self._machine.placed(Assignment(result.nodes, result.reused, result.unpinned_nodes, slack, result.plan)))

    def _answered(self, step: Step, result: Message | SbonError) -> None:
        self._perform(self._machine.answered(step, result))
