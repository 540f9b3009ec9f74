"""Writes messages, and fills each datagram with news and coordinates."""

from collections.abc import Callable

from sbon.cost_space.coordinate import Coordinate
from sbon.membership.actions import SendDatagram
from sbon.membership.members import Capacity, MemberStatus
from sbon.membership.messages import (
    DATAGRAM_BYTES_MAX,
    NEWS_MAX,
    Ack,
    Envelope,
    Gossip,
    IndirectProbe,
    Nack,
    News,
    Probe,
    Relayed,
    Vitals,
    encode,
    encode_ack,
    encoded_bytes,
    pack_vitals,
)
from sbon.membership.roster import Roster
from sbon.types import Address, NodeId

FIXED_BYTES = 110
"""Bytes of any message besides names: integers, our own vitals, MessagePack's headers."""


class Writer:
    """Writes our messages; keeps our own vitals up to date."""

    def __init__(self, roster: Roster, coordinate: Callable[[], Coordinate]) -> None:
        self._roster = roster
        self._coordinate = coordinate
        self._vitals: Vitals | None = None
        self._packed: tuple[Coordinate | None, Capacity | None] = (None, None)

    def probe(self, peer: NodeId, address: Address, sequence: int) -> SendDatagram:
        """Writes a probe."""
        return SendDatagram(address, encode(Probe(self._envelope(peer, len(peer)), sequence, peer)), probe=sequence)

    def ack(self, peer: NodeId, address: Address, sequence: int, received_at: float, held_us: int, corrected: bool) -> SendDatagram:
        """Writes an ack. With `corrected`, it includes our statement about the peer, so that the peer can refute it."""
        message = Ack(self._envelope(peer, 0, corrected=corrected), sequence, held_us)
        return SendDatagram(address, encode_ack(message), answers_at=received_at)

    def indirect_probe(
        self, helper: NodeId, address: Address, sequence: int, peer: NodeId, peer_address: Address, patience_s: float
    ) -> SendDatagram:
        """Writes a request to probe another peer for us."""
        host, port = peer_address
        envelope = self._envelope(helper, len(peer) + len(host) + 8)
        return SendDatagram(address, encode(IndirectProbe(envelope, sequence, peer, host, port, min(int(patience_s * 1000), 60_000))))

    def relayed(self, peer: NodeId, address: Address, sequence: int) -> SendDatagram:
        """Reports that the peer we were asked to probe has answered."""
        return SendDatagram(address, encode(Relayed(self._envelope(peer, 0), sequence)))

    def nack(self, peer: NodeId, address: Address, sequence: int) -> SendDatagram:
        """Reports that the peer we were asked to probe has not answered yet."""
        return SendDatagram(address, encode(Nack(self._envelope(peer, 0), sequence)))

    def gossip(self, peer: NodeId, address: Address, corrected: bool = False) -> SendDatagram:
        """Writes a message with news only."""
        return SendDatagram(address, encode(Gossip(self._envelope(peer, 0, vitals_max=0, corrected=corrected))))

    def own_vitals(self) -> Vitals:
        """Returns our coordinate and capacity, with a new version if they have changed."""
        own = self._roster.own
        coordinate, capacity = self._coordinate(), own.capacity
        vitals = self._vitals
        if vitals is None or coordinate != self._packed[0] or capacity != self._packed[1]:
            version = vitals.version + 1 if vitals is not None else 0
            vitals = Vitals(own.name, own.incarnation, version, pack_vitals(coordinate, capacity))
        elif vitals.incarnation != own.incarnation:
            vitals = Vitals(own.name, own.incarnation, vitals.version, vitals.data)
        else:
            return vitals
        self._vitals, self._packed = vitals, (coordinate, capacity)
        self._roster.vitals[own.name] = vitals
        own.coordinate, own.vitals_version = coordinate, (vitals.incarnation, vitals.version)
        return vitals

    def _envelope(self, peer: NodeId, extra_bytes: int, *, vitals_max: int | None = None, corrected: bool = False) -> Envelope:
        roster = self._roster
        own = self.own_vitals()
        room = DATAGRAM_BYTES_MAX - FIXED_BYTES - len(own.name) - extra_bytes
        told: list[News] = []
        member = roster.members.get(peer)
        if member is not None and (corrected or member.status is not MemberStatus.ALIVE):
            # A peer that hears the statement against it can object at once (Lifeguard's buddy system, section IV-C).
            told = [roster.status_news(member)]
            room -= encoded_bytes(told[0])
        news, used = roster.news.take(room, NEWS_MAX - 1, roster.repeats)
        limit = roster.config.vitals_per_datagram if vitals_max is None else vitals_max
        vitals = roster.vitals_to_tell.take(limit, room - used, peer) if limit else []
        return Envelope(own.name, own.incarnation, roster.own.boot, own.version, own.data, told + news, vitals)
