"""The codecs of membership, given any bytes that could arrive."""

import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbon.cost_space.coordinate import VECTOR_MS_MAX, Coordinate
from sbon.errors import CoordinateError, RemoteProtocolError
from sbon.membership import Capacity, Membership, MembershipConfig, SendDatagram
from sbon.membership.messages import (
    Ack,
    Alive,
    Envelope,
    Failed,
    Gossip,
    Hosted,
    IndirectProbe,
    Left,
    Nack,
    Probe,
    Relayed,
    Suspect,
    Vitals,
    decode,
    decode_state,
    encode,
    pack_vitals,
    unpack_vitals,
)
from tests.examples import examples

NAMES = st.text("abcXYZ019_.:-", min_size=1, max_size=64)
KNOWN = st.sampled_from(["a", "b", "c", "d"])
ANY_NAME = NAMES | KNOWN
INCARNATIONS = st.integers(0, 2**53)
NUMBERS = st.integers(0, 2**32 - 1)
PORTS = st.integers(1, 65535)
HOSTS = st.sampled_from(["10.0.0.1", "::1", "node.example"])
LABELS = st.dictionaries(st.text(min_size=1, max_size=8), st.text(max_size=8), max_size=4)
BYTES32 = st.binary(min_size=32, max_size=32)
NEWS = st.one_of(
    st.builds(Alive, ANY_NAME, INCARNATIONS, NUMBERS, HOSTS, PORTS, LABELS),
    st.builds(Suspect, ANY_NAME, INCARNATIONS, ANY_NAME),
    st.builds(Failed, ANY_NAME, INCARNATIONS, ANY_NAME),
    st.builds(Left, ANY_NAME, INCARNATIONS),
    st.builds(Hosted, ANY_NAME, INCARNATIONS, INCARNATIONS, st.binary(max_size=256)),
)
VITALS = st.builds(Vitals, ANY_NAME, INCARNATIONS, INCARNATIONS, BYTES32 | st.binary(max_size=64))
ENVELOPES = st.builds(
    Envelope, ANY_NAME, INCARNATIONS, NUMBERS, INCARNATIONS, BYTES32, st.lists(NEWS, max_size=2), st.lists(VITALS, max_size=3)
)
MESSAGES = st.one_of(
    st.builds(Probe, ENVELOPES, NUMBERS, ANY_NAME),
    st.builds(Ack, ENVELOPES, NUMBERS, st.integers(0, 60_000_000)),
    st.builds(IndirectProbe, ENVELOPES, NUMBERS, ANY_NAME, HOSTS, PORTS, st.integers(0, 60_000)),
    st.builds(Relayed, ENVELOPES, NUMBERS),
    st.builds(Nack, ENVELOPES, NUMBERS),
    st.builds(Gossip, ENVELOPES),
).filter(lambda message: len(encode(message)) <= 1200)


def make_membership(name: str = "a", seed: int = 1) -> Membership:
    coordinate = Coordinate((1.0, 2.0, 3.0), 4.0, 0.25)
    machine = Membership(MembershipConfig(members_max=20), name, ("10.0.0.1", 1), {}, 0, lambda: coordinate, np.random.default_rng(seed))
    machine.join([], 0.0)
    return machine


def introduce(machine: Membership, *records: Alive) -> None:
    """Introduces members that answer at once."""
    told = Gossip(Envelope("b", 0, 7, 0, bytes(32), list(records), []))
    boots = {record.name: record.boot for record in records}
    for action in machine.receive(encode(told), ("10.0.0.9", 9), 0.0):
        if isinstance(action, SendDatagram) and isinstance(probe := decode(action.data), Probe):
            answer = Ack(Envelope(probe.target, 0, boots[probe.target], 0, bytes(32), [], []), probe.sequence, 0)
            machine.receive(encode(answer), action.address, 0.0)
    assert set(boots) <= set(machine.members)


@given(st.binary(max_size=1400))
def test_random_bytes_are_refused_in_one_way(data):
    for read in (decode, decode_state):
        with contextlib.suppress(RemoteProtocolError):
            read(data)
        with contextlib.suppress(RemoteProtocolError):
            read(b"\x01" + data)


