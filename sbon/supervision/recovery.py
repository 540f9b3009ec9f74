"""Recovery: makes the operators of a query again that were lost with their hosts. A machine without I/O, one for each query.

A recovery is a migration whose old host is silent: what the old host would have said of the operator's links is asked of its neighbours
(docs/recovery.md).

    waiting     nothing is lost, or nothing of it can be made again now
    placing     hosts are being chosen for what may move
    fencing     the living neighbours turn their ends of the links to the new hosts, consumers first, and say how far they are
    making      the hosts make the operators, consumers first
    beginning   sinks may take rows
    paused      an attempt has failed; the next one follows after a pause

Each attempt has an epoch of its own, of a higher generation than any copy before, and its links are named after that. So whatever an
attempt or a lost copy has left behind has no links, and ends itself when it asks (`WantedAsk`).

What nobody has any more is lost once operators are about to be made without it; it is written down before that (`Lose`), as the query may
end, or get another owner, before an attempt succeeds.

Invariant: once a neighbour has turned an end away from an operator, or a host has been told to make it, the operator counts as lost until
an attempt has made all of its operators: what a failed attempt has made is not what its neighbours mean.
"""

import math
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import TypeAlias

import msgspec

from sbon.errors import LocalProtocolError, SbonError
from sbon.links.ends import pause_s
from sbon.query.plan import WATERMARK_END, LinkSpec, OperatorSpec, SessionParams, SinkParams, WindowParams, first_name, renewals, renewed
from sbon.query.schema import Schema
from sbon.supervision.continuation import Continuation, begins_with, continuations, taken_up
from sbon.supervision.once_more import files_away, from_zero, is_table
from sbon.types import LinkId, NodeId, OperatorId, QueryId
from sbon.wire.deployment import Begin, End, Instantiate, Renew, Renewed, User
from sbon.wire.messages import Message

GENERATION = 2**16
"""Epochs of one generation: a migration raises the epoch by one, a recovery to the next multiple."""
GENERATIONS = 2**16
"""Generations of one owner of a query: the next owner begins above them, whatever of them it has heard of."""
BEGIN_TRIES = 3
"""Number of times that a Begin is sent in one attempt."""


def generation(epoch: int) -> int:
    """Returns how often an operator with this epoch has begun anew.

    Examples
    --------
    >>> generation(7), generation(next_generation(7)), next_generation(65_536)
    (0, 1, 131072)
    """
    return epoch // GENERATION


def next_generation(epoch: int) -> int:
    """Returns the first epoch of the next generation."""
    return (generation(epoch) + 1) * GENERATION


def first_epoch(ownership: int) -> int:
    """Returns the epoch above which the generations of an owner of a query begin: no two owners use the same one.

    Examples
    --------
    >>> first_epoch(0), generation(first_epoch(2))
    (0, 131072)
    """
    return ownership * GENERATIONS * GENERATION


class Phase(Enum):
    """States of a recovery, by what it waits for."""

    WAITING = "waiting"
    PLACING = "placing"
    FENCING = "fencing"
    MAKING = "making"
    BEGINNING = "beginning"
    PAUSED = "paused"


class Event(Enum):
    """Events that change the step of a recovery."""

    LOST = "lost"
    """Something is lost that can be made again now."""
    PLACED = "placed"
    FAILED = "failed"
    """No host was found, a host has refused, or something else was lost meanwhile."""
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
"""The next phase, by the present one and the event. Other pairs are errors of ours."""


