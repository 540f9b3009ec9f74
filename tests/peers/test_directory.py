"""Messages to nodes by name: which connection is wanted, who answers, and errors about nodes that cannot be reached."""

from collections.abc import Callable
from typing import Any

import pytest

from sbon.errors import LinkError, PlacementError
from sbon.peers.directory import Directory
from sbon.wire.messages import Done, decode, encode
from sbon.wire.reports import OperatorsAsk

HERE, THERE, ELSEWHERE = ("10.0.0.1", 1), ("10.0.0.2", 1), ("10.0.0.3", 1)
ASK = OperatorsAsk(operators=())


class Peers:
    """Records calls to the connections."""

    def __init__(self) -> None:
        self.wanted: list[Any] = []
        self.asked: list[tuple[Any, bytes, Callable[[Any], None], float, dict[str, Any]]] = []
        self.sent: list[tuple[Any, Any, str]] = []

    def want(self, address: Any) -> None:
        self.wanted.append(address)

    def unwant(self, address: Any) -> None:
        self.wanted = [one for one in self.wanted if one != address]

    def send(self, address: Any, payload: Any, expect: str) -> bool:
        self.sent.append((address, payload, expect))
        return True

    def request(self, address: Any, payload: bytes, done: Callable[[Any], None], timeout_s: float, **wanted: Any) -> None:
        self.asked.append((address, payload, done, timeout_s, wanted))


class World:
    """A directory of agent a, with b and c."""

    def __init__(self) -> None:
        self.addresses = {"a": HERE, "b": THERE, "c": ELSEWHERE}
        self.peers, self.soon, self.heard = Peers(), [], []
        peers: Any = self.peers
        self.directory = Directory(self, "a", peers, self.addresses.get, self)  # type: ignore[arg-type]

    def call_soon(self, call: Callable[[], None]) -> None:
        self.soon.append(call)

    def turn(self) -> None:
        """Makes the calls that are due."""
        due, self.soon = self.soon, []
        for call in due:
            call()

    def handle(self, sender: str, message: Any, respond: Callable[[Any], None]) -> None:
        self.heard.append((sender, message))
        respond(Done())


@pytest.fixture
def world() -> World:
    return World()


def test_a_message_wants_the_connection_and_names_who_must_be_there(world: World) -> None:
    assert world.directory.send("b", ASK)
    assert world.peers.wanted == [THERE]
    assert world.peers.sent == [(THERE, encode(ASK), "b")]


def test_nothing_is_sent_to_somebody_unknown(world: World) -> None:
    assert not world.directory.send("nobody", ASK)
    assert world.peers.sent == []


def test_a_node_with_a_new_address_leaves_the_old_one_unless_another_node_has_it(world: World) -> None:
    world.directory.send("b", ASK)
    world.addresses["b"] = ELSEWHERE
    world.directory.send("b", ASK)
    assert world.peers.wanted == [ELSEWHERE]
    world.directory.send("c", ASK)
    world.addresses["b"] = THERE
    world.directory.send("b", ASK)
    assert set(world.peers.wanted) == {ELSEWHERE, THERE}


def test_a_request_to_oneself_is_answered_in_the_next_turn(world: World) -> None:
    answers: list[Any] = []
    world.directory.request("a", ASK, answers.append)
    assert answers == []
    world.turn()
    assert answers == [Done()]
    assert world.heard == [("a", ASK)]


def test_a_refusal_by_oneself_is_the_answer(world: World) -> None:
    def refuse(sender: str, message: Any, respond: Callable[[Any], None]) -> None:
        raise PlacementError("no room")

    world.handle = refuse  # type: ignore[method-assign]
    answers: list[Any] = []
    world.directory.request("a", ASK, answers.append)
    world.turn()
    assert [str(answer) for answer in answers] == ["no room"]


def test_a_request_to_somebody_unknown_fails_in_the_next_turn(world: World) -> None:
    answers: list[Any] = []
    world.directory.request("nobody", ASK, answers.append)
    world.turn()
    assert isinstance(answers[0], LinkError)
    assert world.peers.asked == []


def test_answers_are_read_and_those_that_cannot_be_are_errors(world: World) -> None:
    answers: list[Any] = []
    world.directory.request("b", ASK, answers.append)
    (address, payload, done, _, wanted) = world.peers.asked[0]
    assert (address, decode(payload), wanted) == (THERE, ASK, {"expect": "b", "protocol": 0})
    done(encode(Done()))
    done(b"\xff")
    done(LinkError("lost"))
    assert answers[0] == Done()
    assert isinstance(answers[1], Exception)
    assert str(answers[2]) == "lost"


def test_reaching_several_ends_with_the_last_answer_or_the_first_error(world: World) -> None:
    found: list[Any] = []
    world.directory.reach(["b", "c", "a", "b"], found.append)
    for _, _, done, _, _ in world.peers.asked:
        assert found == []
        done(encode(Done()))
    assert found == [None]

    world.directory.reach(["b", "c"], found.append)
    for _, _, done, _, _ in world.peers.asked[2:]:
        done(LinkError("gone"))
    assert [str(one) for one in found[1:]] == ["a cannot reach b: gone"]


def test_reaching_nobody_else_is_done_in_the_next_turn(world: World) -> None:
    found: list[Any] = []
    world.directory.reach(["a"], found.append)
    assert found == []
    world.turn()
    assert found == [None]


def test_connections_that_no_link_needs_are_let_go_of(world: World) -> None:
    world.directory.send("b", ASK)
    world.directory.send("c", ASK)
    world.directory.keep(["c"])
    assert world.peers.wanted == [ELSEWHERE]
    assert world.directory.node_at(ELSEWHERE) == ["c"]
    assert world.directory.node_at(THERE) == []


def test_only_a_node_that_is_wanted_is_dialled_at_once(world: World) -> None:
    world.directory.hurry("b")
    assert world.peers.wanted == []
    world.directory.send("b", ASK)
    world.directory.hurry("b")
    assert world.peers.wanted == [THERE, THERE]
