"""Announced members that have not answered us yet: none enters the table before it has answered.

Any holder of the cluster key can announce members that do not exist. So an unknown name waits here. It is probed, directly and through
others, and enters the table with the incarnation in its answer. Only then do we announce it to others, so that an invented name spreads no
further than the agents that its inventor sent it to.

    told -> waiting -> asked --- its answer, or a helper's message that it answered ---> member
                         | ATTEMPTS without an answer
                         v
                      dropped (it may be told again)

The number of waiting names is limited, for each teller and in total (`sbon.admission.FairSlots`): new names displace the oldest.
"""

from collections import Counter

import msgspec

from sbon.admission import FairSlots
from sbon.membership.actions import Action, PushPull
from sbon.membership.config import MembershipConfig
from sbon.membership.incarnations import TOLD_MAX
from sbon.membership.messages import Alive, Envelope, Vitals
from sbon.types import NodeId

AT_ONCE_MAX = 128
"""Most names asked at the same time. With ATTEMPTS, all names that may wait are handled in less than a minute."""
ATTEMPTS = 3
STRANGERS: NodeId = ""
"""Stands for all agents that are not members, as the teller of the names that they announce."""


class Waiting(msgspec.Struct):
    """One waiting name, and its announced record."""

    record: Alive
    attempts: int = 0
    shown: tuple[int, int] | None = None
    """Incarnation and boot of its last answer, if they differ from the record's."""
    vitals: Vitals | None = None
    digest: tuple[tuple[int, int], bytes] | None = None


class Introductions:
    """The waiting names, and the order in which they are asked."""

    def __init__(self, config: MembershipConfig, counters: Counter[str]) -> None:
        self.waiting: dict[NodeId, Waiting] = {}
        self.has_overflowed = False
        """True if names have been displaced since this was last set to False, because there were too many."""
        self._counters = counters
        self._places: FairSlots[NodeId] = FairSlots(config.introductions_max, config.introductions_per_teller_max)
        self._queues: dict[NodeId, dict[NodeId, None]] = {}
        self._asked: set[NodeId] = set()  # counted and looked up, never iterated

    def tell(self, record: Alive, teller: NodeId) -> None:
        """Stores a name that is not in the table, or a newer record of a waiting one."""
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
        """Returns the next name to ask, taking the tellers in turn; None if none wait, or enough are being asked."""
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
        """Removes a waiting name that has answered or is given up."""
        self._places.leave(name)
        self._asked.discard(name)
        return self._drop(name)

    def _drop(self, name: NodeId) -> Waiting | None:
        """Removes a name. It still counts as being asked; otherwise a flood of names would all be asked at once."""
        for teller, names in self._queues.items():
            if name in names:
                del names[name]
                if not names:
                    del self._queues[teller]
                break
        return self.waiting.pop(name, None)

    def answered(self, name: NodeId, envelope: Envelope | None, out: list[Action]) -> Alive | None:
        """Handles a waiting name's answer; returns its record if the answer confirms it.

        Parameters
        ----------
        envelope
            Envelope of the answer; None if a helper heard the answer, which only shows that the address is alive.
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
        out.append(PushPull((record.host, record.port)))  # get the present record from the member itself
        return None