class Picture(msgspec.Struct, frozen=True):
    """The knowledge of a query at its home, at one moment."""

    specs: Mapping[OperatorId, OperatorSpec]
    """The operators that were made for the query, upstream first."""
    links: tuple[LinkSpec, ...]
    nodes: Mapping[OperatorId, NodeId]
    """Last known hosts of these operators, and of others that the query uses."""
    epochs: Mapping[OperatorId, int]
    lost: frozenset[OperatorId]
    """Operators that are gone with their hosts."""
    alive: frozenset[NodeId]
    schemas: Mapping[LinkId, Schema]
    """By the first name of a link, the columns of its rows."""
    away: frozenset[OperatorId] = frozenset()
    """Those of them that may run on: their hosts cannot be asked, or have not answered since they could not."""
    carriers: Mapping[LinkId, OperatorId] = {}
    """By the first name of a link, the operator that sends on it, where that is not its source: a multicast."""
    given_up: frozenset[LinkId] = frozenset()
    """First names of the links that their living sources have given up, as a multicast was lost that sent on them; and of those whose
    sources are gone, and were made for a query that has finished."""
    taken: Mapping[LinkId, int] = {}
    """By the first name of a link, rows that its target had taken by its last report."""
    missing: Mapping[LinkId, int] = {}
    """By the first name of a link, or by a sink that had taken them, rows that earlier recoveries have counted as lost."""
    seconds: float = 0.0
    """Time since the query began."""
    begun_at: Mapping[OperatorId, int] = {}
    """For sinks, where in their files the query's rows begin."""
    joined: Mapping[LinkId, int] = {}
    """Rows that sources had given before a link of a later plan began, by first names."""
    users: Mapping[OperatorId, tuple[User, ...]] = {}
    """Other queries that use an operator, by its last report."""
    lacking: Mapping[OperatorId, int] = {}
    """Event times up to which operators that have begun empty lack rows."""
    attempted: int = 0
    """The highest epoch that anything of the query has begun anew with, of whichever owner."""


class Step(msgspec.Struct, frozen=True):
    """One message to one host, in one attempt."""

    attempt: int
    node: NodeId
    message: Renew | Instantiate | Begin


class Place(msgspec.Struct, frozen=True):
    """Choose hosts for these operators where they are not pinned, with the others where they are; then call `Recovery.placed`."""

    attempt: int
    operators: frozenset[OperatorId]
    excluded: frozenset[NodeId]
    """Hosts that count as full."""


class Ask(msgspec.Struct, frozen=True):
    """Send a host its step; then call `Recovery.answered`."""

    step: Step


class Recovered(msgspec.Struct, frozen=True):
    """The operators run again."""

    nodes: Mapping[OperatorId, NodeId]
    epoch: int
    links: tuple[LinkSpec, ...]
    """Their links, with the present names."""
    go_on: Mapping[OperatorId, Continuation]
    attempts: int
    seconds: float
    """Since the first of them was lost."""
    over: frozenset[OperatorId] = frozenset()
    """Lost operators that are not made again: all that they feed has had everything."""
    is_open: bool = False
    """True while the operators are being made."""


class Lose(msgspec.Struct, frozen=True):
    """The attempt is about to throw away what `found` says, as far as nobody has it any more: write that down, before anything else of
    these actions is done; call `Recovery.denied` if it cannot be."""

    attempt: int
    found: Recovered


Action: TypeAlias = Place | Ask | Lose | Recovered


class _Attempt(msgspec.Struct):
    """The findings of one attempt so far."""

    operators: frozenset[OperatorId] = frozenset()
    lost: frozenset[OperatorId] = frozenset()
    """All that was lost when it began, with what is not made again now."""
    nodes: dict[OperatorId, NodeId] = msgspec.field(default_factory=dict)
    links: dict[LinkId, LinkSpec] = msgspec.field(default_factory=dict)
    """By first name, the links of these operators under their new names."""
    stages: list[list[Step]] = msgspec.field(default_factory=list)
    waiting: int = 0
    tries_left: int = 0
    consumers: dict[LinkId, Renewed] = msgspec.field(default_factory=dict)
    feeders: dict[LinkId, Renewed] = msgspec.field(default_factory=dict)
    go_on: dict[OperatorId, Continuation] = msgspec.field(default_factory=dict)
    zero: frozenset[OperatorId] = frozenset()
    asks_feeders: bool = False
    """Consumers have answered, and feeders are asked."""
    over: frozenset[OperatorId] = frozenset()


