"""The home of queries crashes: its former and its new queries never mix, and any agent can list and end the former ones."""

from typing import Any

import pytest

from sbon.errors import SbonError
from sbon.query.ids import boot_of, home_of
from sbon_agent.node import Agent
from sbon_testbed.simulator.harness import World
from tests.worlds import settled_world

SOURCES = """
CREATE SOURCE old (ts TIMESTAMP, number BIGINT, stream TEXT) WITH (connector = 'datagen', nodes = '{0}', rows_per_second = 20,
    fields.number.kind = 'sequence', fields.stream.kind = 'choice', fields.stream.values = 'old');
CREATE SOURCE new (ts TIMESTAMP, number BIGINT, stream TEXT) WITH (connector = 'datagen', nodes = '{0}', rows_per_second = 20,
    fields.number.kind = 'sequence', fields.stream.kind = 'choice', fields.stream.values = 'new');
"""
HOME, SOURCE = 0, 1


def make_world(seed: int = 5, **membership: float) -> World:
    # Where queries heal, other agents take them over: test_owners.py.
    settings = {"engine": {"batch_interval_s": 0.2, "heal": False}, "optimiser": {"enabled": False}, "membership": membership}
    world = settled_world(4, seed=seed, settings=settings)
    world.submit(SOURCES.format(world.nodes[SOURCE]), at=SOURCE)
    world.run(1.0)
    return world


def has_joined(world: World, number: int) -> bool:
    """Tells whether a restarted agent knows the other agents and the names."""
    return len(world.ask(number, "members")) == 4 and any(row["name"] == "new" for row in world.ask(number, "names"))


def queries_served(world: World) -> set[str]:
    """Returns the queries that operators of living agents serve."""
    agents = [agent for agent in world.agents if isinstance(agent, Agent)]
    return {query for agent in agents for instance in agent.execution.engine.instances.values() for query in instance.users}


def test_a_restarted_home_gives_its_queries_other_names_and_other_rows() -> None:
    world = make_world()
    for batch in range(4):  # names used to be made from the clock's second and the last name: they must not repeat
        world.submit(";".join([f"SELECT number + {batch} AS number, stream FROM old"] * 3), at=HOME)
    before = queries_served(world)
    assert len(before) == 12

    world.run(1.0)
    world.restart(HOME)
    until = world.now + 2.0
    while not has_joined(world, HOME):
        world.run(0.1)
    assert world.now < until, "so soon that names made from the clock's second would repeat"
    after = [world.submit("SELECT number, stream FROM new", at=HOME) for _ in range(6)]
    tails = [world.tail(query, HOME) for query in after]
    world.run(10.0)

    assert not before & set(after)
    assert {home_of(query) for query in after} == {world.nodes[HOME]}
    assert {boot_of(query) for query in before}.isdisjoint({boot_of(query) for query in after})
    for tail in tails:
        assert len(tail.rows) > 100
        assert {stream for _, stream in tail.rows} == {"new"}
        numbers = [number for number, _ in tail.rows]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def test_hosts_let_go_of_a_former_process_of_a_home_as_soon_as_they_hear_of_the_new_one() -> None:
    world = make_world()
    old = world.submit("SELECT number FROM old WHERE number >= 0", at=HOME)
    other = world.submit("SELECT number FROM old WHERE number < 0", at=2)
    world.run(2.0)
    assert queries_served(world) == {old, other}

    world.restart(HOME)
    world.run_until(lambda: queries_served(world) == {other}, 5.0, "less than engine.wanted_interval_s")


# ------------------------------------------------------------------------------------------ while the home stays away

ELSEWHERE = 3
SINK = "CREATE SINK {exists}k AS SELECT number, stream FROM {stream} WITH (connector = 'discard', node = '{node}')"


def sink(world: World, stream: str = "old", exists: str = "") -> str:
    return SINK.format(exists=exists, stream=stream, node=world.nodes[ELSEWHERE])


def killed_home(world: World) -> str:
    """Returns the id of a sink's query whose home has just crashed."""
    query = world.submit(sink(world), at=HOME)
    world.run(3.0)
    world.kill(HOME)
    return query


def failed_home(world: World) -> str:
    """Returns the id of a sink's query whose home all agents have declared failed."""
    query = killed_home(world)
    until_failed(world)
    return query


def until_failed(world: World) -> None:
    """Waits until every living agent has declared the home failed."""
    while {member["status"] for at in (1, 2, 3) for member in world.ask(at, "members") if member["name"] == world.nodes[HOME]} != {
        "failed"
    }:
        world.run(0.5)


def shown(world: World, at: int = 2) -> dict[str, dict[str, Any]]:
    return {row["id"]: row for row in world.ask(at, "queries")}


def names(world: World, at: int) -> set[str]:
    return {row["name"] for row in world.ask(at, "names") if row["kind"] == "sink"}


def rows_taken(world: World) -> int:
    agent = world.agents[ELSEWHERE]
    assert isinstance(agent, Agent)
    return sum(instance.figures.rows_in for instance in agent.execution.engine.instances.values() if instance.sink is not None)


