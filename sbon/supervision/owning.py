"""The owner's side of one query's record: hands each version to the keepers, and acts when a majority has it. A machine without I/O.

    alone     fewer than three agents live: the owner acts by itself, and nobody takes the query over
    kept      a majority holds the latest version
    writing   a version has been sent, and no majority has answered yet
    cut off   too few keepers have answered: nothing is changed; the version is written again after a pause
    deposed   another agent owns the query

A change of the keepers is a version, too. It counts when a majority of the former holders and a majority of the new ones have it, so that
two parts of an overlay can never both have a majority.

Invariant: `sets` are the holders of the latest version that counts, or of the first one that was sent. A version counts only with a
majority of each set.
"""

from enum import Enum
from typing import TypeAlias

import msgspec

from sbon.errors import LocalProtocolError, SbonError
from sbon.links.ends import pause_s
from sbon.supervision.keepers import agree
from sbon.types import QueryId
from sbon.wire.messages import Message
from sbon.wire.ownership import SETS_MAX, Holder, HolderSays, Record


class Phase(Enum):
    """States of an ownership."""

    ALONE = "alone"
    KEPT = "kept"
    WRITING = "writing"
    CUT_OFF = "cut off"
    DEPOSED = "deposed"


class Event(Enum):
    """Events that change the phase."""

    LONE = "lone"
    """A version is to be written that only the owner is to hold."""
    WRITE = "write"
    ANSWERED = "answered"
    """A keeper has answered, and other answers are still to come."""
    MAJORITY = "majority"
    UNANSWERED = "unanswered"
    """Every keeper has answered, or has not answered in time, and there is no majority."""
    HIGHER = "higher"
    """A higher ownership epoch is known."""


TABLE: dict[tuple[Phase, Event], Phase] = {
    (Phase.ALONE, Event.LONE): Phase.ALONE,
    (Phase.ALONE, Event.WRITE): Phase.WRITING,
    (Phase.ALONE, Event.HIGHER): Phase.DEPOSED,
    (Phase.KEPT, Event.WRITE): Phase.WRITING,
    (Phase.KEPT, Event.HIGHER): Phase.DEPOSED,
    (Phase.WRITING, Event.ANSWERED): Phase.WRITING,
    (Phase.WRITING, Event.MAJORITY): Phase.KEPT,
    (Phase.WRITING, Event.UNANSWERED): Phase.CUT_OFF,
    (Phase.WRITING, Event.HIGHER): Phase.DEPOSED,
    (Phase.CUT_OFF, Event.LONE): Phase.ALONE,
    (Phase.CUT_OFF, Event.WRITE): Phase.WRITING,
    (Phase.CUT_OFF, Event.HIGHER): Phase.DEPOSED,
}
"""The next phase, by the present one and the event. Other pairs raise LocalProtocolError."""


class Write(msgspec.Struct, frozen=True):
    """Send a version to a keeper; then call `Owning.answered`."""

    keeper: Holder
    record: Record


class Counts(msgspec.Struct, frozen=True):
    """A version counts: changes that wait for it may go on."""

    version: int


class Denied(msgspec.Struct, frozen=True):
    """A version does not count: changes that wait for it must not go on."""

    version: int
    reason: str


class Dismiss(msgspec.Struct, frozen=True):
    """Tell an agent that it is not a keeper any more."""

    keeper: Holder


class Depose(msgspec.Struct, frozen=True):
    """Another agent owns the query, under this epoch."""

    epoch: int
    owner: Holder


Action: TypeAlias = Write | Counts | Denied | Dismiss | Depose