class Recovery:
    """Recoveries of one query, one after the other.

    Parameters
    ----------
    after_s : how long a host must have been declared failed before what may move is made elsewhere
    shared_after_s : how long for what other queries use, too
    turned : operators of an attempt of a former owner, from which neighbours may have turned away
    """

    def __init__(
        self,
        query: QueryId,
        user: User,
        after_s: float = 0.0,
        shared_after_s: float = 0.0,
        turned: Iterable[OperatorId] = (),
    ) -> None:
        self.phase = Phase.WAITING
        self.reason = ""
        """Why lost operators do not run yet; empty if none is lost."""
        self._query = query
        self._user = user
        self._after_s, self._shared_after_s = after_s, max(after_s, shared_after_s)
        self._attempt = 0
        self._tries = 0
        """Number of successive attempts that have failed."""
        self._due_s: float | None = None
        self._since_s: float | None = None
        self._away_since_s: dict[OperatorId, float] = {}
        self._turned: set[OperatorId] = set(turned)
        """Operators from which a neighbour may have turned away."""
        self._excluded: set[NodeId] = set()
        self.epoch = 0
        """The epoch of the present attempt, or of the latest one."""
        self._picture: Picture | None = None
        self._at = _Attempt()

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
        """Operators that are made again, or must be."""
        return self._at.operators | self._turned

    # -------------------------------------------------------------------------------------------------------- events

    def look(self, picture: Picture, now: float) -> list[Action]:
        """Takes what is known of the query now; call it when something has changed, or a pause may be over."""
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
        self._at.stages = self._consumers()
        return self._next_stage(now)

    def is_at(self, attempt: int) -> bool:
        """Tells whether an attempt is being made still."""
        return attempt == self._attempt and self.is_under_way

    def denied(self, attempt: int, problem: SbonError, now: float) -> list[Action]:
        """Takes that what an attempt throws away cannot be written down."""
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
            if isinstance(step.message, Instantiate) and step.message.spec.pinned is None:
                self._excluded.add(step.node)
            return self._fail(f"{step.node}: {result}", now)
        if isinstance(step.message, Renew):
            if not isinstance(result, Renewed):
                return self._fail(f"{step.node} gives {type(result).__name__} for an answer", now)
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
        """Returns when `look` may have something to do, unless something else happens before; None: never."""
        return None if self.is_under_way else self._due_s

    # ------------------------------------------------------------------------------------------------------ attempts

    def _begin(self, picture: Picture, lost: frozenset[OperatorId], now: float) -> list[Action]:
        due_s = {
            one: since_s + (self._shared_after_s if picture.users.get(one) else self._after_s)
            for one, since_s in self._away_since_s.items()
            if may_be_elsewhere(picture, one)
        }
        spared = frozenset(one for one in picture.away if due_s.get(one, math.inf) > now)
        chosen, waits_for = makeable(picture, lost, spared)
        if not chosen:
            self.phase, self._at, self.reason = Phase.WAITING, _Attempt(), waits_for
            self._due_s = min((when_s for when_s in due_s.values() if when_s > now), default=None)
            return []
        self._turn(Event.LOST)
        self._attempt += 1
        self.reason, self._due_s = "hosts are being chosen", None
        self._at = _Attempt(operators=chosen, lost=lost)
        links = [link for link in picture.links if link.source in chosen or link.target in chosen]
        known = [picture.epochs.get(operator, 0) for operator in chosen] + [renewals(link.id) * GENERATION for link in links]
        self.epoch = next_generation(max([self.epoch, picture.attempted, *known]))
        for link in links:
            self._at.links[first_name(link.id)] = msgspec.structs.replace(link, id=renewed(link.id, generation(self.epoch)))
        return [Place(self._attempt, chosen, frozenset(self._excluded))]

    def _consumers(self) -> list[list[Step]]:
        """Returns the questions to the living consumers; they come first, so that no feeder's rows come to nobody for long."""
        assert self._picture is not None
        asked = []
        for link in self._at.links.values():
            if link.source in self._at.operators and link.target not in self._at.operators:
                end = End(link, self._at.nodes[link.source], (), self.epoch)
                asked.append(Step(self._attempt, self._picture.nodes[link.target], Renew(query=self._query, end=end, gives=False)))
        return [asked] if asked else []

    def _feeders(self) -> list[list[Step]]:
        """Returns the questions to the living feeders of the operators that are still needed."""
        assert self._picture is not None
        picture, at = self._picture, self._at
        at.asks_feeders = True
        at.over = ended(picture.links, frozenset(one for one in at.operators if not is_table(picture.specs[one])), at.consumers)
        at.operators -= at.over
        chosen, feeders = at.operators, []
        for name, link in at.links.items():
            if link.target in chosen and link.source not in chosen:
                node = picture.nodes.get(picture.carriers.get(name, link.source), picture.nodes[link.source])
                if link.source in picture.lost or node not in picture.alive or name in picture.given_up:
                    continue  # it begins anew itself, or its link is made anew: when its node is back, or as it has none
                end = End(link, self._at.nodes[link.target], (), self.epoch)
                feeders.append(Step(self._attempt, node, Renew(query=self._query, end=end, gives=True)))
        return [feeders] if feeders else []

    def _made(self) -> list[list[Step]]:
        """Returns the messages that make the operators, stage by stage, consumers first."""
        assert self._picture is not None
        picture = self._picture
        links = [link for link in picture.links if first_name(link.id) in self._at.links]
        self._at.zero = from_zero(picture.specs, links, self._at.operators)
        self._at.go_on = continuations(
            picture.specs,
            links,
            self._at.operators,
            self._at.consumers,
            self._at.feeders,
            picture.missing,
            picture.begun_at,
            picture.lacking,
            picture.joined,
            _files_away(self._picture, self._at.operators),
        )
        staged: dict[int, list[Step]] = {}
        depth: dict[OperatorId, int] = {}
        for spec in reversed(list(picture.specs.values())):
            if spec.id not in self._at.operators:
                continue
            go_on = self._at.go_on[spec.id]
            outputs = tuple(self._output(link, go_on) for link in self._at.links.values() if link.source == spec.id)
            inputs = tuple(self._input(link) for link in self._at.links.values() if link.target == spec.id)
            host = self._at.nodes[spec.id]
            behind = [end.link.target for end in outputs if end.link.target in depth]
            # A host takes its messages in their order, so those to one host go together.
            depth[spec.id] = max((depth[target] + (self._at.nodes[target] != host) for target in behind), default=0)
            made = Instantiate(
                spec=going_on(spec, go_on),
                inputs=inputs,
                outputs=outputs,
                user=self._user,
                taken_up=taken_up(
                    go_on,
                    self.epoch,
                    picture.seconds,
                    picture.begun_at.get(spec.id),
                    picture.users.get(spec.id, ()),
                    picture.missing.get(spec.id, 0),
                ),
            )
            staged.setdefault(depth[spec.id], []).append(Step(self._attempt, host, made))
        return [staged[level] for level in sorted(staged)]

    def _output(self, link: LinkSpec, go_on: Continuation) -> End:
        assert self._picture is not None
        name, schema = first_name(link.id), self._picture.specs[link.source].schema
        answer = self._at.consumers.get(name)
        if answer is not None:
            node = self._picture.nodes[link.target]
            epoch = self._picture.epochs.get(link.target, 0)
            skip, skips = go_on.skip_rows.get(name, 0), go_on.skips.get(name, ())
            return End(answer.link, node, schema, epoch, answer.after, answer.rows, skip, skips=skips)
        rows, skip = self._between(link)
        return End(link, self._at.nodes[link.target], schema, self.epoch, 0, rows, skip)

    def _input(self, link: LinkSpec) -> End:
        assert self._picture is not None
        name = first_name(link.id)
        answer, made = self._at.feeders.get(name), self._at.go_on[link.target].made.get(name)
        if answer is not None:
            carrier = answer.link.source
            node = self._picture.nodes.get(carrier, self._picture.nodes[link.source])
            epoch = self._picture.epochs.get(carrier, 0)
            end = End(answer.link, node, answer.schema, epoch, answer.after, answer.rows, 0, answer.settled_us)
            return msgspec.structs.replace(end, made=made, origins=answer.origins)
        schema = self._picture.schemas[name]
        if link.source in self._at.operators:
            end = End(link, self._at.nodes[link.source], schema, self.epoch, 0, self._between(link)[0])
            return msgspec.structs.replace(end, made=made, origins=self._at.go_on[link.source].given(link))
        rows = (
            0
            if link.source in _files_away(self._picture, self._at.operators) and begins_with(self._at.go_on[link.target], link)
            else self._picture.taken.get(name, 0)
        )
        return End(link, self._picture.nodes[link.source], schema, 0, 0, rows, made=made)

    def _between(self, link: LinkSpec) -> tuple[int, int]:
        """Returns rows that count as given between two operators that are both made again, and how many are not given once more.

        A source whose whole input is worked through again gives nothing twice to a target that goes on: the last report tells how far that
        was. Other sources count on from what they had made, as their targets do. Rows that earlier recoveries have counted as lost were
        made, and never taken; they are not given now, either.
        """
        assert self._picture is not None
        name = first_name(link.id)
        missing = self._picture.missing.get(name, 0)
        if link.source not in self._at.zero:
            return max(0, self._at.go_on[link.source].rows_out - missing), 0
        joined = self._picture.joined.get(name, 0)
        if link.target in self._at.zero or begins_with(self._at.go_on[link.target], link):
            return 0, joined
        taken = self._picture.taken.get(name, 0)
        return taken, taken + missing + joined

    def _next_stage(self, now: float) -> list[Action]:
        if not self._at.stages and self.phase is Phase.FENCING and not self._at.asks_feeders:
            self._at.stages = self._feeders()
        actions: list[Action] = []
        if not self._at.stages and self.phase is Phase.FENCING:
            self._turn(Event.FENCED)
            self._at.stages = self._made()
            if self._at.stages:
                actions = [Lose(self._attempt, self._found(now))]
        if not self._at.stages and self.phase is Phase.MAKING:
            self._turn(Event.MADE)
            assert self._picture is not None
            specs = self._picture.specs
            sinks = {self._at.nodes[operator] for operator in self._at.operators if isinstance(specs[operator].params, SinkParams)}
            self._at.stages = [[Step(self._attempt, node, Begin(query=self._query)) for node in sorted(sinks)]] if sinks else []
            self._at.tries_left = BEGIN_TRIES - 1
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
        self._rest()
        return [done]

    def _found(self, now: float) -> Recovered:
        since_s = now if self._since_s is None else self._since_s
        nodes = {operator: self._at.nodes[operator] for operator in self._at.operators}
        return Recovered(nodes, self.epoch, (), dict(self._at.go_on), self._tries + 1, now - since_s)

    def _fail(self, reason: str, now: float, *, hurry: bool = False) -> list[Action]:
        self._turn(Event.FAILED)
        self._attempt += 1  # answers that are still to come are those of an attempt that is over
        self._tries += 1
        self._due_s = now if hurry else now + pause_s(self._tries)
        self.reason = f"is tried again: {reason}"
        self._at.nodes, self._at.stages = {}, []
        return []

    def _rest(self) -> None:
        self.phase, self._due_s, self._since_s, self._tries = Phase.WAITING, None, None, 0
        self._at, self.reason = _Attempt(), ""
        self._excluded.clear()

    def _turn(self, event: Event) -> None:
        after = TABLE.get((self.phase, event))
        if after is None:
            raise LocalProtocolError(f"a recovery that is {self.phase.value} cannot take: {event.value}")
        self.phase = after


