"""Membership and coordinate of one agent, joined with datagrams: the effect of each action, and which datagrams are accepted."""

from typing import Any

import pytest

from sbon.cost_space.config import CoordinateConfig
from sbon.cost_space.coordinate import Coordinate
from sbon.errors import RemoteProtocolError
from sbon.membership import actions
from sbon.membership.config import MembershipConfig
from sbon.membership.gossip import Gossip
from sbon.membership.members import Capacity, MemberStatus
from sbon.membership.messages import Ack, Envelope, decode, encode_ack, pack_vitals
from sbon.sealing import NONCE_BYTES, KeyRing
from tests.recorder import FakeHost, Recorder, member

THERE = ("10.0.0.2", 1)
FAR = Coordinate((30.0, 0.0, 0.0), 0.0, 0.1)
ACK = encode_ack(Ack(Envelope("a", 0, 5, 0, pack_vitals(FAR, Capacity()), [], []), 5, 0))


class Host(FakeHost):
    """A machine that records the datagrams it sends; sealing takes 5 ms."""

    def __init__(self, log: list[Any]) -> None:
        super().__init__()
        self.log = log

    def random_bytes(self, count: int) -> bytes:
        self.time += 0.005
        return bytes(count)

    def send_datagram(self, data: bytes, address: Any) -> None:
        self.log.append(("sent", data, address))


class World:
    """Agent a; the test decides which actions its state machine wants."""

    def __init__(self, key: bytes | None = None) -> None:
        self.log: list[Any] = []
        self.events = Recorder()
        self.host = Host(self.log)
        ring = None if key is None else KeyRing([key])
        self.gossip = Gossip(self.host, MembershipConfig(), CoordinateConfig(), "a", ("10.0.0.1", 1), {}, 0, None, ring, self.events)
        self.wanted: list[actions.Action] = []
        self.wake_at: float | None = None
        self.members = {name: member(name) for name in ("b", "a")}
        self.gossip.machine = Recorder(
            name="a",
            members=self.members,
            receive=self.received,
            merge=lambda *given: self.take(),
            wake=lambda now: self.log.append(("woken", now)) or self.take(),
            ping=lambda peer, now: (7, self.take()),
            next_wake=lambda: self.wake_at,
            probe_leaves=lambda number, now: self.log.append(("leaves", number, now)),
        )

    def take(self) -> list[actions.Action]:
        wanted, self.wanted = self.wanted, []
        return wanted

    def received(self, data: bytes, *given: Any) -> list[actions.Action]:
        if data == b"nonsense":
            raise RemoteProtocolError("nonsense")
        self.log.append(("received", data, *given))
        return self.take()

    def want(self, *wanted: actions.Action) -> None:
        """Makes the state machine ask for these actions after an event."""
        self.wanted = list(wanted)
        self.gossip.merge(b"")


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize(("action", "event", "given"), [
    (actions.MemberChanged("b", None, MemberStatus.ALIVE), "member_changed", ("b", None, MemberStatus.ALIVE)),
    (actions.MemberUpdated("b", True), "member_updated", ("b", True)),
    (actions.MemberForgotten("b"), "member_forgotten", ("b",)),
    (actions.PushPull(THERE), "push_pull", (THERE,)),
    (actions.NameConflict("a", THERE), "name_conflict", (THERE,)),
    (actions.LeaveDone(), "left", ()),
])  # fmt: skip
def test_news_of_members_is_passed_on(world: World, action: actions.Action, event: str, given: tuple[Any, ...]) -> None:
    world.want(action)
    assert [(call.name, call.given) for call in world.events.calls] == [(event, given)]


def test_a_round_trip_moves_the_coordinate_and_is_told_with_what_was_predicted_before(world: World) -> None:
    before = world.gossip.localiser.coordinate
    world.want(actions.RttMeasured("b", 12.0, FAR))
    [(peer, rtt_ms, predicted_ms)] = world.events.calls_of("rtt_measured")
    assert (peer, rtt_ms, predicted_ms) == ("b", 12.0, pytest.approx(30.0, abs=1.0))
    assert world.gossip.localiser.coordinate != before
    assert world.gossip.latency_ms("b") == pytest.approx(6.0)
    world.want(actions.RttMeasured("b", float("nan"), FAR))
    assert len(world.events.calls) == 1
    world.want(actions.MemberForgotten("b"))
    assert world.gossip.localiser.measured_rtt_ms("b") is None


