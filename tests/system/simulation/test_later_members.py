"""Members of a later release in an overlay of this release: agents skip their additions to messages, and understand the rest."""

import msgspec
import pytest

from sbon.cost_space.coordinate import Coordinate
from sbon.errors import RemoteProtocolError
from sbon.membership import Capacity, MembershipConfig, MemberStatus, make_digest
from sbon.membership.messages import Alive, Envelope, Gossip, Left, Probe, State, Vitals, decode, decode_state, encode, pack_vitals
from tests.system.simulation.membership_world import World

ALIVE, LEFT = MemberStatus.ALIVE, MemberStatus.LEFT
LATER_NEWS = [77, "of a later release", {"a": 1}]


def envelope(raw: list) -> list:
    raw[5] = [[*item, "later", {}] for item in raw[5]] + [LATER_NEWS]
    raw[6] = [[*item, 1.5] for item in raw[6]]
    raw[4] += b"later"
    return [*raw, "later", [1, 2]]


def later(data: bytes) -> bytes:
    """Returns the message as a later release might write it: more fields in every array, more bytes in vitals, new kinds of news."""
    raw = msgspec.msgpack.decode(data[1:])
    if isinstance(raw[0], int):
        raw[1] = envelope(raw[1])
        raw = [*raw, None, "later"]
    else:  # a full state
        rows = [[*row[:8], [*row[8], "later"] if row[8] else None, *row[9:], "later"] for row in raw[1]]
        rows.append(["unborn", 9, 0, 0, "10.0.0.99", 1, {}, 0, None, [-1, -1], b"", "a status of a later release"])
        raw = [raw[0], rows, "later"]
    return data[:1] + msgspec.msgpack.encode(raw)


class LaterWorld(World):
    """A world in which some members write messages of a later release, but read as this release does."""

    def speak_later(self, names: list[str]) -> None:
        self.later = set(names)

    def _send(self, node, action):
        if node.name in self.later:
            action = msgspec.structs.replace(action, data=later(action.data))
        super()._send(node, action)

    def _push_pull(self, node, action):
        machine = node.machine
        if machine is not None and node.name in self.later and not hasattr(machine, "is_later"):
            machine.is_later, write = True, machine.full_state
            machine.full_state = lambda: later(write())
        super()._push_pull(node, action)


def test_a_mixed_overlay_meets_measures_notices_crashes_and_says_goodbye():
    world = LaterWorld(seed=1)
    world.speak_later([f"n{i:02d}" for i in range(0, 12, 2)])
    names = world.start_many(12)
    world.run_until(lambda: world.all_alive(names), within_s=10)
    world.machine("n02").announce(make_digest(["x"]), Capacity(7, 0.5))
    world.run(20)
    row = world.machine("n03").members["n02"]
    assert (row.capacity, row.digest) == (Capacity(7, 0.5), make_digest(["x"]))
    assert row.coordinate is not None
    for name in ("n04", "n05"):
        world.kill(name)
        world.run_until(lambda name=name: world.all_see(name, MemberStatus.FAILED), within_s=10)
    world.leave("n06")
    world.run_until(lambda: world.all_see("n06", LEFT), within_s=5)
    assert not any(node.machine.counters["refused"] for node in world.nodes.values() if node.machine)
    assert world.machine("n03").counters["news_unknown"] > 0
    assert "unborn" not in world.machine("n03").members


def test_a_message_of_an_unknown_kind_is_counted_and_dropped():
    world = World(seed=2, config=MembershipConfig())
    world.start("a")
    machine = world.machine("a")
    probe = encode(Probe(Envelope("b", 0, 1, 0, bytes(32), [], []), 1, "a"))
    raw = msgspec.msgpack.decode(probe[1:])
    assert machine.receive(probe[:1] + msgspec.msgpack.encode([42, *raw[1:]]), ("10.0.0.9", 1), 0.0) == []
    assert machine.counters["kinds_unknown"] == 1


def test_what_is_known_of_a_later_message_is_read_as_it_was_written():
    vitals = pack_vitals(Coordinate((1.0, 2.0, 3.0), 4.0, 0.5), Capacity(1, 0.25))
    news = [Alive("c", 3, 4, "10.0.0.3", 5, {"k": "v"}), Left("d", 2)]
    message = Gossip(Envelope("b", 1, 2, 3, vitals, news, [Vitals("c", 3, 4, vitals)]))
    read = decode(later(encode(message)))
    assert read is not None
    assert read.envelope.news == news
    assert read.envelope.vitals == message.envelope.vitals
    assert read.envelope.data[: len(vitals)] == vitals
    assert decode_state(later(encode(State("b", [])))).name == "b"


NONSENSE = [[], ["x"], [6], [6, []], [6, [1, 2, 3, 4, 5, 6]], [6, ["b", 0, 1, 0, b"", [[77]], "x"]], 7, [[6]]]


@pytest.mark.parametrize("raw", NONSENSE)
def test_nonsense_of_unknown_kinds_is_refused_like_all_nonsense(raw):
    with pytest.raises(RemoteProtocolError):
        decode(b"\x01" + msgspec.msgpack.encode(raw))
