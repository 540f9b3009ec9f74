"""Sends probes: those of the regular round, indirect probes through helpers, and measurements on request.

One probe of our round (SWIM, section 3.1; Lifeguard, section IV-A):

    sent --- ack ------------------------------> answered (RTT measured, we doubt ourselves less)
      |  no ack within the timeout of this peer
      v
    sent again, and through helpers --- an ack --> answered
      |  neither within the patience: longer for far helpers
      v
    unanswered: the peer is accused; we doubt ourselves too if fewer than half of the helpers sent at least a nack

RTTs come from direct acks: the time of arrival minus the time of sending minus the peer's holding time. The second probe has its own
sequence number, so that each ack belongs to one probe, and a peer that has become slow is still measured. Indirect acks prove that the peer
is alive, but measure nothing.
"""

from collections import Counter

import msgspec
import numpy as np

from sbon.cost_space.coordinate import Coordinate, estimated_rtt_ms
from sbon.membership.actions import Action, PingDone, RttMeasured
from sbon.membership.config import MembershipConfig
from sbon.membership.messages import Ack, Alive, IndirectProbe, Vitals
from sbon.membership.roster import Roster
from sbon.membership.suspicion import LocalHealth
from sbon.membership.timers import Timers
from sbon.membership.writer import Writer
from sbon.types import Address, NodeId

RTT_MULTIPLE = 3.0
RTT_MARGIN_S = 0.1
"""A peer's timeout is RTT_MULTIPLE of its RTTs plus RTT_MARGIN_S, in which a busy process can wake up."""
ERROR_MAX = 0.5
"""Coordinates with a larger error estimate are not used for timeouts."""
PING_SPACING_S = 0.02


class _Sent(msgspec.Struct):
    """A probe that has not been answered yet."""

    peer: NodeId
    sent_at: float
    purpose: str
    """One of round, relay, call, ping or introduction."""
    twin: int | None = None
    """Sequence number of the other probe of the same turn, if there is one."""
    helpers: int = 0
    nacks: int = 0
    client: NodeId = ""
    client_address: Address = ("", 0)
    client_sequence: int = 0


class _Ping(msgspec.Struct):
    """A measurement on request: several probes of one peer."""

    tokens: list[int]
    ends_at: float
    to_send: int
    unanswered: list[int] = []
    rtt_ms: float | None = None
    answers: int = 0


