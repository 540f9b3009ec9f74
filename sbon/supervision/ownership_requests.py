"""Answers other agents' messages about who owns and who keeps a query (docs/recovery.md, Ownership)."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from msgspec.structs import replace

from sbon.errors import AuthorityError, SbonError
from sbon.membership.members import Member
from sbon.ports import Clock
from sbon.supervision import owning
from sbon.supervision.former import Former
from sbon.supervision.inheriting import Attempt, Inheriting
from sbon.supervision.owners import Owner
from sbon.supervision.presence import is_there, owner_is_there
from sbon.supervision.record import QueryRecord
from sbon.supervision.register import Register
from sbon.supervision.succession import ANSWER_S, Finished, Owned
from sbon.types import NodeId, QueryId
from sbon.wire.authority import TABLE
from sbon.wire.messages import Done, Message
from sbon.wire.ownership import Anew, Claims, ClaimsAsk, Forget, Holder, HolderSays, Keep, Own, PromiseAsk, Record
from sbon.wire.replication import Unwanted, WantedAsk
from sbon.wire.requests import Messages


class Owns(Protocol):
    """The queries that this agent owns; implemented by `sbon.supervision.ownership.Ownership`."""

    owned: dict[QueryId, Owned]

    def permit(self, record: QueryRecord, done: Finished) -> None:
        """Has the keepers of a query note that it is about to be changed; `done` gets None once a majority has, or why too few have."""

    def give_up(self, query: QueryId, epoch: int, owner: NodeId) -> None:
        """Gives up a query that another agent owns under this epoch."""

    def give_back(self, version: Record, epoch: int, candidate: Holder) -> None:
        """Promises a query that this agent has owned to a candidate, and keeps its record from now on."""


class OwnershipRequests:
    """Requests about owners and keepers.

    Parameters
    ----------
    save : as for `sbon.supervision.ownership.Ownership`
    """

    def __init__(
        self,
        clock: Clock,
        messages: Messages,
        me: Holder,
        members: Callable[[], Mapping[NodeId, Member]],
        register: Register,
        inheriting: Inheriting,
        former: Former,
        save: Callable[[Callable[[str], None]], None],
        owns: Owns,
    ) -> None:
        self._clock = clock
        self._messages = messages
        self._me = me
        self._members = members
        self._register = register
        self._inheriting = inheriting
        self._former = former
        self._save = save
        self._owns = owns
        self._saves = 0
        """Number of writes of promises to disk that are under way; answers wait for them."""

    def answer(
        self, message: Keep | Forget | PromiseAsk | ClaimsAsk, respond: Callable[[Message], None], *, is_disowned: bool | None = None
    ) -> None:
        """Answers a message of another agent about owners and keepers. The answer waits until new promises are on disk. If this agent
        owns the query, it waits until the query is on disk, too.

        Parameters
        ----------
        is_disowned : whether the owner known so far says that the owner in the message owns the query; None: it has not been asked
        """
        if isinstance(message, Keep) and is_disowned is None:
            query, known = message.record.query, self._register.owners.of(message.record.query)
            if self._is_news(message.record, known):
                self._ask_known(
                    query,
                    message.record.owner,
                    lambda said: self.answer(message, respond, is_disowned=said),
                )
                return
        before = self._inheriting.promises.all
        said: Message
        match message:
            case Keep(record):
                said = self._keep(record, is_disowned=bool(is_disowned))
            case Forget(query, epoch, is_over):
                has_forgotten = self._inheriting.forget(query, epoch, is_over=is_over)
                said = Done() if has_forgotten else HolderSays(granted=False, epoch=self._register.owners.of(query).epoch)
            case PromiseAsk(query, epoch, holder, of, is_anew):
                said = self._promise(Attempt(query, epoch, holder, of or self._me, is_anew))
            case ClaimsAsk(queries):
                owned = tuple(query for query in queries if query in self._owns.owned or query in self._register.running)
                # Of two agents that had both taken the query over and restarted, nobody waits for the one that has promised it away.
                given = {query: self._inheriting.promises.of(query) for query in self._former.inherited}
                promised = {query for query, promise in given.items() if promise is not None and promise.to.name != self._me.name}
                undecided = self._former.inherited.intersection(self._register.undecided) - promised
                kept = tuple(query for query in queries if query in self._inheriting.records or query in undecided)
                ended = [query for query in queries if query not in owned and self._inheriting.promises.is_over(query)]
                over = tuple(query for query in queries if query in self._former.renamed or query in ended)
                anew = {one for query in queries for one in (*self._former.started(query), *self._register.anew(query))}
                anew |= {Anew(one.first, one.query, is_decided=True) for one in self._owns.owned.values() if one.first in queries}
                waits = tuple(query for query in kept if query not in self._inheriting.records)
                claims = Claims(owned=owned, kept=kept, over=over, anew=tuple(sorted(anew)), undecided=waits)
                if over or anew:  # others may forget the query: the next process of this agent must know it, too
                    self._save(lambda problem: respond(claims))
                else:
                    respond(claims)
                return
        # Who hears that this agent is the owner forgets the query: it must be on disk here.
        is_mine = isinstance(said, HolderSays) and said.owner == self._me
        if self._inheriting.promises.all == before and not self._saves and not is_mine:
            respond(said)
            return

        def saved(problem: str) -> None:
            self._saves -= 1
            respond(HolderSays(granted=False, epoch=said.epoch) if problem and isinstance(said, HolderSays) else said)

        self._saves += 1
        self._save(saved)

    def _promise(self, attempt: Attempt) -> HolderSays:
        """Answers whether another agent may own a query: not if this agent owns it, or starts it again.

        An owner whose versions too few keepers take promises like a keeper, because they may have promised the query to each other since.
        """
        query, one = attempt.query, self._owns.owned.get(attempt.query)
        known = self._register.owners.of(query)
        if one is not None and one.machine.phase is owning.Phase.CUT_OFF and not attempt.is_anew:
            if attempt.epoch <= one.machine.epoch:
                return HolderSays(granted=False, epoch=one.machine.epoch)
            self._owns.give_up(query, attempt.epoch, attempt.candidate.name)
            said = self._promise(attempt)
            if (version := one.machine.confirmed or one.inherited or one.machine.latest) is not None:
                self._owns.give_back(version, attempt.epoch, attempt.candidate)
            return said
        if query in self._owns.owned or query in self._register.running:
            return HolderSays(granted=False, epoch=known.epoch, owner=self._me)
        if query in self._former.anew:
            return HolderSays(granted=False, epoch=self._former.anew[query], owner=self._me)
        # This agent itself has given the query up, if it was the owner known so far.
        is_known = known.name not in (attempt.candidate.name, self._me.name)
        is_first = known.epoch == 0  # known from the id only: that owner may be gone for good without having been a member since
        if attempt.is_anew and is_known and (not is_first or (self._inheriting.remembers and owner_is_there(self._members(), known))):
            owner = Holder(known.name, known.boot or 0) if known.epoch > 0 else None
            return HolderSays(granted=False, epoch=known.epoch, owner=owner)
        last = self._inheriting.last_owner(query)
        if known.epoch > 0 and known.boot is not None and (last is None or known.epoch > last[0]) and known.name != attempt.candidate.name:
            last = known.epoch, Holder(known.name, known.boot)
        first = None if last is None else last[1]
        there = first is not None and first not in (self._me, attempt.candidate) and is_there(self._members(), self._me, first)
        return self._inheriting.promise(attempt, is_owner_there=there)

    def heard(self, message: Own, done: Finished) -> None:
        """Records that an agent owns a query from now on; `done` gets None, or why that is not believed.

        If the owner known so far is there, it is asked whether it still owns the query. If this agent is that owner, it asks its keepers.
        """
        query, known = message.query, self._register.owners.of(message.query)
        record = self._register.running.get(query)
        refusal = AuthorityError(f"{known.name} owns {query}, and is there; a new owner says so: {TABLE[Own].who}")

        def believe(is_true: bool, by: NodeId = message.owner.name) -> None:
            if message.owner != self._me and (not is_true or query in self._owns.owned or query in self._register.running):
                done(refusal)
                return
            if self._register.owners.told(query, Owner(message.owner.name, message.owner.boot, message.epoch), by):
                self._inheriting.owned(query, self._register.owners.of(query).epoch, message.owner.name)
                if message.owner != self._me:
                    self._owns.give_up(query, message.epoch, self._register.owners.of(query).name)
            done(None)

        if message.owner == self._me or message.owner.name == known.name:
            believe(True)
        elif query in self._owns.owned or query in self._register.running:
            if record is None:
                done(refusal)
            else:
                self._owns.permit(record, lambda problem: self._clock.call_soon(partial(believe, True)))
        elif known.name != self._me.name and owner_is_there(self._members(), known):
            self._ask_known(query, message.owner, partial(believe, by=known.name))
        else:
            believe(True)

    def _keep(self, record: Record, *, is_disowned: bool) -> HolderSays:
        known = self._register.owners.of(record.query)
        is_mine = record.query in self._owns.owned or (known.name == self._me.name and record.query in self._register.running)
        is_others = record.epoch == known.epoch > 0 and known.name != record.owner.name
        if is_mine or is_others or (not is_disowned and self._is_news(record, known)):
            said = HolderSays(granted=False, epoch=known.epoch)
        else:
            said = self._inheriting.keep(record)
        if not said.granted and known.epoch == said.epoch > 0:
            said = replace(said, owner=Holder(known.name, known.boot or 0))
        if said.granted and record.epoch > known.epoch:
            self._register.owners.heard(record.query, Owner(record.owner.name, record.owner.boot, record.epoch))
            self._owns.give_up(record.query, record.epoch, self._register.owners.of(record.query).name)
        return said

    def _is_news(self, record: Record, known: Owner) -> bool:
        """Tells whether a version is from a new owner that has no promise of this agent, while the owner known so far is there."""
        is_new = record.epoch > known.epoch and not self._inheriting.has_promised(record) and record.owner.name != known.name
        return is_new and known.name != self._me.name and owner_is_there(self._members(), known)

    def _ask_known(self, query: QueryId, owner: Holder, done: Callable[[bool], None]) -> None:
        """Asks the owner known so far, which is there, whether `owner` owns the query by now.

        If it names a third process, that one is the known owner from now on, and is asked when `owner` claims the query again.
        """

        def asked(result: Message | SbonError) -> None:
            words = [word for word in result.taken if word.query == query] if isinstance(result, Unwanted) else []
            for word in words:
                if word.owner != owner:
                    self._register.owners.heard(query, Owner(word.owner.name, word.owner.boot, word.epoch))
            done(any(word.owner == owner for word in words))

        self._messages.request(self._register.owners.of(query).name, WantedAsk(queries=(query,)), asked, ANSWER_S)
