"""The membership protocol as one machine: SWIM with Lifeguard's refinements, in the form that memberlist and Serf proved.

Every interval one peer is probed (`probing`); who stays silent is suspected, has time to object, and is then declared failed
(`roster`, `suspicion`). News rides on probes and replies (`writer`, `broadcast`), and on messages of its own while there is any.
Whole tables are exchanged now and then, when joining, and with failed members, so that partitions heal (`exchange`).

    datagrams, table bytes, instants in  ->  Membership  ->  list of actions out (`actions`)

Sources: SWIM (Das, Gupta, Motivala; DSN 2002); Lifeguard (Dadgar, Phillips, Currey; DSN-W 2018).
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np

from sbon.cost_space.coordinate import Coordinate
from sbon.errors import ConfigError, CoordinateError, LocalProtocolError
from sbon.membership.actions import Action, LeaveDone, PushPull
from sbon.membership.config import MembershipConfig, check_labels
from sbon.membership.exchange import merge_state, write_state
from sbon.membership.members import Capacity, Member, MemberStatus
from sbon.membership.messages import (
    DIGEST_BYTES_MAX,
    HELD_US_MAX,
    INCARNATION_MAX,
    Ack,
    Envelope,
    IndirectProbe,
    Left,
    Message,
    Nack,
    Name,
    Probe,
    Relayed,
    Vitals,
    decode,
    decode_state,
    unpack_vitals,
)
from sbon.membership.probing import Probing
from sbon.membership.roster import Roster
from sbon.membership.sampling import ProbeOrder, RandomPeers
from sbon.membership.suspicion import LocalHealth
from sbon.membership.timers import Timers
from sbon.membership.writer import Writer
from sbon.types import Address, NodeId

AWAITING = frozenset({"direct", "deadline", "relay", "expire", "ping_end", "suspicion"})
"""Timers that wait for somebody else: put off when it was we who stood still."""
CURIOSITY_S = 1.0
"""Pause between push-pulls with peers that turn out to know more of themselves than we do."""
PUSH_PULL_SCALE = 32
LEAVE_ROUNDS = 3
LEAVE_FANOUT = 8
CONFIRMERS = 6
"""About so many members probe a new suspect at once, so that it is confirmed or cleared soon, whatever the size of the overlay."""
CORRECTION_S = 1.0
"""Pause between unasked corrections of one peer that holds something outdated of itself."""


class Membership:
    """One agent's part in the protocol. Call `wake` when `next_wake` says so, which every other call may change."""

    def __init__(
        self,
        config: MembershipConfig,
        name: NodeId,
        address: Address,
        labels: dict[str, str],
        incarnation: int,
        coordinate: Callable[[], Coordinate],
        rng: np.random.Generator,
    ) -> None:
        """`incarnation`: any number; one that was used before, or none kept (0), is put right by the others' memory.

        Raises
        ------
        ConfigError
            The name or the labels do not fit the protocol.
        """
        check_name(name)
        if not 0 <= incarnation < INCARNATION_MAX:
            raise ConfigError(f"incarnation {incarnation}, expected 0 to {INCARNATION_MAX}")
        self.counters: Counter[str] = Counter()
        self._config = config
        self._rng, peers_rng, order_rng, probing_rng = rng, *rng.spawn(3)
        self._timers = Timers()
        self._health = LocalHealth(config.health_max)
        own = Member(
            name=name,
            address=address,
            status=MemberStatus.ALIVE,
            incarnation=incarnation,
            boot=int(rng.integers(0, 2**32)),
            labels=check_labels(labels),
        )
        self._peers = RandomPeers(peers_rng)
        self._roster = Roster(config, own, self._timers, self._health, self._peers, ProbeOrder(order_rng), self.counters)
        self._writer = Writer(self._roster, coordinate)
        self._probing = Probing(config, self._roster, self._writer, self._timers, self._health, self.counters, probing_rng)
        self._now = 0.0
        self._seeds: list[Address] = []
        self._seed_names: dict[Address, NodeId] = {}
        self._join_backoff_s = config.join_backoff_s_min
        self._leave_rounds = LEAVE_ROUNDS
        self._curious_at = -math.inf
        self._corrected_at: dict[NodeId, float] = {}
        self._on_timer: dict[str, Callable[[NodeId, float, list[Action]], None]] = {
            "tick": self._tick,
            "gossip": self._gossip,
            "push_pull": self._push_pull,
            "reconnect": self._reconnect,
            "join": self._join_again,
            "leave": self._leave_again,
            "confirm": self._probing.probe,
            "suspicion": self._roster.suspicion_ran_out,
            "forget": self._forget,
            "ping": self._probing.ping_next,
            "ping_end": lambda name, now, out: self._probing.ping_ended(name, out),
        }
        self._on_sequence: dict[str, Callable[[int, float, list[Action]], None]] = {
            "direct": self._probing.direct_timed_out,
            "deadline": self._probing.deadline_passed,
            "relay": self._probing.relay_timed_out,
            "expire": lambda sequence, now, out: self._probing.expired(sequence),
        }

    @property
    def name(self) -> NodeId:
        """Ours."""
        return self._roster.own.name

    @property
    def incarnation(self) -> int:
        """Ours; grows with every refutation. Keep it over a restart to be believed at once."""
        return self._roster.own.incarnation

    @property
    def members(self) -> Mapping[NodeId, Member]:
        """All known members by name, ourselves and the remembered dead included. Live: read it, do not keep rows."""
        return self._roster.members

    @property
    def own(self) -> Member:
        """Our own row."""
        return self._roster.own

    @property
    def reachable_count(self) -> int:
        """Other members that are alive or only suspected."""
        return len(self._peers)

    @property
    def health_score(self) -> int:
        """How much we doubt ourselves; 0 is well."""
        return self._health.score

    # Calls of the agent

    def join(self, seeds: Sequence[Address], now: float) -> list[Action]:
        """Begin. Seeds are tried until some member is known; without seeds we wait to be found."""
        self._now = now
        config = self._config
        self._seeds = [seed for seed in dict.fromkeys(seeds) if seed != self.own.address]
        for kind, pause_s in (
            ("tick", config.interval_s),
            ("push_pull", config.push_pull_interval_s),
            ("reconnect", config.reconnect_interval_s),
        ):
            self._timers.set((kind, ""), now + pause_s * float(self._rng.random()))
        out: list[Action] = []
        self._writer.own_vitals()
        self._join_again("", now, out)
        return out

    def receive(self, data: bytes, sender: Address, now: float, received_at: float | None = None) -> list[Action]:
        """One unsealed datagram. `received_at`: when it reached this machine, if that is known better than `now`.

        Raises
        ------
        RemoteProtocolError
            The datagram is nonsense; nothing has changed.
        """
        message = decode(data)
        self._now = now
        out: list[Action] = []
        envelope = message.envelope
        if envelope.name == self.own.name:
            self.counters["own_name_heard"] += 1
            return out
        roster = self._roster
        for item in envelope.news:
            roster.hear(item, now, out)
        for vitals in envelope.vitals:
            roster.hear_vitals(vitals, out)
        is_ack = message.__class__ is Ack
        roster.hear_vitals(Vitals(envelope.name, envelope.incarnation, envelope.version, envelope.data), out, quietly=is_ack)
        corrected = self._consider_speaker(envelope, sender, now, out)
        self._answer(message, sender, now, now if received_at is None else min(received_at, now), corrected, out)
        self._after(now)
        return out

    def wake(self, now: float) -> list[Action]:
        """Do what is due."""
        out: list[Action] = []
        due = self._timers.next()
        if due is not None and now - due > self._config.stall_s and self._started:
            self._stood_still(now - due)
        self._now = now
        while (key := self._timers.pop_due(now)) is not None:
            kind, about = key
            if isinstance(about, int):
                self._on_sequence[kind](about, now, out)
            else:
                self._on_timer[kind](about, now, out)
        self._after(now)
        return out

    def next_wake(self) -> float | None:
        """When `wake` is wanted, monotonic seconds; None before `join`."""
        return self._timers.next()

    def leave(self, now: float) -> list[Action]:
        """Say goodbye; `LeaveDone` follows, at once or from a later `wake`. Members show us as left, not failed."""
        self._now = now
        out: list[Action] = []
        if self._roster.leaving:
            return out
        self._roster.leaving = True
        self.own.status, self.own.since_s = MemberStatus.LEFT, now
        for kind in ("tick", "push_pull", "reconnect", "join"):
            self._timers.cancel((kind, ""))
        self._leave_again("", now, out)
        return out

    def full_state(self) -> bytes:
        """Our whole table, for another agent's `merge`."""
        self._writer.own_vitals()
        return write_state(self._roster, self._now)

    def merge(self, state: bytes, now: float, via: Address | None = None) -> list[Action]:
        """Take in another agent's `full_state`. `via`: the address that a `PushPull` named, if this answers one.

        Raises
        ------
        RemoteProtocolError
            The bytes are nonsense; nothing has changed.
        """
        decoded = decode_state(state)
        self._now = now
        out: list[Action] = []
        if via is not None and via in self._seeds:
            self._seed_names[via] = decoded.name
        merge_state(self._roster, decoded, now, out)
        self._after(now)
        return out

    def announce(self, digest: bytes, capacity: Capacity) -> None:
        """What we host (see `make_digest`) and can still take, from now on; gossip carries it.

        Raises
        ------
        LocalProtocolError
            The digest is too long for gossip.
        """
        if len(digest) > DIGEST_BYTES_MAX:
            raise LocalProtocolError(f"digest of {len(digest)} bytes, expected {DIGEST_BYTES_MAX} at most")
        own = self.own
        if capacity != own.capacity:
            own.capacity = capacity
        if digest != own.digest:
            own.digest = digest
            own.digest_version = (own.incarnation, own.digest_version[1] + 1)
            self._roster.pass_on(self._roster.own_hosted())  # with the next probe: there is no `now` here to set a timer from

    def ping(self, peer: NodeId, now: float) -> tuple[int, list[Action]]:
        """Measure the RTT to one member now. A `PingDone` with the returned token follows, perhaps among the returned actions."""
        self._now = now
        out: list[Action] = []
        token = self._probing.ping(peer, now, out)
        return token, out

    def reconfigure(self, config: MembershipConfig) -> None:
        """Other settings from now on; instants already set stay."""
        self._config = self._roster.config = self._probing.config = config
        self._health.limit(config.health_max)

    # Messages

    def _consider_speaker(self, envelope: Envelope, sender: Address, now: float, out: list[Action]) -> bool:
        """Ask a speaker that knows more of itself than we do; return whether it knows less, and should be told."""
        member = self._roster.members.get(envelope.name)
        if member is None or envelope.incarnation > member.incarnation:
            if now - self._curious_at >= CURIOSITY_S and not self._roster.leaving:
                self._curious_at = now
                out.append(PushPull(sender))
            return False
        return envelope.incarnation < member.incarnation or envelope.boot != member.boot

    def _answer(self, message: Message, sender: Address, now: float, received_at: float, corrected: bool, out: list[Action]) -> None:
        envelope = message.envelope
        if isinstance(message, Probe):
            if message.target == self.own.name:
                held_us = min(int((now - received_at) * 1e6), HELD_US_MAX)
                out.append(self._writer.ack(envelope.name, sender, message.sequence, held_us, corrected))
            else:
                self.counters["probes_misdirected"] += 1
            return
        if isinstance(message, Ack):
            self._probing.receive_ack(message, self._coordinate_of(envelope), received_at, now, out)
        elif isinstance(message, IndirectProbe):
            self._probing.relay(message, sender, now, out)
        elif isinstance(message, Relayed):
            self._probing.receive_relayed(message.sequence)
        elif isinstance(message, Nack):
            self._probing.receive_nack(message.sequence)
        member = self._roster.members.get(envelope.name)
        if member is None or not (corrected or member.status is MemberStatus.FAILED):
            return
        if now - self._corrected_at.get(envelope.name, -math.inf) >= CORRECTION_S:
            self._corrected_at[envelope.name] = now
            out.append(self._writer.gossip(envelope.name, sender, corrected=True))

    def _coordinate_of(self, envelope: Envelope) -> Coordinate | None:
        member = self._roster.members.get(envelope.name)
        if member is not None and member.vitals_version == (envelope.incarnation, envelope.version):
            return member.coordinate
        try:
            return unpack_vitals(envelope.data)[0]
        except CoordinateError:
            return None  # counted when it was heard

    # Timers

    @property
    def _started(self) -> bool:
        return ("tick", "") in self._timers

    def _after(self, now: float) -> None:
        """Arm what an event has made necessary."""
        roster = self._roster
        if roster.news and self._peers and ("gossip", "") not in self._timers:
            self._timers.set(("gossip", ""), now + self._config.gossip_interval_s * (0.5 + 0.5 * float(self._rng.random())))
        if roster.doubted:
            for name in roster.doubted:
                if float(self._rng.random()) * len(self._peers) < CONFIRMERS:
                    self._timers.set(("confirm", name), now + 0.25 * self._config.interval_s * float(self._rng.random()))
            roster.doubted.clear()

    def _tick(self, _: str, now: float, out: list[Action]) -> None:
        pause_s = self._config.interval_s * self._health.factor
        self._timers.set(("tick", ""), now + pause_s * (0.95 + 0.1 * float(self._rng.random())))
        self._probing.probe_next(now, out)

    def _gossip(self, _: str, now: float, out: list[Action]) -> None:
        self._tell(self._config.gossip_fanout, out)

    def _tell(self, count: int, out: list[Action]) -> None:
        for name in self._peers.draw(count):
            if not self._roster.news:
                return
            out.append(self._writer.gossip(name, self._roster.members[name].address))

    def _push_pull(self, _: str, now: float, out: list[Action]) -> None:
        scale = max(1, math.ceil(math.log2((len(self._peers) + 1) / PUSH_PULL_SCALE)) + 1)
        self._timers.set(("push_pull", ""), now + self._config.push_pull_interval_s * scale * (0.9 + 0.2 * float(self._rng.random())))
        out.extend(PushPull(self._roster.members[name].address) for name in self._peers.draw(1))

    def _reconnect(self, _: str, now: float, out: list[Action]) -> None:
        """Dial one that is out of reach. Each one is dialled about once an interval by the whole overlay together."""
        self._timers.set(("reconnect", ""), now + self._config.reconnect_interval_s * (0.9 + 0.2 * float(self._rng.random())))
        members = self._roster.members
        known = {member.address for member in members.values() if member.reachable or member is self.own}
        targets = [member.address for member in members.values() if member.status is MemberStatus.FAILED]
        for seed in self._seeds:
            name = self._seed_names.get(seed)
            if seed not in known and (name is None or name not in members or not members[name].reachable) and name != self.name:
                targets.append(seed)
        if targets and float(self._rng.random()) * (len(self._peers) + 1) < len(targets):
            out.append(PushPull(targets[int(self._rng.integers(0, len(targets)))]))

    def _join_again(self, _: str, now: float, out: list[Action]) -> None:
        if self._peers or not self._seeds:
            return
        out.extend(PushPull(seed) for seed in self._seeds if self._seed_names.get(seed) != self.name)
        self._timers.set(("join", ""), now + self._join_backoff_s * (0.5 + 0.5 * float(self._rng.random())))
        self._join_backoff_s = min(2 * self._join_backoff_s, self._config.join_backoff_s_max)

    def _leave_again(self, _: str, now: float, out: list[Action]) -> None:
        if self._leave_rounds == 0 or not self._peers:
            self._timers.clear()
            out.append(LeaveDone())
            return
        self._leave_rounds -= 1
        self._roster.pass_on(Left(self.name, self.incarnation))
        self._tell(LEAVE_FANOUT, out)
        self._timers.set(("leave", ""), now + self._config.gossip_interval_s)

    def _forget(self, name: NodeId, now: float, out: list[Action]) -> None:
        self._roster.forget(name, out)
        self._probing.forget(name)
        self._corrected_at.pop(name, None)

    def _stood_still(self, for_s: float) -> None:
        """This process got no turn for so long: the answers that we miss may lie in our own socket."""
        self.counters["stalls"] += 1
        self._health.change(+1)
        self._timers.delay(AWAITING, for_s)
        self._roster.delay_suspicions(for_s)


def check_name(name: str) -> str:
    """The same name, if an agent may have it.

    Raises
    ------
    ConfigError
        Empty, longer than 64 characters, or with others than letters, digits and `_.:-`.
    """
    try:
        return msgspec.convert(name, Name)
    except msgspec.ValidationError as error:
        raise ConfigError(f"name {name!r}, expected 1 to 64 of A-Z a-z 0-9 _ . : -") from error
