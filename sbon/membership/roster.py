"""The table of members: keeps the winning statements and passes them on.

States and transitions are in `sbon.membership.members`. Invariants:
- A member's (incarnation, rank) never falls, except that its row may be forgotten.
- Exactly the suspects have a suspicion timer.
- Only statements that changed the table, and new accusers of suspects, are passed on.
- Only we change our own incarnation. We answer every statement against us with a higher incarnation, unless we are leaving.
- Every reachable member has answered us once (`introductions`). Only such members are announced to others.
- Others' statements raise incarnations only as far as `incarnations` allows.
"""

import math
from collections import Counter

from sbon.errors import CoordinateError
from sbon.membership.actions import (
    Action,
    CoordinateHeard,
    MemberChanged,
    MemberForgotten,
    MemberUpdated,
)
from sbon.membership.broadcast import Broadcasts
from sbon.membership.config import MembershipConfig
from sbon.membership.incarnations import is_believable
from sbon.membership.introductions import Introductions
from sbon.membership.members import Member, MemberStatus, overrides
from sbon.membership.messages import (
    Alive,
    Failed,
    Hosted,
    Left,
    News,
    Suspect,
    Vitals,
    unpack_vitals,
)
from sbon.membership.ourselves import Ourselves, alive_record
from sbon.membership.sampling import ProbeOrder, RandomPeers, VitalsToTell
from sbon.membership.suspicion import LocalHealth, Suspicion
from sbon.membership.timers import Timers
from sbon.types import NodeId

TOLD_DEAD_MAX = 256
"""Most failed and departed members in the table that have never answered us."""

VERSIONS_UNDER_WAY_MAX = 16
"""Largest decrease of a vitals version that reordering can cause. A larger decrease shows that the earlier version was forged."""

CALL_SHARE = 0.75
"""A suspect is called after this share of its shortest suspicion time. Gossip misses one member in a few thousand, which would then never
hear the suspect's objection. By this time most members have heard it, so few need to call unless the suspect is dead."""

ALIVE, SUSPECT, FAILED, LEFT = MemberStatus.ALIVE, MemberStatus.SUSPECT, MemberStatus.FAILED, MemberStatus.LEFT


