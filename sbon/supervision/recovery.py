"""Recovery: makes lost operators of a query again, after a crash of their hosts. A machine without I/O, one for each query.

A recovery is a migration whose old host is silent: the operator's neighbours are asked for what the old host would have said about its
links (docs/recovery.md).

    waiting     nothing is lost, or nothing that is lost can be made again now
    placing     hosts are being chosen for movable operators
    fencing     the living neighbours turn their ends of the links to the new hosts, consumers first, and say how far they are
    making      the hosts make the operators, consumers first
    beginning   sinks may take rows
    paused      an attempt has failed; the next one follows after a pause

Each attempt has its own epoch, of a higher generation than that of any earlier copy, and the ids of its links contain that generation. So
a lost copy, or a copy that a failed attempt has made, has no links, and ends itself when it asks its home (`WantedAsk`).

Rows and states that nobody has any more count as lost once operators are about to be made without them. This is written down before
(`Lose`), because the query may end, or get another owner, before an attempt succeeds.

Invariant: once a neighbour has turned an end away from an operator, or a host has been told to make it, the operator counts as lost until
an attempt has made all of its operators. The neighbours of a copy from a failed attempt have no links to it.
"""

import math
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import TypeAlias

import msgspec

from sbon.errors import LocalProtocolError, SbonError, UnsupportedError
from sbon.links.ends import pause_s
from sbon.links.link_names import first_name, renewals, renewed
from sbon.query.plan import LinkSpec
from sbon.supervision.continuation import Continuation
from sbon.supervision.generations import GENERATION, generation, next_generation
from sbon.supervision.recovery_attempt import Attempt, Step
from sbon.supervision.recovery_picture import Picture, makeable, may_be_elsewhere
from sbon.types import LinkId, NodeId, OperatorId, QueryId
from sbon.wire.deployment import Begin, Instantiate, LeaveOut, Renew, Renewed, User
from sbon.wire.messages import Message


class Phase(Enum):
    """States of a recovery."""

    WAITING = "waiting"
    PLACING = "placing"
    FENCING = "fencing"
    MAKING = "making"
    BEGINNING = "beginning"
    PAUSED = "paused"


class Event(Enum):
    """Events that change the phase of a recovery."""

    LOST = "lost"
    """Lost operators can be made again now."""
    PLACED = "placed"
    FAILED = "failed"
    """No host was found, a host has refused, or more operators were lost."""
    ANSWERED = "answered"
    """One of several hosts has answered."""
    FENCED = "fenced"
    MADE = "made"
    BEGUN = "begun"


TABLE: dict[tuple[Phase, Event], Phase] = {
    (Phase.WAITING, Event.LOST): Phase.PLACING,
    (Phase.PAUSED, Event.LOST): Phase.PLACING,
    (Phase.PLACING, Event.PLACED): Phase.FENCING,
    (Phase.PLACING, Event.FAILED): Phase.PAUSED,
    (Phase.FENCING, Event.ANSWERED): Phase.FENCING,
    (Phase.FENCING, Event.FENCED): Phase.MAKING,
    (Phase.FENCING, Event.FAILED): Phase.PAUSED,
    (Phase.MAKING, Event.ANSWERED): Phase.MAKING,
    (Phase.MAKING, Event.MADE): Phase.BEGINNING,
    (Phase.MAKING, Event.FAILED): Phase.PAUSED,
    (Phase.BEGINNING, Event.ANSWERED): Phase.BEGINNING,
    (Phase.BEGINNING, Event.BEGUN): Phase.WAITING,
    (Phase.BEGINNING, Event.FAILED): Phase.PAUSED,
}
"""The next phase, by the present one and the event. Other pairs raise LocalProtocolError."""


class Place(msgspec.Struct, frozen=True):
    """Choose hosts for the unpinned ones of these operators; all others stay where they are. Then call `Recovery.placed`."""

    attempt: int
    operators: frozenset[OperatorId]
    excluded: frozenset[NodeId]
    """Hosts that count as full."""


class Ask(msgspec.Struct, frozen=True):
    """Send a host its step; then call `Recovery.answered`."""

    step: Step


