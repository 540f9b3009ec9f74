"""Finds out what has become of queries that a former process of this agent owned, or that seem to have no owner. Asks all agents who owns
or keeps them, and carries out claims (`sbon.supervision.claiming`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

from sbon.errors import LinkError, SbonError
from sbon.membership.members import Member, MemberStatus
from sbon.supervision.claiming import Claiming, Outcome
from sbon.supervision.inheriting import Inheriting
from sbon.supervision.owners import Owner, Owners
from sbon.supervision.presence import has_ended
from sbon.supervision.resumption import KeptQuery
from sbon.supervision.succession import ANSWER_S
from sbon.types import NodeId, QueryId
from sbon.wire.messages import Message
from sbon.wire.ownership import Anew, Claims, ClaimsAsk, Holder, PromiseAsk
from sbon.wire.requests import Messages

Holders = tuple[tuple[Holder, ...], ...]
"""Sets of holders of a record; a majority of each set must agree."""

UNKNOWN_ROUNDS = 3
"""Rounds in succession in which all agents must say that they have nothing of a query before it counts as nobody's."""

AskOwners = Callable[[Iterable[QueryId], Callable[[Claims], None]], None]
"""Asks all agents which queries they own or keep."""


class Former:
    """Queries of former processes of one agent.

    Parameters
    ----------
    save : as for `sbon.supervision.ownership.Ownership`
    owners : hears that this agent owns the queries that it starts again, so that the operators of a former owner are ended
    """

    def __init__(
        self,
        messages: Messages,
        me: Holder,
        members: Callable[[], Mapping[NodeId, Member]],
        inheriting: Inheriting,
        save: Callable[[Callable[[str], None]], None],
        owners: Owners,
    ) -> None:
        self._messages = messages
        self._me = me
        self._members = members
        self._inheriting = inheriting
        self._save = save
        self._owners = owners
        self.anew: dict[QueryId, int] = {}
        """Queries of a former process that this one starts again, with the epochs of the claims."""
        self.renamed: set[QueryId] = set()
        """Former ids of the queries that this process runs, or is about to run, under new ids."""
        self._started: dict[QueryId, QueryId] = {}
        """The new ids of these queries, by the ids under which they were submitted."""
        self.inherited: frozenset[QueryId] = frozenset()
        """Queries of other agents that a former process had taken over, as long as their owner is unknown."""
        self._present: frozenset[tuple[NodeId, int]] = frozenset()
        """The processes that were asked in the last round."""
        self._unknown: dict[QueryId, int] = {}
        """Rounds in succession in which all agents have said that they have nothing of a query."""

    def runs_anew(self, query: KeptQuery, *, lives_on: bool) -> None:
        """Records that this process runs a query of a former process under a new id. Another agent that has owned the query, and restarts
        later, must not run it, too.

        Parameters
        ----------
        query : the query with its new id
        lives_on : whether operators may live on under the former id, because other queries use them
        """
        self.renamed.add(query.former)
        self._started[query.first] = query.id
        if not lives_on:
            self._inheriting.ended(query.former)

    def started(self, first: QueryId) -> Iterator[Anew]:
        """Yields the query that was submitted under this id, if this process has started it again."""
        if first in self._started:
            yield Anew(first, self._started[first], is_decided=True)

    def claims(
        self,
        queries: Mapping[QueryId, Holders],
        firsts: Mapping[QueryId, QueryId],
        done: Callable[[Mapping[QueryId, Outcome]], None],
        is_undecided: Callable[[QueryId], bool] = lambda query: True,
    ) -> None:
        """Asks what has become of queries of a former process of this agent.

        Asks all living agents which of the queries they own or keep, then the holders of the other queries' records for their promise.

        Parameters
        ----------
        queries : the holders of each query's record
        firsts : the ids under which the queries were submitted that are to start again
        is_undecided : tells whether a query still waits for its outcome, as nobody else has become its owner since, or has dropped it
        """

        self.inherited = frozenset(query for query in queries if query.partition(".")[0] != self._me.name)
        silent = {member.name for member in self._members().values() if member.status is not MemberStatus.LEFT}
        present = frozenset((member.name, member.boot) for member in self._members().values() if member.reachable)

        def told(found: Claims) -> None:
            # If only this agent held a record, nobody else has a valid one.
            # Of agents that had taken a query over and restarted, none waits for another: the holders promise the query to one of them.
            unsettled = self.inherited.intersection(found.undecided).difference(found.owned)
            kept = {query: Outcome.KEPT for query in {*found.owned, *found.kept} - unsettled if queries.get(query)}
            kept |= dict.fromkeys(set(found.over).intersection(queries), Outcome.OVER)
            rivals = {query: outcome for query, first in firsts.items() if (outcome := rival(query, first, found)) is not None}
            kept |= {query: outcome for query, outcome in rivals.items() if query not in kept or outcome is Outcome.OVER}
            for one in found.anew:  # a former process of this agent may have ended the id under which the query runs
                if one.is_decided and any(first == one.first and kept.get(query) is Outcome.OVER for query, first in firsts.items()):
                    self._inheriting.promises.lives(one.id)
            unknown = set(queries).difference(kept, unsettled) if not silent else set[QueryId]()
            # An agent that has just returned may be about to run the query: it takes part in as many rounds as the others.
            rounds = self._unknown if present == self._present else {}
            self._present = present
            self._unknown = {query: rounds.get(query, 0) + 1 for query in unknown}
            self._claim(
                {query: sets for query, sets in queries.items() if query not in kept and is_undecided(query)}, kept, decided, is_undecided
            )

        def decided(found: Mapping[QueryId, Outcome]) -> None:
            self.inherited = frozenset(query for query in self.inherited if found.get(query) in (Outcome.KEPT, Outcome.UNHEARD))
            done(found)

        self.ask({*queries, *firsts.values()}, told, silent.discard)

    def over(self, firsts: Mapping[QueryId, QueryId], done: Callable[[Mapping[QueryId, bool]], None]) -> None:
        """Asks all living agents which queries have ended, before this agent takes them over.

        A former owner may have started a query again under a new id and crashed: then a majority of the holders may not know of it, and
        promise the query under its former id.

        Parameters
        ----------
        firsts : the queries, with the ids under which they were submitted
        done : called with the queries that have ended; False: an agent that says so is about to start the query again, or to forget it
        """

        def told(found: Claims) -> None:
            over: dict[QueryId, bool] = {}
            for query, first in firsts.items():
                others = [one.is_decided for one in found.anew if one.first == first and one.id != query]
                if query not in found.owned and (query in found.over or any(others)):
                    over[query] = all(others)
            done(over)

        self.ask({*firsts, *firsts.values()}, told)

    def ask(self, queries: Iterable[QueryId], done: Callable[[Claims], None], heard: Callable[[NodeId], None] = lambda node: None) -> None:
        """Asks all living agents, including this one, which of these queries they own or keep, and which they know to have ended.

        Parameters
        ----------
        heard : called with each agent that has answered
        """
        asked = ClaimsAsk(queries=tuple(sorted(queries)))
        waiting = {member.name for member in self._members().values() if member.reachable}
        owned, kept, over, anew = set[QueryId](), set[QueryId](), set[QueryId](), set[Anew]()
        records = set[QueryId]()
        """Queries that some agent keeps for certain."""

        def answered(node: NodeId, result: Message | SbonError) -> None:
            waiting.discard(node)
            if isinstance(result, Claims):
                heard(node)
                owned.update(result.owned)
                kept.update(result.kept if node != self._me.name else self._inheriting.records.keys() & result.kept)
                records.update(set(result.kept).difference(result.undecided))
                over.update(result.over)
                anew.update(result.anew)
            if not waiting:
                names = [tuple(sorted(queries)) for queries in (owned, kept, over, kept - records)]
                done(Claims(names[0], names[1], names[2], tuple(sorted(anew)), undecided=names[3]))

        if not asked.queries:
            done(Claims(owned=(), kept=()))
            return
        for node in sorted(waiting):
            self._messages.request(node, asked, partial(answered, node), ANSWER_S)

    def _claim(
        self,
        queries: Mapping[QueryId, Holders],
        known: dict[QueryId, Outcome],
        done: Callable[[Mapping[QueryId, Outcome]], None],
        is_undecided: Callable[[QueryId], bool],
    ) -> None:
        """Asks the holders for their promise, where nobody owns or keeps a query."""
        found = dict(known)
        ended = partial(has_ended, self._members())
        claims = [Claiming(query, sets, self._me.name, self._inheriting.claim(query), ended) for query, sets in queries.items()]
        waiting = {claim.query for claim in claims}

        def look(claim: Claiming) -> None:
            if claim.outcome is None or claim.query not in waiting:
                return
            waiting.discard(claim.query)
            is_ours = self._inheriting.promises.is_latest(claim.query, claim.epoch, self._me) and is_undecided(claim.query)
            is_nobodys = claim.outcome is Outcome.KEPT and self._unknown.get(claim.query, 0) >= UNKNOWN_ROUNDS
            outcome = Outcome.FREE if is_nobodys else claim.outcome
            found[claim.query] = Outcome.KEPT if outcome is Outcome.FREE and not is_ours else outcome
            if found[claim.query] is Outcome.FREE:
                self.anew[claim.query] = claim.epoch
                self._owners.heard(claim.query, Owner(self._me.name, self._me.boot, claim.epoch))
            if not waiting:
                done(found)

        def answered(claim: Claiming, holder: Holder, result: Message | SbonError) -> None:
            claim.answered(holder, result)
            look(claim)

        def ask(problem: str) -> None:
            for claim in claims:
                for holder in claim.asked:
                    message = PromiseAsk(query=claim.query, epoch=claim.epoch, holder=self._me, of=holder, is_anew=True)
                    if problem:
                        answered(claim, holder, LinkError(problem))
                    else:
                        self._messages.request(holder.name, message, partial(answered, claim, holder), ANSWER_S)
                look(claim)

        if not claims:
            done(found)
            return
        self._save(ask)


def rival(query: QueryId, first: QueryId, found: Claims) -> Outcome | None:
    """Returns the outcome for a query of a former process of this agent that another agent runs, or may run, under a third id: both had it
    on their disks, and each came back while the other was away. None: there is no such agent.

    If both have restarted, and neither has decided yet, the lesser id comes first. The agent with the other id waits. It does not forget
    the query, as some agent may know that the lesser id is over.
    """
    others = [one for one in found.anew if one.first == first and one.id != query]
    if any(one.is_decided for one in others):
        return Outcome.OVER
    return Outcome.KEPT if any(one.id < query for one in others) else None
