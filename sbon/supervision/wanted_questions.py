"""A host's questions whether its operators are wanted, and a keeper's questions whether its records are: chooses whom to ask, answers, and
acts on answers.
"""

from collections.abc import Callable, Iterable, Mapping, Set

import msgspec

from sbon.execution.instance import Instance
from sbon.supervision.inheriting import Inheriting
from sbon.supervision.owners import Owner, Owners
from sbon.supervision.register import Register
from sbon.supervision.succession import Owned
from sbon.types import NodeId, OperatorId, QueryId
from sbon.wire.authority import query_of
from sbon.wire.ownership import Holder, Own
from sbon.wire.replication import Unwanted, WantedAsk


class Question(msgspec.Struct):
    """The questions to one agent."""

    served: set[QueryId] = msgspec.field(default_factory=set)
    """Queries with operators here, that the agent is taken to own."""
    kept: Set[QueryId] = frozenset()
    """Queries whose records are kept here for the agent."""
    copies: list[tuple[OperatorId, int]] = msgspec.field(default_factory=list)
    """Operators here that were made for queries of the agent, with their epochs."""

    @property
    def message(self) -> WantedAsk:
        """The message with all questions."""
        return WantedAsk(queries=tuple(sorted(self.served | self.kept)), operators=tuple(self.copies))


def questions(
    instances: Iterable[Instance],
    owners: Owners,
    kept: Mapping[NodeId, Set[QueryId]],
    to_ask: Callable[[QueryId, NodeId], NodeId | None],
    owner: NodeId | None,
) -> dict[NodeId, Question]:
    """Returns the questions to each agent.

    Parameters
    ----------
    kept : the queries whose records are kept here, by their owners
    to_ask : returns the agent to ask about a query, given the owner that its operators know; None: nobody
    owner : the only agent to ask; None: all
    """
    found: dict[NodeId, Question] = {}
    for instance in instances:
        for query, told in instance.users.items():
            asked = to_ask(query, told)
            if asked is not None and owner in (None, asked):
                found.setdefault(asked, Question()).served.add(query)
        taker = owners.of(query_of(instance.id)).name
        if owner in (None, taker):
            found.setdefault(taker, Question()).copies.append((instance.id, instance.epoch))
    if owner is None:
        for taker, queries in kept.items():
            found.setdefault(taker, Question()).kept = queries
    return found


class WantedQuestions:
    """Questions and answers of one agent.

    Parameters
    ----------
    owned : the queries that it owns, or is about to own
    """

    def __init__(self, register: Register, inheriting: Inheriting, owned: Mapping[QueryId, Owned]) -> None:
        self._register = register
        self._inheriting = inheriting
        self._owned = owned

    def answer(self, ask: WantedAsk) -> Unwanted:
        """Answers which of the queries have ended, and which ones other agents own by now. Of queries that this agent has taken over, or
        claimed again, it tells the latest ownership epoch that has come to count."""
        records, me = self._inheriting.records, self._register.me
        queries = [query for query in ask.queries if query not in self._owned]
        owners = {query: self._register.owners.of(query) for query in queries}
        machines = [self._owned[query].machine for query in ask.queries if query in self._owned]
        mine = [Own(query=one.query, epoch=one.counted, owner=one.me) for one in machines if one.epoch > 0]
        taken = [
            Own(query=query, epoch=owner.epoch, owner=Holder(owner.name, owner.boot or 0))
            for query, owner in owners.items()
            if owner.epoch > 0 and owner.name != me
        ]
        # Hosts may still take this agent for the owner of a query that it had taken over, and that then started again under another id.
        over = [query for query in queries if query not in records and self._is_over(query, owners[query])]
        unwanted = self._register.unwanted([query for query in queries if query not in records])
        return Unwanted(
            queries=tuple(sorted({*unwanted, *over})),
            operators=self._register.outlived(ask.operators),
            taken=(*mine, *taken),
            retired=self._register.given_up(operator for operator, _ in ask.operators),
        )

    def _is_over(self, query: QueryId, owner: Owner) -> bool:
        """Tells whether a query has ended under this id as far as this agent knows, and no later owner is known."""
        return (
            self._inheriting.promises.is_over(query)
            and not self._register.knows(query)
            and (owner.epoch == 0 or owner.name == self._register.me)
        )

    def disowned(self, by: NodeId, asked: Question, said: Unwanted, instances: Iterable[Instance]) -> list[QueryId]:
        """Takes an agent's answer to `asked`; returns the queries served here that have ended."""
        self._inheriting.doubted(asked.kept, said.queries)
        for query, epoch, owner in ((word.query, word.epoch, word.owner) for word in said.taken):
            # A holder may have taken a version of this agent that never came to count: this agent still keeps the former owner's record.
            is_mine = owner.name == self._register.me and query in self._inheriting.records
            is_asked = query in asked.served or query in asked.kept
            if is_asked and not is_mine and self._register.owners.told(query, Owner(owner.name, owner.boot, epoch), by):
                self._inheriting.owned(query, self._register.owners.of(query).epoch, owner.name)
                passed_on(instances, query, owner.name)
        return sorted(asked.served.intersection(said.queries))


def passed_on(instances: Iterable[Instance], query: QueryId, owner: NodeId) -> tuple[OperatorId, ...]:
    """Enters the new owner of a query at the operators that the query uses here, and returns these."""
    found = [instance for instance in instances if query in instance.users]
    for instance in found:
        instance.users[query] = owner
    return tuple(instance.id for instance in found)