class Probing:
    """Keeps all outstanding probes."""

    def __init__(
        self,
        config: MembershipConfig,
        roster: Roster,
        writer: Writer,
        timers: Timers,
        health: LocalHealth,
        counters: Counter[str],
        rng: np.random.Generator,
    ) -> None:
        self.config = config
        self._roster = roster
        self._writer = writer
        self._timers = timers
        self._health = health
        self._counters = counters
        self._sent: dict[int, _Sent] = {}
        self._pings: dict[NodeId, _Ping] = {}
        self._rtt_s: dict[NodeId, float] = {}
        self._sequence = int(rng.integers(0, 2**32))
        self._tokens = 0

    # Our round

    def probe_next(self, now: float, out: list[Action]) -> None:
        """Probes the next peer of the round."""
        name = self._roster.order.next(self._roster.peers)
        if name is not None:
            self.probe(name, now, out)

    def probe(self, name: NodeId, now: float, out: list[Action]) -> None:
        """Probes a member as part of the round."""
        member = self._roster.members.get(name)
        if member is None or not member.reachable or member is self._roster.own:
            return
        sequence = self._next_sequence()
        self._sent[sequence] = _Sent(name, now, "round")
        self._counters["probes_sent"] += 1
        out.append(self._writer.probe(name, member.address, sequence))
        self._timers.set(("direct", sequence), now + self.timeout_s(name))

    def leaves(self, sequence: int, now: float) -> None:
        """Records that a probe is being sent, so that the RTT does not include the time for writing and sealing it."""
        probe = self._sent.get(sequence)
        if probe is not None:
            probe.sent_at = now

    def direct_timed_out(self, sequence: int, now: float, out: list[Action]) -> None:
        """Probes again, directly and through others, after the ack did not come in time."""
        probe = self._sent[sequence]
        member = self._roster.members.get(probe.peer)
        if member is None or not member.reachable:
            del self._sent[sequence]
            return
        probe.twin = self._next_sequence()
        self._sent[probe.twin] = _Sent(probe.peer, now, "round", twin=sequence)
        out.append(self._writer.probe(probe.peer, member.address, probe.twin))
        helpers = self._roster.peers.draw(self.config.indirect_probes, besides=probe.peer)
        probe.helpers = len(helpers)
        patience_s = self.timeout_s(probe.peer)
        farthest_s = max((self.timeout_s(helper) for helper in helpers), default=0.0)
        for helper in helpers:
            address = self._roster.members[helper].address
            out.append(self._writer.indirect_probe(helper, address, sequence, probe.peer, member.address, patience_s))
        self._counters["indirect_probes_sent"] += len(helpers)
        self._timers.set(("deadline", sequence), now + patience_s + farthest_s)

    def deadline_passed(self, sequence: int, now: float, out: list[Action]) -> None:
        """Accuses a peer after no ack came, directly or through others."""
        probe = self._sent[sequence]
        self._end_round_probe(sequence, probe)
        self._counters["probes_unanswered"] += 1
        if probe.nacks * 2 < probe.helpers or probe.helpers == 0:
            self._health.change(+1)
        self._roster.accuse(probe.peer, now, out)

    def receive_ack(self, message: Ack, coordinate: Coordinate | None, received_at: float, now: float, out: list[Action]) -> NodeId | None:
        """Handles a peer's ack; `coordinate` is None if it was invalid. Returns the peer's name if the probe was for an introduction."""
        probe = self._sent.get(message.sequence)
        envelope = message.envelope
        name = envelope.name
        if probe is None or probe.peer != name:
            self._counters["acks_late"] += 1
            return None
        if probe.purpose == "introduction":
            self._end_introduction(message.sequence)
            return name
        self._roster.vitals_shown(Vitals(name, envelope.incarnation, envelope.version, envelope.data), out)
        rtt_s = received_at - probe.sent_at - message.held_us * 1e-6
        if rtt_s <= 0:
            self._counters["rtts_rejected"] += 1
        elif name in self._roster.members:
            known_s = self._rtt_s.get(name, rtt_s)
            self._rtt_s[name] = max(rtt_s, 0.9 * known_s + 0.1 * rtt_s)
            if coordinate is not None:
                out.append(RttMeasured(name, rtt_s * 1000, coordinate))
        if probe.purpose == "round":
            self._end_round_probe(message.sequence, probe)
            self._health.change(-1)
            return None
        del self._sent[message.sequence]
        self._timers.cancel(("expire", message.sequence))
        if probe.purpose == "relay":
            self._timers.cancel(("relay", message.sequence))
            out.append(self._writer.relayed(probe.client, probe.client_address, probe.client_sequence))
        elif probe.purpose == "ping":
            self._ping_answered(name, message.sequence, rtt_s * 1000 if rtt_s > 0 else None, now, out)
        return None

    def introduce(self, record: Alive, now: float, out: list[Action], *, helpers: int) -> None:
        """Probes a name that is not in the table at its announced address, and through `helpers` other members."""
        sequence = self._next_sequence()
        self._sent[sequence] = _Sent(record.name, now, "introduction")
        address = (record.host, record.port)
        out.append(self._writer.probe(record.name, address, sequence))
        patience_s = self.config.timeout_s_max
        for helper in self._roster.peers.draw(helpers, besides=record.name):
            there = self._roster.members[helper].address
            out.append(self._writer.indirect_probe(helper, there, sequence, record.name, address, patience_s))
        self._timers.set(("expire", sequence), now + 3 * patience_s)

    def _end_introduction(self, sequence: int) -> None:
        del self._sent[sequence]
        self._timers.cancel(("expire", sequence))

    def call(self, name: NodeId, now: float, out: list[Action]) -> None:
        """Tells a suspect about the suspicion in a probe. Its ack brings the objection, in case gossip has missed it."""
        member = self._roster.members.get(name)
        if member is None or len(self._sent) >= self.config.pending_max:
            return
        sequence = self._next_sequence()
        self._sent[sequence] = _Sent(name, now, "call")
        out.append(self._writer.probe(name, member.address, sequence))
        self._timers.set(("expire", sequence), now + self.config.timeout_s_max * self._health.factor)

    def receive_relayed(self, sequence: int) -> NodeId | None:
        """Handles a helper's message that the peer answered. Returns the peer's name if the probe was for an introduction."""
        probe = self._sent.get(sequence)
        if probe is None:
            return None
        if probe.purpose == "introduction":
            self._end_introduction(sequence)
            return probe.peer
        if probe.purpose == "round" and probe.helpers:
            self._end_round_probe(sequence, probe)
            self._health.change(-1)
        return None

    def receive_nack(self, sequence: int) -> None:
        """Handles a nack: the helper got no ack either, but the helper and the path to it work."""
        probe = self._sent.get(sequence)
        if probe is not None and probe.purpose == "round" and probe.nacks < probe.helpers:
            probe.nacks += 1

    def _end_round_probe(self, sequence: int, probe: _Sent) -> None:
        for number in (sequence, probe.twin):
            if number is not None:
                del self._sent[number]
                self._timers.cancel(("direct", number))
                self._timers.cancel(("deadline", number))

    def timeout_s(self, name: NodeId) -> float:
        """Returns how long this peer's answer may take, in seconds; longer while we doubt ourselves."""
        rtt_s, config = self._rtt_s.get(name), self.config
        if rtt_s is None:
            own, peer = self._roster.own.coordinate, self._roster.members[name].coordinate
            if own is not None and peer is not None and own.error < ERROR_MAX and peer.error < ERROR_MAX:
                rtt_s = estimated_rtt_ms(own, peer) / 1000
        wait_s = config.timeout_s_max if rtt_s is None else RTT_MULTIPLE * rtt_s + RTT_MARGIN_S
        return min(max(wait_s, config.timeout_s_min), config.timeout_s_max) * self._health.factor

    # For others

    def relay(self, message: IndirectProbe, address: Address, now: float, out: list[Action]) -> None:
        """Probes a peer for another member."""
        if message.target == self._roster.own.name:
            out.append(self._writer.relayed(message.envelope.name, address, message.sequence))
            return
        if len(self._sent) >= self.config.pending_max:
            self._counters["relays_refused"] += 1
            return
        member = self._roster.members.get(message.target)
        target = member.address if member is not None and member.reachable else (message.host, message.port)
        sequence = self._next_sequence()
        self._sent[sequence] = _Sent(
            message.target,
            now,
            "relay",
            client=message.envelope.name,
            client_address=address,
            client_sequence=message.sequence,
        )
        out.append(self._writer.probe(message.target, target, sequence))
        self._timers.set(("relay", sequence), now + message.patience_ms / 1000)

    def relay_timed_out(self, sequence: int, now: float, out: list[Action]) -> None:
        """Sends a nack, which says that we work although the peer is silent. The peer's ack may still come."""
        probe = self._sent[sequence]
        out.append(self._writer.nack(probe.client, probe.client_address, probe.client_sequence))
        self._timers.set(("expire", sequence), now + self.config.timeout_s_max)

    def expired(self, sequence: int) -> None:
        """Drops a probe that nobody waits for any more."""
        del self._sent[sequence]

    # On request

    def ping(self, name: NodeId, now: float, out: list[Action]) -> int:
        """Measures the RTT to a member now; requests for the same member share one measurement."""
        self._tokens += 1
        member = self._roster.members.get(name)
        if member is None or member is self._roster.own or (name not in self._pings and len(self._sent) >= self.config.pending_max):
            out.append(PingDone(self._tokens, name, None))
            return self._tokens
        ping = self._pings.get(name)
        if ping is not None:
            ping.tokens.append(self._tokens)
            return self._tokens
        self._pings[name] = _Ping([self._tokens], now + self.config.ping_timeout_s, self.config.ping_count)
        self._timers.set(("ping_end", name), now + self.config.ping_timeout_s)
        self.ping_next(name, now, out)
        return self._tokens

    def ping_next(self, name: NodeId, now: float, out: list[Action]) -> None:
        """Sends the next probe of a measurement."""
        ping, member = self._pings[name], self._roster.members.get(name)
        if member is None:
            return
        sequence = self._next_sequence()
        self._sent[sequence] = _Sent(name, now, "ping")
        ping.unanswered.append(sequence)
        ping.to_send -= 1
        out.append(self._writer.probe(name, member.address, sequence))
        if ping.to_send:
            self._timers.set(("ping", name), now + PING_SPACING_S)

    def _ping_answered(self, name: NodeId, sequence: int, rtt_ms: float | None, now: float, out: list[Action]) -> None:
        ping = self._pings.get(name)
        if ping is None:
            return
        ping.unanswered.remove(sequence)
        ping.answers += 1
        if rtt_ms is not None:
            ping.rtt_ms = rtt_ms if ping.rtt_ms is None else min(ping.rtt_ms, rtt_ms)
            # The other probes were sent a moment later. A probe that takes much longer is lost, or is not the fastest.
            soon = now + PING_SPACING_S * ping.to_send + RTT_MARGIN_S + 2 * rtt_ms / 1000
            if soon < ping.ends_at:
                ping.ends_at = soon
                self._timers.set(("ping_end", name), soon)
        if ping.answers == self.config.ping_count:
            self.ping_ended(name, out)

    def ping_ended(self, name: NodeId, out: list[Action]) -> None:
        """Answers all requests for this measurement."""
        ping = self._pings.pop(name)
        self._timers.cancel(("ping", name))
        self._timers.cancel(("ping_end", name))
        for sequence in ping.unanswered:
            del self._sent[sequence]
        out.extend(PingDone(token, name, ping.rtt_ms) for token in ping.tokens)

    def forget(self, name: NodeId) -> None:
        """Drops the measured RTT of a member that is gone, because the member may come back elsewhere."""
        self._rtt_s.pop(name, None)

    def _next_sequence(self) -> int:
        sequence = self._sequence
        self._sequence = (sequence + 1) % 2**32
        return sequence
