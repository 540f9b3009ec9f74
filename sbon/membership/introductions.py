"""Members that we have only been told of: none gets into the table before it has answered us.

Whoever holds the cluster key can tell of members that do not exist. A name that we do not know waits here; it is probed, directly and
through others, and enters the table with the incarnation that its answer shows. Only then do we tell others of it, so that an invented
name ends at those to whom the inventor spoke.

    told -> waiting -> asked --- its answer, or a helper's word that it has one ---> member
                         | ATTEMPTS without an answer
                         v
                      dropped (it may be told again)

How many names wait is limited, for each teller and in all (`sbon.admission.Places`): those told last displace the oldest.
"""

from collections import Counter

import msgspec

from sbon.admission import Places
from sbon.membership.actions import Action, PushPull
from sbon.membership.config import MembershipConfig
from sbon.membership.incarnations import TOLD_MAX
from sbon.membership.messages import Alive, Envelope, Vitals
from sbon.types import NodeId

AT_ONCE_MAX = 128
"""Names asked at the same time: with ATTEMPTS, all that may wait are done with in less than a minute."""
ATTEMPTS = 3
STRANGERS: NodeId = ""
"""Teller of all who are no members themselves."""


class Waiting(msgspec.Struct):
    """One name, and what we have been told of it."""

    record: Alive
    attempts: int = 0
    shown: tuple[int, int] | None = None
    """Incarnation and boot of its last answer, where the record has others."""
    vitals: Vitals | None = None
    digest: tuple[tuple[int, int], bytes] | None = None


class Introductions:
    """The names that wait, and whose turn it is to be asked."""

    def __init__(self, config: MembershipConfig, counters: Counter[str]) -> None:
        self.waiting: dict[NodeId, Waiting] = {}
        self.has_overflowed = False
        """Names have been displaced since this was last set to False: somebody's table was larger than what may wait."""
        self._counters = counters
        self._places: Places[NodeId] = Places(config.introductions_max, config.introductions_per_teller_max)
        self._queues: dict[NodeId, dict[NodeId, None]] = {}
        self._asked: set[NodeId] = set()  # counted and asked, never iterated

    def tell(self, record: Alive, teller: NodeId) -> None:
        """Note a name that is not in the table, or newer word of one that waits."""
        waiting = self.waiting.get(record.name)
        if waiting is not None:
            if record.incarnation > waiting.record.incarnation or (record.incarnation, record.boot) == waiting.shown:
                waiting.record = record
            return
        displaced = self._places.enter(record.name, teller)
        if displaced is not None:
            self._counters["introductions_refused"] += 1
            self.has_overflowed = True
            self._drop(displaced)
        self.waiting[record.name] = Waiting(record)
        self._queues.setdefault(teller, {})[record.name] = None

    def take(self) -> NodeId | None:
        """The next name to be asked, the tellers in turn; None: nobody waits, or enough are being asked."""
        while self._queues and len(self._asked) < AT_ONCE_MAX:
            teller = next(iter(self._queues))
            names = self._queues.pop(teller)
            name = next(iter(names))
            del names[name]
            if names:
                self._queues[teller] = names
            if name in self.waiting:
                self._asked.add(name)
                return name
        return None

    def remove(self, name: NodeId) -> Waiting | None:
        """Let a name wait no longer: it has answered, or will not."""
        self._places.leave(name)
        self._asked.discard(name)
        return self._drop(name)

    def _drop(self, name: NodeId) -> Waiting | None:
        """Take a name out; where it has been asked it still counts as such, or a flood of names would be asked all at once."""
        for teller, names in self._queues.items():
            if name in names:
                del names[name]
                if not names:
                    del self._queues[teller]
                break
        return self.waiting.pop(name, None)

    def answered(self, name: NodeId, envelope: Envelope | None, out: list[Action]) -> Alive | None:
        """Take a waiting name's answer; returns its record if that is what the answer shows.

        Parameters
        ----------
        envelope
            Of the answer; None where a helper has heard it, which shows that somebody is there.
        """
        waiting = self.waiting.get(name)
        if waiting is None:
            return None
        record = waiting.record
        if envelope is None:
            return record if record.incarnation <= TOLD_MAX else None
        waiting.shown = (envelope.incarnation, envelope.boot)
        if waiting.shown == (record.incarnation, record.boot):
            return record
        out.append(PushPull((record.host, record.port)))  # it knows best what its labels are now
        return None