class Roster:
    """All members, ourselves included, and the news about them that is still to be sent."""

    def __init__(
        self,
        config: MembershipConfig,
        own: Member,
        timers: Timers,
        health: LocalHealth,
        peers: RandomPeers,
        order: ProbeOrder,
        introductions: Introductions,
        counters: Counter[str],
    ) -> None:
        self.config = config
        self.introductions = introductions
        self.own = own
        self.members: dict[NodeId, Member] = {own.name: own}
        self.peers = peers
        self.order = order
        self.news = Broadcasts()
        self.vitals: dict[NodeId, Vitals] = {}
        self.vitals_to_tell = VitalsToTell()
        self.doubted: list[NodeId] = []
        """Members that others have begun to suspect since this list was last emptied."""
        self._timers = timers
        self._health = health
        self.counters = counters
        self._suspicions: dict[NodeId, Suspicion] = {}
        self._told_dead: set[NodeId] = set()  # looked up, never iterated
        self.ours = Ourselves(own, self.pass_on, counters)
        self.pass_on(self.ours.alive())

    # Statements

    def hear(self, item: News, now: float, out: list[Action], teller: NodeId) -> None:
        """Handles one piece of news from `teller`."""
        if isinstance(item, Alive):
            self.hear_alive(item, now, out, teller)
        elif isinstance(item, Suspect):
            self._hear_suspect(item, now, out)
        elif isinstance(item, Hosted):
            self._hear_hosted(item, out)
        else:
            self._hear_gone(item, now, out)

    def hear_alive(self, item: Alive, now: float, out: list[Action], teller: NodeId, *, shown: bool = False) -> None:
        """Handles a statement that a member is alive. `shown`: it comes from the member itself, on a connection that we dialled."""
        name = item.name
        if name == self.own.name:
            self.ours.hear_former_self(item, now, out)
            return
        member = self.members.get(name)
        if member is None or name in self._told_dead:
            if not self.ours.leaving:
                self.introductions.tell(item, teller)
            return
        if item.incarnation <= member.incarnation or not self._believes(item.incarnation, member, shown=shown):
            return
        restarted = item.boot != member.boot
        address = (item.host, item.port)
        updated = restarted or address != member.address or item.labels != member.labels
        if restarted and member.digest_version[0] < item.incarnation:
            member.digest = b""
        member.incarnation, member.boot, member.address, member.labels = item.incarnation, item.boot, address, item.labels
        self._change(member, ALIVE, now, out)
        if updated:
            out.append(MemberUpdated(name, restarted))
        self.pass_on(item)

    def introduced(self, item: Alive, now: float, out: list[Action]) -> None:
        """Adds a name that has answered after others announced it."""
        waiting = self.introductions.remove(item.name)
        if item.name in self._told_dead:
            self.forget(item.name, out)
        if self.ours.leaving or item.name in self.members or self.add(item, ALIVE, now, out) is None:
            return
        self.pass_on(item)
        if waiting is not None and waiting.vitals is not None:
            self.hear_vitals(waiting.vitals, out)
        if waiting is not None and waiting.digest is not None:
            self.set_digest(item.name, *waiting.digest, out)

    def told_dead(self, item: Alive, status: MemberStatus, since_s: float, out: list[Action]) -> None:
        """Adds a member that was gone before we met it, so that it can be dialled later. Only a few are kept."""
        if len(self._told_dead) >= TOLD_DEAD_MAX:
            self.counters["members_refused"] += 1
        elif self.add(item, status, since_s, out) is not None:
            self._told_dead.add(item.name)

    def has_answered(self, name: NodeId) -> bool:
        """Tells whether a member of the table has ever answered us. Only such members may be announced to others."""
        return name not in self._told_dead

    def _believes(self, incarnation: int, member: Member, *, shown: bool = False) -> bool:
        believable = is_believable(incarnation, member.incarnation, shown=shown)
        if not believable:
            self.counters["incarnations_refused"] += 1
        return believable

    def _hear_suspect(self, item: Suspect, now: float, out: list[Action]) -> None:
        if item.name == self.own.name:
            if item.incarnation == self.own.incarnation and not self.ours.leaving:
                self._health.change(+1)  # others do not hear us in time
            self.ours.object(item.incarnation, now)
            return
        member = self.members.get(item.name)
        if member is None:
            return
        if item.by != self.own.name and member.status is ALIVE and item.incarnation >= member.incarnation:
            self.doubted.append(item.name)
        self.suspect(member, item.incarnation, item.by, now, out)

    def suspect(self, member: Member, incarnation: int, by: NodeId, now: float, out: list[Action]) -> None:
        """Starts a suspicion, or adds an accuser to it."""
        suspicion = self._suspicions.get(member.name)
        if suspicion is not None and suspicion.incarnation == incarnation:
            if suspicion.confirm(by):
                self._timers.set(("suspicion", member.name), suspicion.deadline_s(*self._suspicion_bounds_s()))
                self.pass_on(Suspect(member.name, incarnation, by))
            return
        if not overrides(incarnation, SUSPECT, member.incarnation, member.status) or not self._believes(incarnation, member):
            return
        member.incarnation = incarnation
        others = len(self.peers) - (1 if member.reachable else 0)
        self._change(member, SUSPECT, now, out)
        suspicion = Suspicion(incarnation, by, now, min(self.config.suspicion_confirmations, others))
        self._suspicions[member.name] = suspicion
        self._timers.set(("suspicion", member.name), suspicion.deadline_s(*self._suspicion_bounds_s()))
        self._timers.set(("call", member.name), now + CALL_SHARE * self.config.suspicion_s)
        self.pass_on(Suspect(member.name, incarnation, by))

    def accuse(self, name: NodeId, now: float, out: list[Action]) -> None:
        """Suspects a member that did not answer our own probe."""
        member = self.members.get(name)
        if member is not None and member.reachable:
            self.counters["suspicions"] += 1
            self.suspect(member, member.incarnation, self.own.name, now, out)

    def suspicion_ran_out(self, name: NodeId, now: float, out: list[Action]) -> None:
        """Declares a suspect failed, because it did not object in time."""
        member = self.members.get(name)
        if member is not None and member.status is SUSPECT:
            self.counters["declared_failed"] += 1
            self._change(member, FAILED, now, out)
            self.pass_on(Failed(name, member.incarnation, self.own.name))

    def delay_suspicions(self, by_s: float) -> None:
        """Extends all suspicions by the time for which we were stopped. The caller postpones their timers."""
        for suspicion in self._suspicions.values():
            suspicion.since_s += by_s

    def _hear_gone(self, item: Failed | Left, now: float, out: list[Action]) -> None:
        if item.name == self.own.name:
            self.ours.object(item.incarnation, now)
            return
        member = self.members.get(item.name)
        status = FAILED if item.__class__ is Failed else LEFT
        if member is None or not overrides(item.incarnation, status, member.incarnation, member.status):
            return
        if self._believes(item.incarnation, member):
            member.incarnation = item.incarnation
            self._change(member, status, now, out)
            self.pass_on(item)

    def _hear_hosted(self, item: Hosted, out: list[Action]) -> None:
        if item.name == self.own.name and self.ours.hear_hosted(item):
            return
        if self.set_digest(item.name, (item.incarnation, item.version), item.digest, out):
            self.pass_on(item)

    def set_digest(self, name: NodeId, version: tuple[int, int], digest: bytes, out: list[Action]) -> bool:
        """Stores a member's digest; returns False if it is not new, or its incarnation is unknown."""
        member = self.members.get(name)
        if member is None:
            waiting = self.introductions.waiting.get(name)
            if waiting is not None and (waiting.digest is None or version > waiting.digest[0]):
                waiting.digest = (version, digest)
            return False
        if member is self.own or version <= member.digest_version or version[0] > member.incarnation:
            return False
        member.digest_version = version
        if digest != member.digest:
            member.digest = digest
            out.append(MemberUpdated(name, restarted=False))
        return True

    def hear_vitals(self, vitals: Vitals, out: list[Action], *, quietly: bool = False) -> None:
        """Stores a member's coordinate and capacity if they are newer. Drops and counts invalid ones.

        Drops vitals of an unknown, higher incarnation, too, because they would outrank all true vitals.
        """
        member = self.members.get(vitals.name)
        version = (vitals.incarnation, vitals.version)
        if member is None:
            waiting = self.introductions.waiting.get(vitals.name)
            if waiting is not None:
                waiting.vitals = vitals
            return
        if version <= member.vitals_version or member is self.own or vitals.incarnation > member.incarnation:
            return
        try:
            coordinate, capacity = unpack_vitals(vitals.data)
        except CoordinateError:
            self.counters["coordinates_rejected"] += 1
            return
        member.vitals_version, member.coordinate, member.capacity = version, coordinate, capacity
        self.vitals[vitals.name] = vitals
        if member.reachable:
            self.vitals_to_tell.add(vitals)
        if not quietly:
            out.append(CoordinateHeard(vitals.name, coordinate))

    def vitals_shown(self, vitals: Vitals, out: list[Action]) -> None:
        """Handles vitals in a member's own answer to our probe. They replace a forged higher version that others have sent."""
        member = self.members.get(vitals.name)
        if (
            member is not None
            and vitals.version + VERSIONS_UNDER_WAY_MAX < member.vitals_version[1]
            and (vitals.incarnation == member.incarnation == member.vitals_version[0])
        ):
            self.counters["vitals_put_right"] += 1
            member.vitals_version = (vitals.incarnation, vitals.version - 1)
            self.hear_vitals(vitals, out)

    # Rows

    def add(self, item: Alive, status: MemberStatus, now: float, out: list[Action]) -> Member | None:
        """Adds a row, unless the table is full."""
        if len(self.members) >= self.config.members_max:
            self.counters["members_refused"] += 1
            return None
        member = Member(
            name=item.name,
            address=(item.host, item.port),
            status=status,
            incarnation=item.incarnation,
            boot=item.boot,
            labels=item.labels,
            since_s=now,
        )
        self.members[item.name] = member
        self._settle(member, now)
        out.append(MemberChanged(item.name, None, status))
        return member

    def forget(self, name: NodeId, out: list[Action]) -> None:
        """Drops the row of a member that has been gone for long."""
        member = self.members.get(name)
        if member is not None and not member.reachable:
            del self.members[name]
            self._told_dead.discard(name)
            self.vitals.pop(name, None)
            out.append(MemberForgotten(name))

    def _change(self, member: Member, status: MemberStatus, now: float, out: list[Action]) -> None:
        before = member.status
        self._suspicions.pop(member.name, None)
        self._timers.cancel(("suspicion", member.name))
        self._timers.cancel(("call", member.name))
        if before is status:
            return
        member.status, member.since_s = status, now
        self._settle(member, now)
        out.append(MemberChanged(member.name, before, status))

    def _settle(self, member: Member, now: float) -> None:
        """Updates peers, vitals and timers for a member's new status."""
        name = member.name
        forget = ("forget", name)
        if member.reachable:
            self._timers.cancel(forget)
            if name not in self.peers:
                self.peers.add(name)
                self.order.add(name)
        else:
            self.peers.remove(name)
            self.vitals_to_tell.remove(name)
            self._timers.set(forget, max(now, member.since_s + self.config.failed_keep_s))

    # Passing on

    def pass_on(self, item: News) -> None:
        """Starts passing news on. Later news of the same kind about the same member replaces it."""
        self.news.add(("h" if item.__class__ is Hosted else "s") + item.name, item)

    def status_news(self, member: Member) -> News:
        """Returns a member's status as news."""
        if member.status is ALIVE:
            return alive_record(member)
        if member.status is SUSPECT:
            return Suspect(member.name, member.incarnation, self.own.name)
        if member.status is FAILED:
            return Failed(member.name, member.incarnation, self.own.name)
        return Left(member.name, member.incarnation)

    @property
    def repeats(self) -> int:
        """Returns how often one agent sends one piece of news."""
        return self.config.retransmit_multiplier * math.ceil(math.log10(len(self.peers) + 2))

    def _suspicion_bounds_s(self) -> tuple[float, float]:
        return self.config.suspicion_s, self.config.suspicion_s * self.config.suspicion_ratio_max
