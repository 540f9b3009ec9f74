"""The membership protocol as one state machine: SWIM with Lifeguard's refinements, in the form of memberlist and Serf.

Every interval, one peer is probed (`probing`). A peer that does not answer is suspected, has time to object, and is then declared failed
(`roster`, `suspicion`). News is added to probes and replies (`writer`, `broadcast`), and is also sent in messages of its own. Whole tables
are exchanged periodically, when joining, and with failed members, so that partitions heal (`exchange`).

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
from sbon.membership.actions import Action, PushPull
from sbon.membership.config import MembershipConfig, check_labels
from sbon.membership.exchange import is_reachable, merge_state, write_state
from sbon.membership.incarnations import usable_start
from sbon.membership.introducing import Introducer
from sbon.membership.introductions import STRANGERS, Introductions
from sbon.membership.members import Capacity, Member, MemberStatus
from sbon.membership.messages import (
    DIGEST_BYTES_MAX,
    HELD_US_MAX,
    Ack,
    Envelope,
    HostName,
    IndirectProbe,
    Message,
    Nack,
    Name,
    Port,
    Probe,
    Relayed,
    Vitals,
    decode,
    decode_state,
    unpack_vitals,
)
from sbon.membership.probing import Probing
from sbon.membership.roster import Roster
from sbon.membership.rounds import Rounds
from sbon.membership.sampling import ProbeOrder, RandomPeers
from sbon.membership.suspicion import LocalHealth
from sbon.membership.timers import Timers
from sbon.membership.writer import Writer
from sbon.types import Address, NodeId

AWAITING = frozenset({"direct", "deadline", "relay", "expire", "ping_end", "suspicion", "introduce"})
"""Timers that wait for other agents; they are postponed if our own process was stopped."""
CURIOSITY_S = 1.0
"""Pause in seconds between push-pulls with peers whose own incarnation is higher than the one we know."""
CORRECTION_S = 1.0
"""Pause in seconds between messages to a peer whose own incarnation is lower than the one we know, or that we consider failed."""


class Membership:
    """One agent's part in the protocol. Call `wake` at the time that `next_wake` returns; every other call may change that time."""

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
        """Creates the machine. `incarnation` may be any number, because the others' tables correct a wrong one.

        Raises
        ------
        ConfigError
            The name, the address or the labels are not valid in the protocol.
        """
        check_name(name)
        _check_address(address)
        self.counters: Counter[str] = Counter()
        self._config = config
        peers_rng, order_rng, probing_rng = rng.spawn(3)
        self._timers = Timers()
        self._health = LocalHealth(config.health_max)
        own = Member(
            name=name,
            address=address,
            status=MemberStatus.ALIVE,
            incarnation=usable_start(incarnation),
            boot=int(rng.integers(0, 2**32)),
            labels=check_labels(labels),
        )
        self._peers = RandomPeers(peers_rng)
        introductions = Introductions(config, self.counters)
        order = ProbeOrder(order_rng)
        self._roster = Roster(config, own, self._timers, self._health, self._peers, order, introductions, self.counters)
        self._writer = Writer(self._roster, coordinate)
        self._probing = Probing(config, self._roster, self._writer, self._timers, self._health, self.counters, probing_rng)
        self._introducer = Introducer(self._roster, self._probing, self._timers, self._peers, self.counters)
        self._rounds = Rounds(config, self._roster, self._peers, self._writer, self._probing, self._timers, self._health, rng)
        self._now = 0.0
        self._curious_at = -math.inf
        self._corrected_at: dict[NodeId, float] = {}
        self._on_timer: dict[str, Callable[[NodeId, float, list[Action]], None]] = {
            "tick": self._rounds.tick,
            "gossip": self._rounds.gossip,
            "push_pull": self._rounds.push_pull,
            "reconnect": self._rounds.reconnect,
            "join": self._rounds.join_again,
            "leave": self._rounds.leave_again,
            "confirm": self._probing.probe,
            "call": self._probing.call,
            "suspicion": self._roster.suspicion_ran_out,
            "forget": self._forget,
            "introduce": self._introducer.ask_again,
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
        """Returns our name."""
        return self._roster.own.name

    @property
    def config(self) -> MembershipConfig:
        """Returns the present settings."""
        return self._config

    @property
    def incarnation(self) -> int:
        """Returns our incarnation, which grows with every refutation. Save it for a restart, so that others believe us at once."""
        return self._roster.own.incarnation

    @property
    def members(self) -> Mapping[NodeId, Member]:
        """Returns all known members by name, including ourselves and remembered dead members. The mapping is live: do not keep its rows."""
        return self._roster.members

    @property
    def own(self) -> Member:
        """Returns our own row."""
        return self._roster.own

    @property
    def health_score(self) -> int:
        """Returns how much we doubt our own health; 0 is healthy."""
        return self._health.score

    # Calls of the agent

    def join(self, seeds: Sequence[Address], now: float) -> list[Action]:
        """Joins the overlay. Tries the seeds until some member is known; without seeds, waits to be contacted."""
        self._now = now
        out: list[Action] = []
        self._writer.own_vitals()
        self._rounds.start(seeds, now, out)
        return out

    def receive(self, data: bytes, sender: Address, now: float, received_at: float | None = None) -> list[Action]:
        """Handles one unsealed datagram. `received_at`: when it reached this machine, if that is known more exactly than `now`.

        Raises
        ------
        RemoteProtocolError
            The datagram is invalid; nothing has changed.
        """
        message = decode(data, self.counters)
        self._now = now
        out: list[Action] = []
        if message is None:
            return out
        envelope = message.envelope
        if envelope.name == self.own.name:
            self.counters["own_name_heard"] += 1
            return out
        roster = self._roster
        teller = envelope.name if is_reachable(roster, envelope.name) else STRANGERS
        for item in envelope.news:
            roster.hear(item, now, out, teller)
        for vitals in envelope.vitals:
            roster.hear_vitals(vitals, out)
        is_ack = message.__class__ is Ack
        roster.hear_vitals(Vitals(envelope.name, envelope.incarnation, envelope.version, envelope.data), out, quietly=is_ack)
        corrected = self._consider_speaker(envelope, sender, now, out)
        self._answer(message, sender, now, now if received_at is None else min(received_at, now), corrected, out)
        self._go_on(now, out)
        return out

    def wake(self, now: float) -> list[Action]:
        """Performs the duties that are due."""
        out: list[Action] = []
        due = self._timers.next()
        if due is not None and now - due > self._config.stall_s and self._rounds.running:
            self._stood_still(now - due)
        self._now = now
        while (key := self._timers.pop_due(now)) is not None:
            kind, about = key
            if isinstance(about, int):
                self._on_sequence[kind](about, now, out)
            else:
                self._on_timer[kind](about, now, out)
        self._go_on(now, out)
        return out

    def probe_leaves(self, sequence: int, now: float) -> None:
        """Records the sending time of a probe right before it is sent. Changes no timer."""
        self._probing.leaves(sequence, now)

    def next_wake(self) -> float | None:
        """Returns when to call `wake`, monotonic seconds; None before `join`."""
        return self._timers.next()

    def leave(self, now: float) -> list[Action]:
        """Announces our departure, so that members show us as left, not failed. `LeaveDone` follows, at once or from a later `wake`."""
        self._now = now
        out: list[Action] = []
        if self._roster.ours.leaving:
            return out
        self._roster.ours.leaving = True
        self.own.status, self.own.since_s = MemberStatus.LEFT, now
        self._rounds.start_leaving(now, out)
        return out

    def full_state(self) -> bytes:
        """Returns our whole table, for another agent's `merge`."""
        self._writer.own_vitals()
        return write_state(self._roster, self._now)

    def merge(self, state: bytes, now: float, via: Address | None = None) -> list[Action]:
        """Merges another agent's `full_state`. `via`: the address in the `PushPull` that this answers, if any.

        Raises
        ------
        RemoteProtocolError
            The bytes are invalid; nothing has changed.
        """
        decoded = decode_state(state)
        self._now = now
        out: list[Action] = []
        if via is not None:
            self._rounds.seed_answered(via, decoded.name)
        merge_state(self._roster, decoded, now, out, via)
        self._go_on(now, out)
        return out

    def announce(self, digest: bytes, capacity: Capacity) -> None:
        """Sets the digest of hosted operators (see `make_digest`) and the free capacity that gossip announces.

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
            self._roster.pass_on(self._roster.ours.hosted())  # sent with the next probe, since there is no `now` here to set a timer from

    def ping(self, peer: NodeId, now: float) -> tuple[int, list[Action]]:
        """Measures the RTT to one member now. A `PingDone` with the returned token follows, perhaps among the returned actions."""
        self._now = now
        out: list[Action] = []
        token = self._probing.ping(peer, now, out)
        return token, out

    def reconfigure(self, config: MembershipConfig) -> None:
        """Replaces the settings; timers that are set already keep their times."""
        self._config = self._roster.config = self._probing.config = self._rounds.config = config
        self._health.limit(config.health_max)

    def _go_on(self, now: float, out: list[Action]) -> None:
        """Asks waiting names, and sets the timers that an event has made necessary."""
        self._introducer.ask(now, out)
        self._rounds.arm(now)

    # Messages

    def _consider_speaker(self, envelope: Envelope, sender: Address, now: float, out: list[Action]) -> bool:
        """Requests the table of a speaker whose incarnation is higher than we know. Returns True if the speaker must be corrected."""
        member = self._roster.members.get(envelope.name)
        if member is None or envelope.incarnation > member.incarnation:
            if now - self._curious_at >= CURIOSITY_S and not self._roster.ours.leaving:
                self._curious_at = now
                out.append(PushPull(sender))
            return False
        return envelope.incarnation < member.incarnation or envelope.boot != member.boot

    def _answer(self, message: Message, sender: Address, now: float, received_at: float, corrected: bool, out: list[Action]) -> None:
        envelope = message.envelope
        if isinstance(message, Probe):
            if message.target == self.own.name:
                held_us = min(int((now - received_at) * 1e6), HELD_US_MAX)
                out.append(self._writer.ack(envelope.name, sender, message.sequence, received_at, held_us, corrected))
            else:
                self.counters["probes_misdirected"] += 1
            return
        if isinstance(message, Ack):
            name = self._probing.receive_ack(message, self._coordinate_of(envelope), received_at, now, out)
            if name is not None:
                self._introducer.answered(name, envelope, now, out)
        elif isinstance(message, IndirectProbe):
            self._probing.relay(message, sender, now, out)
        elif isinstance(message, Relayed):
            name = self._probing.receive_relayed(message.sequence)
            if name is not None:
                self._introducer.answered(name, None, now, out)
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
            return None  # counted when it arrived

    # Timers

    def _forget(self, name: NodeId, now: float, out: list[Action]) -> None:
        self._roster.forget(name, out)
        self._probing.forget(name)
        self._corrected_at.pop(name, None)

    def _stood_still(self, for_s: float) -> None:
        """Extends timeouts by the time for which this process got no CPU: the awaited answers may be in our own socket."""
        self.counters["stalls"] += 1
        self._health.change(+1)
        self._timers.delay(AWAITING, for_s)
        self._roster.delay_suspicions(for_s)


def check_name(name: str) -> str:
    """Returns a name after checking that an agent may have it.

    Raises
    ------
    ConfigError
        The name is empty, longer than 64 characters, or contains other characters than letters, digits and `_.:-`.
    """
    try:
        return msgspec.convert(name, Name)
    except msgspec.ValidationError as error:
        raise ConfigError(f"name {name!r}, expected 1 to 64 of A-Z a-z 0-9 _ . : -") from error


def _check_address(address: Address) -> None:
    """Refuses an address that others could not decode, because they would refuse every record with it."""
    try:
        msgspec.convert(address, tuple[HostName, Port])
    except msgspec.ValidationError as error:
        raise ConfigError(f"address {address}, expected a host name or address that others can reach and a port from 1 to 65535") from error