class Recovered(msgspec.Struct, frozen=True):
    """Lost operators run again, or are about to be made (`Lose`)."""

    nodes: Mapping[OperatorId, NodeId]
    epoch: int
    links: tuple[LinkSpec, ...]
    """Links of these operators, with their present ids."""
    go_on: Mapping[OperatorId, Continuation]
    attempts: int
    seconds: float
    """Time since the first of these operators was lost."""
    over: frozenset[OperatorId] = frozenset()
    """Lost operators that are not made again, because all their consumers have had everything."""
    is_open: bool = False
    """True while the operators are being made."""
    is_rerun: bool = False
    """True if they are all operators of the query, and get all its rows once more (`sbon.supervision.rerun`)."""


class Lose(msgspec.Struct, frozen=True):
    """Write down the losses in `found` before doing any other of these actions: the attempt is about to make operators without the lost
    rows and states. Call `Recovery.denied` if the losses cannot be written down."""

    attempt: int
    found: Recovered


Action: TypeAlias = Place | Ask | Lose | Recovered


class Recovery:
    """Recoveries of one query, one after the other.

    Parameters
    ----------
    turned : operators in an attempt of a former owner; their neighbours may have turned away from them
    """

    def __init__(
        self,
        query: QueryId,
        user: User,
        turned: Iterable[OperatorId] = (),
    ) -> None:
        self.phase = Phase.WAITING
        self.reason = ""
        """Why lost operators do not run yet; empty if none is lost."""
        self._query = query
        self._user = user
        self._attempt = 0
        self._tries = 0
        """Number of successive attempts that have failed."""
        self._due_s: float | None = None
        self._since_s: float | None = None
        self._away_since_s: dict[OperatorId, float] = {}
        self._turned: set[OperatorId] = set(turned)
        """Operators from which a neighbour may have turned away."""
        self._excluded: set[NodeId] = set()
        self._tried: dict[OperatorId, int] = {}
        """Rows of the file position that an attempt has used for a source. If it fails, the next attempt reads the file from the first
        row."""
        self._unable: set[OperatorId] = set()
        """Operators on hosts of older releases, which cannot be told what to leave out."""
        self._left: set[LinkId] = set()
        """Links that have been given up, and that their sources could not begin again in an earlier attempt."""
        self.epoch = 0
        """The epoch of the present attempt, or of the latest one."""
        self._picture: Picture | None = None
        self._at = self._new_attempt()

    @property
    def is_under_way(self) -> bool:
        """True while an attempt is being made."""
        return self.phase not in (Phase.WAITING, Phase.PAUSED)

    @property
    def is_active(self) -> bool:
        """True while an attempt is being made, or follows after a pause."""
        return self.phase is not Phase.WAITING

    @property
    def operators(self) -> frozenset[OperatorId]:
        """Operators that are being made again, or must be."""
        return self._at.operators | self._turned

    # -------------------------------------------------------------------------------------------------------- events

    def look(self, picture: Picture, now: float) -> list[Action]:
        """Takes the present picture of the query; call it when something has changed, or a pause may be over."""
        self._picture = picture
        self._away_since_s = {operator: self._away_since_s.get(operator, now) for operator in picture.away}
        lost = picture.lost | self._turned
        if not lost:
            if self.phase in (Phase.WAITING, Phase.PAUSED):
                self._rest()
                return []
            if self.phase is not Phase.PLACING:
                return []
            self._fail("it is back", now)
            self._rest()
            return []
        if self._since_s is None:
            self._since_s = now
        if self.is_under_way:
            gone = [node for node in {*self._at.nodes.values()} if node not in picture.alive]
            is_back = self.phase is Phase.PLACING and not self._at.operators <= lost
            if not gone and lost <= self._at.lost and not is_back:
                return []
            why = f"{', '.join(sorted(gone))} has gone, too" if gone else "it is back" if is_back else "more was lost meanwhile"
            self._fail(why, now, hurry=True)
        if self.phase is Phase.PAUSED and self._due_s is not None and now < self._due_s:
            return []
        return self._begin(picture, lost, now)

    def must_make(self, operators: Iterable[OperatorId]) -> None:
        """Takes operators that are to be made again although they run."""
        self._turned.update(operators)

    def hurry(self, now: float) -> None:
        """Ends a pause, because a node has come back or has gone."""
        if self.phase is Phase.PAUSED:
            self._due_s = now

    def placed(self, attempt: int, result: Mapping[OperatorId, NodeId] | SbonError, now: float) -> list[Action]:
        """Takes the hosts that were chosen, or why there are none."""
        if attempt != self._attempt or self.phase is not Phase.PLACING:
            return []
        if isinstance(result, SbonError):
            self._excluded.clear()
            return self._fail(str(result), now)
        self._turn(Event.PLACED)
        self._at.nodes = {operator: result[operator] for operator in self._at.operators}
        assert self._picture is not None
        self._at.stages = self._at.ask_consumers(self._picture)
        return self._next_stage(now)

    def is_at(self, attempt: int) -> bool:
        """Tells whether this attempt is still being made."""
        return attempt == self._attempt and self.is_under_way

    def denied(self, attempt: int, problem: SbonError, now: float) -> list[Action]:
        """Ends an attempt whose losses cannot be written down."""
        return self._fail(str(problem), now) if self.is_at(attempt) else []

    def answered(self, step: Step, result: Message | SbonError, now: float) -> list[Action]:
        """Takes a host's answer to a step; answers to earlier attempts change nothing."""
        if not self.is_at(step.attempt):
            return []
        if isinstance(result, SbonError):
            if isinstance(step.message, Begin) and self._at.tries_left > 0:
                self._at.tries_left -= 1
                self._turn(Event.ANSWERED)
                return [Ask(step)]
            if isinstance(step.message, Renew) and step.message.begins is True:
                self._left.add(first_name(step.message.end.link.id))
            if isinstance(step.message, LeaveOut) and isinstance(result, UnsupportedError):
                self._unable.add(step.message.operator)
            if isinstance(step.message, Instantiate) and isinstance(result, UnsupportedError):
                self._unable.add(step.message.spec.id)
            if isinstance(step.message, Instantiate) and step.message.spec.pinned is None:
                self._excluded.add(step.node)
            return self._fail(f"{step.node}: {result}", now)
        if isinstance(step.message, Renew):
            if not isinstance(result, Renewed):
                return self._fail(f"{step.node} answers with {type(result).__name__}, expected Renewed", now)
            answers = self._at.feeders if step.message.gives else self._at.consumers
            answers[first_name(result.link.id)] = result
        self._at.waiting -= 1
        if self._at.waiting:
            self._turn(Event.ANSWERED)
            return []
        return self._next_stage(now)

    def wake(self, now: float) -> list[Action]:
        """Begins the next attempt when a pause is over."""
        if self.phase is not Phase.PAUSED or self._due_s is None or now < self._due_s or self._picture is None:
            return []
        return self.look(self._picture, now)

    def next_wake(self) -> float | None:
        """Returns when `look` is to be called again at the latest; None: not before something has changed."""
        return None if self.is_under_way else self._due_s

    # ------------------------------------------------------------------------------------------------------ attempts

    def _begin(self, picture: Picture, lost: frozenset[OperatorId], now: float) -> list[Action]:
        due_s = {
            one: since_s + (picture.rules.shared_after_s if picture.users.get(one) else picture.rules.after_s)
            for one, since_s in self._away_since_s.items()
            if may_be_elsewhere(picture, one)
        }
        spared = frozenset(one for one in picture.away if due_s.get(one, math.inf) > now)
        chosen, waits_for = makeable(picture, lost, spared)
        if not chosen:
            self.phase, self._at, self.reason = Phase.WAITING, self._new_attempt(), waits_for
            self._due_s = min((when_s for when_s in due_s.values() if when_s > now), default=None)
            return []
        self._turn(Event.LOST)
        self._attempt += 1
        self.reason, self._due_s = "hosts are being chosen", None
        links = [link for link in picture.links if link.source in chosen or link.target in chosen]
        known = [picture.epochs.get(operator, 0) for operator in chosen] + [renewals(link.id) * GENERATION for link in links]
        self.epoch = next_generation(max([self.epoch, picture.attempted, *known]))
        self._at = self._new_attempt(chosen, lost)
        for link in links:
            self._at.links[first_name(link.id)] = msgspec.structs.replace(link, id=renewed(link.id, generation(self.epoch)))
        return [Place(self._attempt, chosen, frozenset(self._excluded))]

    def _new_attempt(self, operators: frozenset[OperatorId] = frozenset(), lost: frozenset[OperatorId] = frozenset()) -> Attempt:
        return Attempt(self._attempt, self._query, self._user, self.epoch, operators, lost, left=frozenset(self._left))

    def _next_stage(self, now: float) -> list[Action]:
        assert self._picture is not None
        if not self._at.stages and self.phase is Phase.FENCING and not self._at.asks_feeders:
            if not self._at.operators <= makeable(self._picture, self._at.lost)[0]:
                return self._fail("all that feeds one of its operators is away now", now, hurry=True)
            self._at.stages = self._at.ask_feeders(self._picture)
        actions: list[Action] = []
        if not self._at.stages and self.phase is Phase.FENCING:
            self._at.decide(self._picture, self._tried, self._unable)
            if not self._at.is_rerun and self._at.wants_rerun(self._picture):
                waits_for = makeable(self._picture, self._picture.specs)[1]
                if not waits_for:
                    self._turned |= self._picture.specs.keys()
                    return self._fail("all operators are made again, from the first rows of the query's files", now, hurry=True)
                if self._since_s is not None and now - self._since_s < self._picture.rules.rerun_wait_s:
                    return self._fail(f"all operators are to be made again, but {waits_for}", now)
            self._turn(Event.FENCED)
            self._at.stages = self._at.make(self._picture)
            self._tried.update((one, position.rows) for one, position in self._at.positions.items())
            if self._at.stages:
                actions = [Lose(self._attempt, self._found(now))]
        if not self._at.stages and self.phase is Phase.MAKING:
            self._turn(Event.MADE)
            self._at.stages = self._at.begin(self._picture)
        if not self._at.stages:
            return self._recovered(now)
        stage = self._at.stages.pop(0)
        self._at.waiting = len(stage)
        self.reason = {
            Phase.FENCING: f"its neighbours on {_named(stage)} are being asked how far they are",
            Phase.MAKING: f"{len(self._at.operators)} operators are being made again on {_named(stage)}",
            Phase.BEGINNING: f"its sink on {_named(stage)} is about to take rows",
        }[self.phase]
        self._turned |= self._at.operators
        return [*actions, *(Ask(step) for step in stage)]

    def _recovered(self, now: float) -> list[Action]:
        self._turn(Event.BEGUN)
        links = []
        for name, link in self._at.links.items():
            answer = self._at.consumers.get(name) or self._at.feeders.get(name)
            links.append(link if answer is None else msgspec.structs.replace(link, id=answer.link.id))
        done = msgspec.structs.replace(self._found(now), links=tuple(links), over=self._at.over)
        self._turned -= self._at.operators | self._at.over
        for operator in self._at.positions:
            self._tried.pop(operator, None)
        self._rest()
        return [done]

    def _found(self, now: float) -> Recovered:
        since_s = now if self._since_s is None else self._since_s
        nodes = {operator: self._at.nodes[operator] for operator in self._at.operators}
        return Recovered(nodes, self.epoch, (), dict(self._at.go_on), self._tries + 1, now - since_s, is_rerun=self._at.is_rerun)

    def _fail(self, reason: str, now: float, *, hurry: bool = False) -> list[Action]:
        self._turn(Event.FAILED)
        self._attempt += 1  # answers that are still to come are those of an attempt that is over
        self._tries += 1
        self._due_s = now if hurry else now + pause_s(self._tries)
        self.reason = f"the recovery is tried again: {reason}"
        self._at.nodes, self._at.stages = {}, []
        return []

    def _rest(self) -> None:
        self.phase, self._due_s, self._since_s, self._tries = Phase.WAITING, None, None, 0
        self._at, self.reason = self._new_attempt(), ""
        self._excluded.clear()
        self._unable.clear()
        self._left.clear()

    def _turn(self, event: Event) -> None:
        after = TABLE.get((self.phase, event))
        if after is None:
            raise LocalProtocolError(f"a recovery that is {self.phase.value} cannot take: {event.value}")
        self.phase = after


def _named(stage: Iterable[Step]) -> str:
    return ", ".join(sorted({step.node for step in stage}))
