"""The recurring duties of a member: probing, gossip, table exchange, reconnecting, joining, leaving."""

import math
from collections.abc import Sequence

import numpy as np

from sbon.membership.actions import Action, LeaveDone, PushPull
from sbon.membership.config import MembershipConfig
from sbon.membership.members import MemberStatus
from sbon.membership.messages import Left
from sbon.membership.probing import Probing
from sbon.membership.roster import Roster
from sbon.membership.sampling import RandomPeers
from sbon.membership.suspicion import LocalHealth
from sbon.membership.timers import Timers
from sbon.membership.writer import Writer
from sbon.types import Address, NodeId

FIRST_PUSH_PULL_S = 1.0
"""First pause in seconds between an agent's table exchanges; doubles up to the configured pause. Agents are announced only after they have
answered somebody, so agents that start together need early exchanges."""
PUSH_PULL_SCALE = 32
"""With more members than this, push-pulls become rarer, because whole tables grow."""
LEAVE_ROUNDS = 3
LEAVE_FANOUT = 8
CONFIRMERS = 6
"""Approximate number of members that probe a new suspect at once. So it is confirmed or cleared soon in an overlay of any size."""


class Rounds:
    """Runs the recurring duties; each sets the time of its next run."""

    def __init__(
        self,
        config: MembershipConfig,
        roster: Roster,
        peers: RandomPeers,
        writer: Writer,
        probing: Probing,
        timers: Timers,
        health: LocalHealth,
        rng: np.random.Generator,
    ) -> None:
        self.config = config
        self._roster = roster
        self._peers = peers
        self._writer = writer
        self._probing = probing
        self._timers = timers
        self._health = health
        self._rng = rng
        self._seeds: list[Address] = []
        self._seed_names: dict[Address, NodeId] = {}
        self._join_backoff_s = config.join_backoff_s_min
        self._push_pull_pause_s = FIRST_PUSH_PULL_S
        self._leave_rounds = LEAVE_ROUNDS

    def start(self, seeds: Sequence[Address], now: float, out: list[Action]) -> None:
        """Starts all duties, each at a random time in its first interval, and tries the seeds."""
        config = self.config
        self._seeds = [seed for seed in dict.fromkeys(seeds) if seed != self._roster.own.address]
        for kind, pause_s in (
            ("tick", config.interval_s),
            ("push_pull", FIRST_PUSH_PULL_S),
            ("reconnect", config.reconnect_interval_s),
        ):
            self._timers.set((kind, ""), now + pause_s * float(self._rng.random()))
        self.join_again("", now, out)

    @property
    def running(self) -> bool:
        """Tells whether the duties have started and we are not leaving."""
        return ("tick", "") in self._timers

    def seed_answered(self, seed: Address, name: NodeId) -> None:
        """Records the name of the agent at a seed's address, learnt by a push-pull."""
        if seed in self._seeds:
            self._seed_names[seed] = name

    def arm(self, now: float) -> None:
        """Sets the timers that an event has made necessary."""
        roster = self._roster
        if roster.news and self._peers and ("gossip", "") not in self._timers:
            self._timers.set(("gossip", ""), now + self.config.gossip_interval_s * (0.5 + 0.5 * float(self._rng.random())))
        if roster.doubted:
            for name in roster.doubted:
                if float(self._rng.random()) * len(self._peers) < CONFIRMERS:
                    self._timers.set(("confirm", name), now + 0.25 * self.config.interval_s * float(self._rng.random()))
            roster.doubted.clear()

    def start_leaving(self, now: float, out: list[Action]) -> None:
        """Stops all duties except the announcement of our departure."""
        for kind in ("tick", "push_pull", "reconnect", "join"):
            self._timers.cancel((kind, ""))
        self.leave_again("", now, out)

    def tick(self, _: str, now: float, out: list[Action]) -> None:
        pause_s = self.config.interval_s * self._health.factor
        self._timers.set(("tick", ""), now + pause_s * (0.95 + 0.1 * float(self._rng.random())))
        self._probing.probe_next(now, out)

    def gossip(self, _: str, now: float, out: list[Action]) -> None:
        self._tell(self.config.gossip_fanout, out)

    def _tell(self, count: int, out: list[Action]) -> None:
        for name in self._peers.draw(count):
            if not self._roster.news:
                return
            out.append(self._writer.gossip(name, self._roster.members[name].address))

    def push_pull(self, _: str, now: float, out: list[Action]) -> None:
        scale = max(1, math.ceil(math.log2((len(self._peers) + 1) / PUSH_PULL_SCALE)) + 1)
        pause_s = min(self._push_pull_pause_s, self.config.push_pull_interval_s * scale)
        self._push_pull_pause_s = min(2 * self._push_pull_pause_s, self.config.push_pull_interval_s * scale)
        self._timers.set(("push_pull", ""), now + pause_s * (0.9 + 0.2 * float(self._rng.random())))
        out.extend(PushPull(self._roster.members[name].address) for name in self._peers.draw(1))

    def reconnect(self, _: str, now: float, out: list[Action]) -> None:
        """Dials one unreachable member. The overlay as a whole dials each about once per interval."""
        self._timers.set(("reconnect", ""), now + self.config.reconnect_interval_s * (0.9 + 0.2 * float(self._rng.random())))
        members = self._roster.members
        known = {member.address for member in members.values() if member.reachable or member is self._roster.own}
        targets = [member.address for member in members.values() if member.status is MemberStatus.FAILED]
        for seed in self._seeds:
            name = self._seed_names.get(seed)
            if seed not in known and (name is None or name not in members or not members[name].reachable) and name != self._roster.own.name:
                targets.append(seed)
        if targets and float(self._rng.random()) * (len(self._peers) + 1) < len(targets):
            out.append(PushPull(targets[int(self._rng.integers(0, len(targets)))]))

    def join_again(self, _: str, now: float, out: list[Action]) -> None:
        if self._peers or not self._seeds:
            return
        out.extend(PushPull(seed) for seed in self._seeds if self._seed_names.get(seed) != self._roster.own.name)
        self._timers.set(("join", ""), now + self._join_backoff_s * (0.5 + 0.5 * float(self._rng.random())))
        self._join_backoff_s = min(2 * self._join_backoff_s, self.config.join_backoff_s_max)

    def leave_again(self, _: str, now: float, out: list[Action]) -> None:
        if self._leave_rounds == 0 or not self._peers:
            self._timers.clear()
            out.append(LeaveDone())
            return
        self._leave_rounds -= 1
        self._roster.pass_on(Left(self._roster.own.name, self._roster.own.incarnation))
        self._tell(LEAVE_FANOUT, out)
        self._timers.set(("leave", ""), now + self.config.gossip_interval_s)
