"""A host asks homes which of the queries that it serves are over, and releases these."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from sbon.errors import LinkError
from sbon.queries.wanted import Wanted
from sbon.supervision.owners import Owner, Owners
from sbon.supervision.promises import Promise, Promises
from sbon.supervision.wanted_questions import WantedQuestions
from sbon.wire.messages import Done
from sbon.wire.ownership import Claims, Holder
from sbon.wire.replication import Unwanted, WantedAsk


class World:
    """Host `here`, with operators of queries whose homes are a and b."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any, Callable[[Any], None]]] = []
        self.released: list[str] = []
        self.destroyed: list[str] = []
        self.inherits = self.is_waited_for = False
        self.instances = {
            "a.0000001.01.1": SimpleNamespace(id="a.0000001.01.1", users={"a.0000001.01": "a", "b.0000001.02": "b"}, epoch=3),
            "b.0000001.02.1": SimpleNamespace(id="b.0000001.02.1", users={"b.0000001.02": "b"}, epoch=0),
        }
        directory: Any = SimpleNamespace(me="here", request=lambda node, message, done: self.asked.append((node, message, done)))
        operators: Any = self
        self.orphans: set[str] = set()
        self.claims: list[tuple[list[str], Callable[[Claims], None]]] = []
        homes: Any = SimpleNamespace(to_ask=self.to_ask, without_owner=lambda: self.orphans)
        asked = SimpleNamespace(disowned=lambda by, asked, said, instances: sorted(asked.served.intersection(said.queries)))
        former = SimpleNamespace(ask=lambda queries, done: self.claims.append((queries, done)))
        ownership = SimpleNamespace(
            wanted_questions=asked, former=former, inheriting=SimpleNamespace(kept_for=lambda: {"c": {"c.0000001.07"}})
        )
        self.owners = Owners()
        register = SimpleNamespace(owners=self.owners)
        queries: Any = SimpleNamespace(ownership=ownership, register=register)
        self.wanted = Wanted(directory, operators, homes, queries, lambda: self.inherits)

    def to_ask(self, query: str, told: str, *, inherits: bool) -> str | None:
        return None if inherits and self.is_waited_for else self.owners.answering(query, told)

    def release(self, query: str) -> list[str]:
        self.released.append(query)
        return []

    def destroy(self, operator: str) -> None:
        self.destroyed.append(operator)

    def answer(self, home: str, answer: Any) -> None:
        next(done for node, _, done in self.asked if node == home)(answer)


@pytest.fixture
def world() -> World:
    return World()


def test_every_home_is_asked_about_its_queries_and_operators(world: World) -> None:
    world.wanted.ask()
    assert [(node, message.queries, message.operators) for node, message, _ in world.asked] == [
        ("a", ("a.0000001.01",), (("a.0000001.01.1", 3),)),
        ("b", ("b.0000001.02",), (("b.0000001.02.1", 0),)),
        ("c", ("c.0000001.07",), ()),
    ]


def test_a_home_that_has_come_back_is_asked_alone(world: World) -> None:
    world.wanted.ask("b")
    assert [node for node, _, _ in world.asked] == ["b"]


def test_only_what_the_home_was_asked_for_is_released(world: World) -> None:
    world.wanted.ask()
    world.answer("b", Unwanted(queries=("a.0000001.01", "b.0000001.02")))
    assert world.released == ["b.0000001.02"]


def test_a_copy_that_was_made_again_elsewhere_goes_unless_it_is_a_newer_one(world: World) -> None:
    world.wanted.ask()
    world.answer("a", Unwanted(queries=(), operators=(("a.0000001.01.1", 2), ("b.0000001.02.1", 0), ("x.0000001.01.1", 0))))
    assert world.destroyed == ["b.0000001.02.1"]


@pytest.mark.parametrize("answer", [LinkError("too late"), Done()])
def test_without_an_answer_everything_stays(world: World, answer: Any) -> None:
    world.wanted.ask()
    world.answer("a", answer)
    assert (world.released, world.destroyed) == ([], [])


@pytest.mark.parametrize(("inherits", "asked"), [(True, ()), (False, ("b.0000001.02",))])
def test_a_query_that_keepers_may_take_over_just_now_is_not_asked_about(world: World, inherits: bool, asked: tuple[str, ...]) -> None:
    world.inherits, world.is_waited_for = inherits, True
    world.wanted.ask("b")
    assert world.asked[0][1].queries == asked


def test_what_the_next_process_of_a_home_says_of_a_query_that_keepers_may_take_over_releases_nothing(world: World) -> None:
    world.inherits = True
    world.wanted.ask("b")
    world.is_waited_for = True
    world.answer("b", Unwanted(queries=("b.0000001.02",)))
    assert world.released == []


def test_whoever_has_taken_a_query_over_is_asked_though_its_operators_do_not_know_it(world: World) -> None:
    world.owners.heard("b.0000001.02", Owner("c", 1, 1))
    world.wanted.ask()
    assert [(node, message.queries) for node, message, _ in world.asked] == [
        ("a", ("a.0000001.01",)),
        ("c", ("b.0000001.02", "c.0000001.07")),
    ]


def test_whoever_has_kept_a_query_is_asked_for_its_end_when_its_owner_is_gone(world: World) -> None:
    world.wanted.ask()
    world.inherits, world.orphans = True, {"a.0000001.01", "b.0000001.02"}
    world.wanted.ask("b")
    assert world.claims == [], "a home that is back tells by itself which queries are over"
    world.wanted.ask()
    [(queries, done)] = world.claims
    assert queries == ["a.0000001.01", "b.0000001.02"]
    done(Claims(owned=(), kept=(), over=()))
    assert world.released == []
    world.orphans.discard("b.0000001.02")
    done(Claims(owned=(), kept=(), over=("a.0000001.01", "b.0000001.02", "c.0000001.01")))
    assert world.released == ["a.0000001.01"]


@pytest.mark.parametrize(
    ("is_over", "owner", "is_known", "unwanted"),
    [
        (True, Owner("a", 1, 0), False, ("a.0000001.01",)),
        (True, Owner("here", 1, 4), False, ("a.0000001.01",)),
        (True, Owner("b", 1, 4), False, ()),
        (True, Owner("a", 1, 0), True, ()),
        (False, Owner("a", 1, 0), False, ()),
    ],
    ids=["ended", "ended here", "owned elsewhere", "runs here", "not ended"],
)
def test_who_has_given_up_a_query_that_started_again_elsewhere_does_not_want_it(
    is_over: bool, owner: Owner, is_known: bool, unwanted: tuple[str, ...]
) -> None:
    """Hosts that still take this agent for the owner would keep the operators, and the query could not begin under its new id."""
    query = "a.0000001.01"
    promises = Promises()
    promises.note(Promise(query, 3, Holder("here", 1), is_over=is_over))
    none = SimpleNamespace(of=lambda query: owner)
    register: Any = SimpleNamespace(
        me="here",
        owners=none,
        unwanted=lambda queries: (),
        outlived=lambda copies: (),
        given_up=lambda operators: (),
        knows=lambda query: is_known,
    )
    inheriting: Any = SimpleNamespace(records={}, promises=promises)
    assert WantedQuestions(register, inheriting, {}).answer(WantedAsk(queries=(query,))).queries == unwanted
