"""Probes the names that wait to be introduced (`sbon.membership.introductions`)."""

from collections import Counter

from sbon.membership.actions import Action, PushPull
from sbon.membership.introductions import ATTEMPTS
from sbon.membership.messages import Envelope, Vitals
from sbon.membership.probing import Probing
from sbon.membership.roster import Roster
from sbon.membership.sampling import RandomPeers
from sbon.membership.timers import Timers
from sbon.types import NodeId


class Introducer:
    """Sends probes for introductions: decides whom to ask and how often, and handles the answers."""

    def __init__(self, roster: Roster, probing: Probing, timers: Timers, peers: RandomPeers, counters: Counter[str]) -> None:
        self._roster, self._probing, self._timers, self._peers, self._counters = roster, probing, timers, peers, counters
        self._table = roster.introductions

    def ask(self, now: float, out: list[Action]) -> None:
        """Asks the names whose turn it is. If no name waits and some were displaced before, requests another table."""
        if self._roster.ours.leaving:
            return
        while (name := self._table.take()) is not None:
            self.ask_again(name, now, out)
        if self._table.has_overflowed and not self._table.waiting:
            self._table.has_overflowed = False
            out.extend(PushPull(self._roster.members[name].address) for name in self._peers.draw(1))

    def ask_again(self, name: NodeId, now: float, out: list[Action]) -> None:
        """Asks a name once more, or gives it up."""
        waiting = self._table.waiting.get(name)
        if self._roster.ours.leaving:
            return
        if waiting is None:
            self._table.remove(name)  # displaced since it was asked
            return
        if waiting.attempts >= ATTEMPTS:
            self._table.remove(name)
            self._counters["introductions_unanswered"] += 1
            return
        config = self._probing.config
        self._probing.introduce(waiting.record, now, out, helpers=config.indirect_probes if waiting.attempts else 0)
        wait_s = config.timeout_s_max * (2 if waiting.attempts else 1)  # probes through helpers need a second round trip
        waiting.attempts += 1
        self._timers.set(("introduce", name), now + wait_s)

    def answered(self, name: NodeId, envelope: Envelope | None, now: float, out: list[Action]) -> None:
        """Handles the answer of a waiting name, or, without an envelope, a helper's message that the name answered."""
        record = self._table.answered(name, envelope, out)
        if record is None:
            return
        self._timers.cancel(("introduce", name))
        self._roster.introduced(record, now, out)
        if envelope is not None:
            self._roster.hear_vitals(Vitals(name, envelope.incarnation, envelope.version, envelope.data), out)