@given(MESSAGES)
def test_what_is_written_is_read(message):
    assert decode(encode(message)) == message


@given(MESSAGES, st.data())
def test_damaged_messages_are_refused_or_read_but_never_crash(message, data):
    damaged = bytearray(encode(message))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(damaged)))
    machine = make_membership()
    for piece in (bytes(damaged), bytes(damaged[:cut])):
        with contextlib.suppress(RemoteProtocolError):
            machine.receive(piece, ("10.0.0.2", 1), 0.0)


@examples(60)
@given(st.lists(st.tuples(MESSAGES, st.floats(0, 5)), max_size=12))
def test_no_sequence_of_wellformed_messages_breaks_the_machine(script):
    """Invariants: rows never fall in (incarnation, rank) order, we stay alive, datagrams stay short, the table stays bounded."""
    machine, now = make_membership(), 0.0
    introduce(machine, *(Alive(name, 0, 7, "10.0.0.9", 9, {}) for name in ("b", "c", "d")))
    for message, pause_s in script:
        now += pause_s
        while (when := machine.next_wake()) is not None and when <= now:
            for action in machine.wake(when):
                assert len(getattr(action, "data", b"")) <= 1200
        before = machine.incarnation
        for action in machine.receive(encode(message), ("10.0.0.2", 1), now):
            assert len(getattr(action, "data", b"")) <= 1200
        assert machine.incarnation >= before
        assert machine.own.status.value == "alive"
        assert len(machine.members) <= 20
    other = make_membership("z", seed=2)
    other.merge(machine.full_state(), now)
    told = {name for name in machine.members if machine.members[name].reachable}
    assert told <= set(other.members) | set(other._roster.introductions.waiting)


@examples(60)
@given(st.lists(NEWS, max_size=12), st.randoms(use_true_random=False))
def test_the_order_of_statements_does_not_matter_to_the_outcome(news, random):
    """The outcome is the join in the lattice (incarnation, rank), once each member is known."""
    introductions = [Alive(name, 0, 7, "10.0.0.9", 9, {}) for name in ("b", "c", "d")]
    shuffled = [item for item in news if not isinstance(item, Alive | Hosted) and item.name in {"b", "c", "d"}]
    outcomes = []
    for _ in range(2):
        machine = make_membership()
        introduce(machine, *introductions)
        for item in shuffled:
            machine.receive(encode(Gossip(Envelope("b", 0, 7, 0, bytes(32), [item], []))), ("10.0.0.9", 9), 0.0)
        outcomes.append({name: (row.incarnation, row.status) for name, row in machine.members.items() if name in {"b", "c", "d"}})
        random.shuffle(shuffled)
    assert outcomes[0] == outcomes[1]


COORDINATES = st.floats(-VECTOR_MS_MAX, VECTOR_MS_MAX, width=32)
HEIGHTS = st.floats(0, VECTOR_MS_MAX, width=32)


@given(st.tuples(COORDINATES, COORDINATES, COORDINATES), HEIGHTS, st.floats(0, 10, width=32), HEIGHTS, st.integers(0, 2**32 - 1))
def test_vitals_survive_the_wire_to_the_precision_of_32_bits(vector, height_ms, error, load_ms, free):
    coordinate, capacity = unpack_vitals(pack_vitals(Coordinate(vector, height_ms, error, load_ms), Capacity(free, 0.5)))
    assert coordinate == Coordinate(vector, height_ms, error, load_ms)
    assert capacity == Capacity(free, 0.5)


@given(st.binary(max_size=64))
def test_random_vitals_give_sane_values_or_one_error(data):
    with contextlib.suppress(CoordinateError):
        coordinate, _ = unpack_vitals(data)
        assert all(abs(x) <= VECTOR_MS_MAX for x in coordinate.vector)


def test_vitals_of_another_length_are_refused():
    with pytest.raises(CoordinateError):
        unpack_vitals(bytes(31))
