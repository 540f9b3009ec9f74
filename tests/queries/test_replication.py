"""The names of the overlay reach all agents."""

from typing import Any

import pytest

from sbon.errors import LinkError, RemoteProtocolError
from sbon.queries.replication import Replication
from sbon.query.catalog import Entry
from sbon.wire.messages import Done
from sbon.wire.replication import CatalogUpdate, PushPull
from tests.recorder import FakeGossip, Recorder

THERE = ("10.0.0.2", 1)


class World:
    """Agent a, which knows b and c."""

    def __init__(self) -> None:
        self.refused: list[str] = []
        self.merged: list[tuple[Any, ...]] = []
        self.problem = ""
        self.directory = Recorder(me="a")
        gossip = FakeGossip("a", "b", "c")
        gossip.machine.full_state, gossip.merge = lambda: b"members of a", self.merge
        self.tables = Replication(self.directory, gossip, lambda: 1000.0, self.refused.append)
        self.changed: list[list[Entry]] = []
        self.heard = 0
        self.tables.changed = self.changed.append
        self.tables.heard = self.hear

    @property
    def told(self) -> list[tuple[Any, ...]]:
        return self.directory.calls_of("tell")

    def merge(self, *given: Any) -> None:
        if self.problem:
            raise RemoteProtocolError(self.problem)
        self.merged.append(given)

    def hear(self) -> None:
        self.heard += 1


@pytest.fixture
def world() -> World:
    return World()


def entered(owner: str = "b") -> tuple[Entry, ...]:
    """Returns names as another agent has them."""
    other = World()
    other.tables.catalog.put("view", "theirs", sql="SELECT 1", owner=owner, stamp=5, source=None, query=None)
    return tuple(other.tables.catalog.entries())


def test_a_new_name_is_told_to_all_others_at_once(world: World) -> None:
    world.tables.put("view", "prices", sql="SELECT 1", stamp=5)
    assert [node for node, _ in world.told] == ["b", "c"]
    assert all(isinstance(message, CatalogUpdate) and message.entries[0].name == "prices" for _, message in world.told)


def test_a_dropped_name_is_told_too(world: World) -> None:
    world.tables.put("view", "prices", sql="SELECT 1", stamp=5)
    world.directory.calls.clear()
    world.tables.drop("view", "prices", stamp=6)
    assert {message.entries[0].dropped for _, message in world.told} == {True}


def test_what_others_tell_is_entered_once_and_reported(world: World) -> None:
    world.tables.updated(CatalogUpdate(entries=entered()))
    world.tables.updated(CatalogUpdate(entries=entered()))
    assert [[entry.name for entry in entries] for entries in world.changed] == [["theirs"]]
    assert world.told == []


def test_tables_are_exchanged_both_ways(world: World) -> None:
    world.tables.put("view", "ours", sql="SELECT 1", stamp=5)
    answer = world.tables.pulled(PushPull(members=b"members of b", catalog=entered()))
    assert [entry.name for entry in answer.catalog] == ["ours"]
    assert (answer.members, world.merged, world.heard) == (b"members of a", [(b"members of b",)], 1)
    assert world.tables.catalog.get("theirs") is not None


def test_an_answer_to_an_exchange_is_taken_and_a_failure_ignored(world: World) -> None:
    world.tables.exchange(THERE)
    address, message, done = world.directory.pop("request_at").given
    assert (address, isinstance(message, PushPull)) == (THERE, True)
    done(LinkError("nobody there"))
    done(Done())
    assert (world.heard, world.refused) == (0, [])
    done(PushPull(members=b"members of b", catalog=entered()))
    assert (world.heard, world.merged) == (1, [(b"members of b", THERE)])


def test_members_that_cannot_be_read_are_refused_with_the_names_beside_them(world: World) -> None:
    world.problem = "no members"
    world.tables.exchange(THERE)
    world.directory.pop("request_at").done(PushPull(members=b"?", catalog=entered()))
    assert (world.refused, world.heard) == (["no members"], 0)
    assert world.tables.catalog.get("theirs") is None


def test_only_ones_own_names_come_back_after_a_restart(world: World) -> None:
    world.tables.restore([*entered("a"), *entered("b")])
    assert [entry.owner for entry in world.tables.catalog.entries()] == ["a"]
