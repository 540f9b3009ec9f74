"""Asks the homes of the queries with operators on this host which queries are over, and releases those.

Otherwise operators would run for ever after a lost release, or after a restart of their home, whose new process does not know its former
queries. The periodic work of the agent asks all homes; a home that has come back is asked at once. If a query's owner is gone, perhaps
right after the query had ended, all agents are asked: those that kept the query's record remember the end.
"""

from collections.abc import Callable
from functools import partial

import structlog

from sbon.errors import SbonError
from sbon.execution.crossing import give_up
from sbon.execution.operators import Operators
from sbon.peers.directory import Directory
from sbon.queries.homes import Homes
from sbon.queries.queries import OwnedQueries
from sbon.supervision.wanted_questions import Question, questions
from sbon.types import NodeId, QueryId
from sbon.wire.authority import query_of
from sbon.wire.messages import Message
from sbon.wire.ownership import Claims
from sbon.wire.replication import Unwanted


class Wanted:
    """Asks whether the operators of one host are still wanted.

    Parameters
    ----------
    inherits : tells whether other agents take queries over
    """

    def __init__(
        self, directory: Directory, operators: Operators, homes: Homes, queries: OwnedQueries, inherits: Callable[[], bool]
    ) -> None:
        self._directory = directory
        self._operators = operators
        self._homes = homes
        self._queries = queries
        self._inherits = inherits
        self._log = structlog.get_logger("agent", node=directory.me)

    def ask(self, owner: NodeId | None = None) -> None:
        """Asks all homes, or one."""
        kept = self._queries.ownership.inheriting.kept_for()
        owners = self._queries.register.owners
        asked = questions(self._operators.instances.values(), owners, kept, self._to_ask, owner)
        for taker, question in sorted(asked.items()):
            self._directory.request(taker, question.message, partial(self._answered, taker, question))
        if owner is None and self._inherits():
            self._queries.ownership.former.ask(sorted(self._homes.without_owner()), self._told)

    def _told(self, found: Claims) -> None:
        """Releases queries that have ended according to the keepers of their records, unless their owners are back."""
        for query in sorted(self._homes.without_owner().intersection(found.over).difference(found.owned)):
            self._release(query)

    def _release(self, query: QueryId) -> None:
        destroyed = self._operators.release(query)
        self._log.info("query.released", query=query, operators=destroyed)

    def _to_ask(self, query: QueryId, told: NodeId) -> NodeId | None:
        return self._homes.to_ask(query, told, inherits=self._inherits())

    def _answered(self, taker: NodeId, asked: Question, result: Message | SbonError) -> None:
        if not isinstance(result, Unwanted):
            return
        instances = self._operators.instances
        for query in self._queries.ownership.wanted_questions.disowned(taker, asked, result, instances.values()):
            told = next((instance.users[query] for instance in instances.values() if query in instance.users), taker)
            if self._to_ask(query, told) is None:  # the home has restarted since it was asked: its next process has answered
                continue
            self._release(query)
        for operator in result.retired:
            give_up(self._operators, operator, query_of(operator))
        for operator, epoch in result.operators:
            found = instances.get(operator)
            if found is not None and found.epoch == epoch:
                self._log.info("operator.outlived", operator=operator, epoch=epoch)
                self._operators.destroy(operator)