def test_a_measurement_is_given_to_whoever_asked_for_it_once(world: World) -> None:
    answers: list[float | None] = []
    world.gossip.ping("b", answers.append)
    world.want(actions.PingDone(8, "b", 3.0))
    assert answers == []
    world.want(actions.PingDone(7, "b", None), actions.PingDone(7, "b", 3.0))
    assert answers == [None]


def test_a_probe_has_left_just_before_it_is_sent(world: World) -> None:
    world.gossip.key_ring = KeyRing([b"k" * 32])
    world.want(actions.SendDatagram(THERE, b"probe", probe=5))
    assert [(entry[0], entry[-1]) for entry in world.log] == [("leaves", world.host.time), ("sent", THERE)]
    assert world.gossip.counters["datagrams_sent"] == 1


def test_an_answer_says_how_long_it_was_held_sealing_included(world: World) -> None:
    world.gossip.key_ring = KeyRing([b"k" * 32])
    world.want(actions.SendDatagram(THERE, ACK, answers_at=world.host.time - 0.020))
    [(_, sealed, _)] = world.log
    message = decode(world.gossip.key_ring.open(sealed))
    assert isinstance(message, Ack)
    assert message.held_us == pytest.approx(25_000, abs=100)


def test_only_what_the_ring_opens_is_let_in(world: World) -> None:
    ring = world.gossip.key_ring = KeyRing([b"k" * 32])
    for data in (b"plain", KeyRing([b"o" * 32]).seal(b"other", bytes(NONCE_BYTES)), ring.seal(b"nonsense", bytes(NONCE_BYTES))):
        world.gossip.datagram(data, THERE, 99.0)
    assert world.log == []
    world.gossip.datagram(ring.seal(b"hello", bytes(NONCE_BYTES)), THERE, 99.0)
    assert world.log == [("received", b"hello", THERE, world.host.time, 99.0)]
    assert (world.gossip.counters["datagrams_received"], world.gossip.counters["datagrams_refused"]) == (4, 3)


def test_without_a_ring_datagrams_are_plain(world: World) -> None:
    world.gossip.datagram(b"hello", THERE, 99.0)
    world.want(actions.SendDatagram(THERE, b"there"))
    assert [entry[:2] for entry in world.log] == [("received", b"hello"), ("sent", b"there")]


def test_the_machine_is_woken_when_it_wants_and_once(world: World) -> None:
    world.wake_at = 105.0
    world.want()
    world.want()
    assert world.host.pending == [105.0]
    world.wake_at = 103.0
    world.want()
    assert world.host.pending == [103.0]
    world.wake_at = None
    world.host.wait(10.0)
    assert (world.log, world.host.pending) == ([("woken", 103.0)], [])


def test_after_the_end_nothing_is_heard_and_nobody_woken(world: World) -> None:
    world.wake_at = 105.0
    world.want()
    world.gossip.close()
    world.gossip.datagram(b"hello", THERE, 99.0)
    world.host.wait(10.0)
    assert (world.log, world.host.pending) == ([], [])


@pytest.mark.parametrize(("status", "gone", "has_address"), [
    (MemberStatus.ALIVE, None, True),
    (MemberStatus.SUSPECT, None, True),
    (MemberStatus.FAILED, MemberStatus.FAILED, True),
    (MemberStatus.LEFT, MemberStatus.LEFT, False),
])  # fmt: skip
def test_what_is_said_of_a_member_follows_its_status(world: World, status: MemberStatus, gone: Any, has_address: bool) -> None:
    world.members["b"].status = status
    assert world.gossip.departure_of("b") is gone
    assert (world.gossip.address_of("b") is not None) is has_address
    assert list(world.gossip.alive_labels()) == (["a", "b"] if status is MemberStatus.ALIVE else ["a"])
    assert set(world.gossip.coordinates()) == ({"a", "b"} if status is MemberStatus.ALIVE else {"a"})


def test_a_forgotten_member_has_failed_and_this_agent_never_has(world: World) -> None:
    world.members["a"].status = MemberStatus.FAILED
    assert (world.gossip.departure_of("a"), world.gossip.departure_of("x")) == (None, MemberStatus.FAILED)
    assert world.gossip.address_of("x") is None


def test_latencies_are_measured_or_else_predicted_or_unknown(world: World) -> None:
    world.members["b"].coordinate = FAR
    assert (world.gossip.latency_ms("a"), world.gossip.latency_ms("b")) == (0.0, pytest.approx(15.0, abs=0.5))
    assert world.gossip.estimated_rtt_ms("b", "b") == 0.0
    world.members["b"].coordinate = None
    assert (world.gossip.latency_ms("b"), world.gossip.estimated_rtt_ms("a", "x")) == (None, None)