def may_be_elsewhere(picture: Picture, operator: OperatorId) -> bool:
    """Tells whether an operator whose host cannot be asked may be made elsewhere: it may move, and its host is not about to answer."""
    return picture.specs[operator].pinned is None and picture.nodes[operator] not in picture.alive


def _files_away(picture: Picture, made: frozenset[OperatorId]) -> frozenset[OperatorId]:
    """Returns what either goes on or reads its file again when its host is back, and has not given up a link meanwhile.

    Parameters
    ----------
    made : operators that are made now
    """
    gone = {one for one in picture.specs if one in picture.lost or picture.nodes.get(one) not in picture.alive}
    given_up = {link.source for link in picture.links if first_name(link.id) in picture.given_up and link.source not in picture.lost}
    return files_away(picture.specs, picture.links, gone - made, picture.nodes) - given_up


def makeable(
    picture: Picture, lost: Iterable[OperatorId], spared: frozenset[OperatorId] = frozenset()
) -> tuple[frozenset[OperatorId], str]:
    """Returns the lost operators that can be made again now, and why the others cannot.

    A pinned one waits for its node. One whose consumers are away waits for them; one that nothing feeds waits for what feeds it.

    Parameters
    ----------
    spared : those that may run on, and are not made again as long as their hosts may still say so
    """
    lost = frozenset(lost)
    why: dict[OperatorId, str] = {}
    for operator in lost:
        spec = picture.specs[operator]
        if spec.pinned is not None and spec.pinned not in picture.alive:
            why[operator] = f"{operator} waits for {spec.pinned}"
        elif operator in spared:
            why[operator] = f"{operator} may run on: {picture.nodes[operator]} has not said that it does not"
    changed = True
    while changed:
        changed = False
        for operator in lost - why.keys():
            targets = {link.target for link in picture.links if link.source == operator}
            sources = {one.source for one in picture.links if one.target == operator and not _is_over(picture, one)}
            away = sorted(target for target in targets if _is_away(picture, target, lost, why))
            if away:
                why[operator] = f"{operator} waits for what it feeds: {', '.join(away)}"
            elif sources and all(_is_away(picture, source, lost, why) for source in sources):
                why[operator] = f"{operator} waits for what feeds it: {', '.join(sorted(sources))}"
            changed = changed or operator in why
    return lost - why.keys(), "; ".join(why[operator] for operator in sorted(why))