class Owning:
    """Ownership of one query.

    Parameters
    ----------
    inherited : the record from which the query was taken over; None for a new query
    """

    def __init__(self, query: QueryId, me: Holder, epoch: int = 0, inherited: Record | None = None) -> None:
        self.phase = Phase.ALONE if inherited is None else Phase.CUT_OFF
        self.epoch = epoch
        """The epoch of the next version, above any that a keeper has named; perhaps no version of this epoch counts yet."""
        self.counted = 0
        """The epoch of the latest version that counts."""
        self.confirmed: Record | None = None
        """The latest version that counts; None if there is none."""
        self.version = 0 if inherited is None else inherited.version
        """The latest version that was sent."""
        self.sets: tuple[tuple[Holder, ...], ...] = ((me,),) if inherited is None else inherited.sets
        self.query = query
        self.me = me
        self._content: bytes | None = None
        self._chosen: tuple[Holder, ...] = (me,)
        self._ended: frozenset[Holder] = frozenset()
        self._dirty = False
        self._sent: Record | None = None
        self._have: set[Holder] = set()
        self._waiting: set[Holder] = set()
        self._due_s = 0.0
        self._tries = 0
        self._was_sent = inherited is not None
        """True once a version of this owner or a former one has been sent to keepers: they may have it, even without an answer."""
        self._lags: set[Holder] = set()
        """Keepers that should have the latest version, and may not have it."""

    @property
    def keepers(self) -> tuple[Holder, ...]:
        """The keepers of the latest version that counts."""
        return tuple(holder for holder in self.sets[-1] if holder != self.me)

    @property
    def latest(self) -> Record | None:
        """The latest version that was sent; None if there is none."""
        return self._sent

    @property
    def says(self) -> str:
        """Describes why the owner changes nothing, or why nobody would take the query over; empty if all is well."""
        if self.phase is Phase.CUT_OFF or (self.phase is Phase.WRITING and self._tries):
            names = ", ".join(sorted({holder.name for holders in self.sets for holder in holders} - {self.me.name}))
            return f"too few of its keepers {names} answer: none of its operators is moved or made again until they do"
        if self.phase is Phase.ALONE:
            return "fewer than three agents are alive: if its owner fails, nobody takes it over, and it waits for its owner"
        return ""

    def look(
        self, content: bytes, chosen: tuple[Holder, ...], now: float, *, ended: frozenset[Holder] = frozenset(), act: bool = False
    ) -> list[Action]:
        """Takes the present content of the record, and the holders that are chosen for it. Writes a new version if something has changed.

        Parameters
        ----------
        ended : holders whose processes have certainly ended
        act : whether a new version is wanted even if nothing has changed, because an action follows that must not happen twice
        """
        if self.phase is Phase.DEPOSED:
            return []
        changed = content != self._content or chosen != self._chosen or bool(ended - self._ended)
        self._content, self._chosen, self._ended = content, chosen, ended
        self._dirty = self._dirty or changed or act or self.phase is Phase.CUT_OFF
        return self._next(now, hurry=act)

    @property
    def version_to_come(self) -> int:
        """Number of the version that has, or will have, all that `look` has taken so far."""
        return self.version + 1 if self._dirty else self.version

    def answered(self, record: Record, keeper: Holder, result: Message | SbonError, now: float) -> list[Action]:
        """Takes a keeper's answer to a version, or the error that there is none."""
        refused = isinstance(result, HolderSays) and not result.granted and self.phase is not Phase.DEPOSED
        # What an owner says of itself counts, whatever this agent has tried since.
        is_owner = isinstance(result, HolderSays) and result.owner == keeper and result.epoch > self.counted
        if isinstance(result, HolderSays) and refused and record is self._sent and result.promised_to is not None:
            self.epoch = max(self.epoch, result.epoch + 1)  # two processes were promised one epoch, each by another holder
        if isinstance(result, HolderSays) and refused and record is self._sent:
            if result.owner not in (None, self.me) and (result.epoch >= record.epoch or is_owner):
                self._turn(Event.HIGHER)
                return [Depose(result.epoch, result.owner)]
            if result.epoch > record.epoch:
                # The keeper has promised that epoch to a process that has not become the owner: the next version has a higher one.
                self.epoch = max(self.epoch, result.epoch + 1)
        took = isinstance(result, HolderSays) and result.granted
        if record is self._sent and took:
            self._lags.discard(keeper)
        if record is not self._sent or self.phase is not Phase.WRITING:
            return []
        self._waiting.discard(keeper)
        if isinstance(result, HolderSays) and result.granted:
            former = set() if result.is_lost else {holder for holder in record.holders if holder.name == keeper.name}
            self._have |= {keeper} | former
        if agree(record.sets, self._have, self._ended):
            return self._counts(record, now)
        if self._waiting:
            self._turn(Event.ANSWERED)
            return []
        self._turn(Event.UNANSWERED)
        self._tries += 1
        # Where a higher epoch is known, the pause stays short: otherwise the keeper that asked for that epoch would always be first.
        self._due_s, self._dirty = now + pause_s(1 if self.epoch > record.epoch else self._tries), True
        return [Denied(record.version, self.says)]

    def wake(self, now: float) -> list[Action]:
        """Writes again when a pause is over."""
        return self._next(now) if self.phase is not Phase.DEPOSED and self._due_s <= now else []

    def next_wake(self) -> float | None:
        """Returns when a pause ends; None if there is none."""
        return self._due_s if self.phase is Phase.CUT_OFF or (self.phase is Phase.KEPT and self._lags) else None

    def _next(self, now: float, *, hurry: bool = False) -> list[Action]:
        if self.phase is Phase.KEPT and self._lags and self._due_s <= now:
            self._dirty = True
        if not self._dirty or self.phase is Phase.WRITING or self._content is None:
            return []
        if self.phase is Phase.CUT_OFF and now < self._due_s and not hurry:
            return []
        sets = self.sets if self.sets[-1] == self._chosen else (*self.sets, self._chosen)
        if not self._was_sent:
            self.sets = sets = (self._chosen,)  # nobody has a version yet
        if len(sets) > SETS_MAX:
            sets = self.sets
        self._dirty, self.version = False, self.version + 1
        record = self._sent = Record(self.query, self.epoch, self.version, self.me, sets, self._content)
        self._have, self._waiting = {self.me}, set(record.holders) - {self.me} - self._ended
        self._lags = set(sets[-1]) - {self.me}
        if sets == ((self.me,),):
            self._turn(Event.LONE)
            self._tries, self.counted, self.confirmed = 0, record.epoch, record
            return [Counts(self.version)]
        self._turn(Event.WRITE)
        self._was_sent = True
        if not self._waiting:  # all others have ended
            return self._counts(record, now)
        return [Write(keeper, record) for keeper in sorted(self._waiting)]

    def _counts(self, record: Record, now: float) -> list[Action]:
        self._turn(Event.MAJORITY)
        former = set(record.holders) - set(record.sets[-1]) - self._ended
        self.sets, self._tries = (record.sets[-1],), 0
        self.counted, self.confirmed = record.epoch, record
        if len(record.sets) > 1:  # the keepers must learn that the change of the holders counts
            self._dirty = True
        if self._lags:  # the others may only be late: the version is written once more after a pause
            self._due_s = now + LAG_S
        out: list[Action] = [Counts(record.version), *(Dismiss(keeper) for keeper in sorted(former))]
        if self.sets == ((self.me,),):
            self.phase = Phase.ALONE
        return out + self._next(now)

    def _turn(self, event: Event) -> None:
        after = TABLE.get((self.phase, event))
        if after is None:
            raise LocalProtocolError(f"an ownership that is {self.phase.value} cannot take: {event.value}")
        self.phase = after


LAG_S = 5.0
"""Pause before a version is written again, if a majority has it and not every keeper, in seconds."""