def test_a_query_without_a_home_runs_on_and_every_agent_lists_it() -> None:
    world = make_world()
    query = failed_home(world)
    before = rows_taken(world)
    world.run(5.0)
    assert rows_taken(world) > before

    for number in (1, 2, 3):
        row = shown(world, number)[query]
        assert (row["name"], row["state"], row["owner"]) == ("k", "orphaned", world.nodes[HOME])
        assert {operator["node"] for operator in row["operators"]} == {world.nodes[SOURCE], world.nodes[ELSEWHERE]}
        assert row["sink_node"] == world.nodes[ELSEWHERE]
        assert f"its home {world.nodes[HOME]} failed" in row["reason"]
        assert "DROP SINK k ends them" in row["reason"]


@pytest.mark.parametrize("form", ["drop k", "drop id", "DROP SINK", "DROP QUERY"])
def test_a_query_without_a_home_ends_from_any_agent_in_any_form(form: str) -> None:
    world = make_world()
    query = failed_home(world)
    if form.startswith("drop"):
        world.ask(2, "drop", query=query if form == "drop id" else "k")
    else:
        world.submit(f"{form} k", at=2)
    assert queries_served(world) == set()
    world.run(1.0)
    assert shown(world) == {}
    assert names(world, 1) == names(world, 2) == set()


def test_what_a_living_query_shares_with_one_that_is_ended_runs_on() -> None:
    world = make_world()
    query = world.submit(sink(world), at=HOME)
    shared = world.submit("SELECT number, stream FROM old", at=2)
    tail = world.tail(shared, 2)
    world.run(2.0)
    world.kill(HOME)
    until_failed(world)
    world.ask(1, "drop", query=query)
    before = len(tail.rows)
    world.run(5.0)
    assert queries_served(world) == {shared}
    assert len(tail.rows) > before + 50
    assert [number for number, _ in tail.rows] == list(range(tail.rows[0][0], tail.rows[0][0] + len(tail.rows)))


@pytest.mark.parametrize("exists", ["", "IF NOT EXISTS "])
@pytest.mark.parametrize("home", ["away", "back"])
def test_a_sink_whose_home_has_crashed_can_be_made_anew(home: str, exists: str) -> None:
    world = make_world()
    former = failed_home(world)
    at = 2
    if home == "back":
        world.restart(HOME)
        world.settle()
        while not has_joined(world, HOME):
            world.run(0.1)
        at = HOME
    query = world.submit(sink(world, "new", exists), at=at)
    world.run(3.0)
    assert query not in ("", former)
    assert queries_served(world) == {query}
    assert {name: row["state"] for name, row in shown(world).items()} == {query: "running"}
    assert rows_taken(world) > 20


def test_a_sink_whose_home_has_just_crashed_is_not_said_to_exist() -> None:
    world = make_world()
    killed_home(world)
    with pytest.raises(SbonError, match="does not answer"):
        world.submit(sink(world, "new", "IF NOT EXISTS "), at=2)
    with pytest.raises(SbonError, match="there is a sink k, but"):
        world.submit(sink(world, "new"), at=2)
    with pytest.raises(SbonError, match="does not answer"):
        world.submit("DROP SINK k", at=2)
    assert names(world, 2) == {"k"}


def test_a_sink_whose_home_lives_exists() -> None:
    world = make_world()
    query = world.submit(sink(world), at=HOME)
    world.run(2.0)
    for at in (HOME, 2):
        assert world.submit(sink(world, "new", "IF NOT EXISTS "), at=at) == ""
        with pytest.raises(SbonError, match="there is a sink k already"):
            world.submit(sink(world, "new"), at=at)
    assert queries_served(world) == {query}


@pytest.mark.parametrize("at", [HOME, 2])
def test_a_name_of_which_nothing_runs_is_shown_and_forgotten(at: int) -> None:
    world = make_world()
    query = failed_home(world)
    world.restart(HOME)
    world.settle()
    world.run_until(lambda: not queries_served(world), 10.0)
    while not has_joined(world, HOME):
        world.run(0.1)
    row = shown(world, at)[query]
    assert (row["state"], row["operators"]) == ("orphaned", [])
    assert "nothing of it runs: CREATE SINK k makes it again, DROP SINK k forgets the name" in row["reason"]
    world.submit("DROP SINK k", at=at)
    world.run(1.0)
    assert shown(world, at) == {}


def test_a_home_that_was_only_cut_off_has_its_queries_again() -> None:
    world = make_world()
    query = world.submit(sink(world), at=HOME)
    world.run(2.0)
    world.partition([[HOME]])
    while shown(world).get(query, {}).get("state") != "orphaned":
        world.run(1.0)
    world.heal()
    world.settle()
    world.run(20.0)
    assert shown(world)[query]["state"] == "running"


def test_nobody_ends_a_query_whose_home_answers_for_it() -> None:
    world = make_world()
    query = world.submit(sink(world), at=HOME)
    world.run(2.0)
    agent = world.agents[2]
    assert isinstance(agent, Agent)
    problems: list[SbonError | None] = []
    agent.queries.homes.end(query, problems.append)
    world.run_until(lambda: bool(problems))
    assert "still wants it; drop it there" in str(problems[0])
    assert queries_served(world) == {query}


def test_hosts_let_go_by_themselves_after_the_configured_time() -> None:
    settings = {"engine": {"batch_interval_s": 0.2, "orphan_timeout_s": 30.0, "heal": False}, "optimiser": {"enabled": False}}
    world = settled_world(4, seed=5, settings=settings)
    world.submit(SOURCES.format(world.nodes[SOURCE]), at=SOURCE)
    world.run(1.0)
    query = failed_home(world)
    world.run(20.0)
    assert queries_served(world) == {query}
    world.run(15.0)
    assert queries_served(world) == set()