def ended(links: Iterable[LinkSpec], operators: frozenset[OperatorId], consumers: Mapping[LinkId, Renewed]) -> frozenset[OperatorId]:
    """Returns the operators whose consumers have had everything, by the first names of the links that consumers have answered for."""
    found: set[OperatorId] = set()
    changed = True
    while changed:
        changed = False
        for operator in operators - found:
            given = [link for link in links if link.source == operator]
            had = [
                link.target in found
                or ((answer := consumers.get(first_name(link.id))) is not None and answer.watermark_us >= WATERMARK_END)
                for link in given
            ]
            if given and all(had):
                found.add(operator)
                changed = True
    return frozenset(found)


def _is_away(picture: Picture, operator: OperatorId, lost: frozenset[OperatorId], why: Mapping[OperatorId, str]) -> bool:
    return operator in why if operator in lost else picture.nodes.get(operator) not in picture.alive


def _is_over(picture: Picture, link: LinkSpec) -> bool:
    """Tells whether nothing comes any more by a link from another query's operator."""
    is_gone = link.source not in picture.specs and picture.nodes.get(link.source) not in picture.alive
    return is_gone and first_name(link.id) in picture.given_up


def going_on(spec: OperatorSpec, go_on: Continuation) -> OperatorSpec:
    """Returns an operator as it is made again."""
    params = spec.params
    if isinstance(params, SinkParams):
        return msgspec.structs.replace(spec, params=resuming(params))
    if isinstance(params, WindowParams | SessionParams) and go_on.begin_us is not None:
        return msgspec.structs.replace(spec, params=msgspec.structs.replace(params, begin_us=go_on.begin_us))
    return spec


def resuming(params: SinkParams) -> SinkParams:
    """Returns the parameters with which a sink goes on with what its former copy has written.

    Examples
    --------
    >>> resuming(SinkParams("k", "file", (("mode", "replace"), ("path", "k.csv")))).options
    (('mode', 'resume'), ('path', 'k.csv'))
    """
    if params.connector != "file":
        return params
    options = tuple(option for option in params.options if option[0] != "mode")
    return msgspec.structs.replace(params, options=tuple(sorted((*options, ("mode", "resume")))))


def _named(stage: Iterable[Step]) -> str:
    return ", ".join(sorted({step.node for step in stage}))
