"""An agent that took queries crashes: what it took before and what it takes afterwards never mix."""

from agent.node import Agent
from sbon.query.ids import boot_of, home_of
from testbed.virtual.harness import World

SOURCES = """
CREATE SOURCE old (ts TIMESTAMP, number BIGINT, stream TEXT) WITH (connector = 'datagen', nodes = '{0}', rows_per_second = 20,
    fields.number.kind = 'sequence', fields.stream.kind = 'choice', fields.stream.values = 'old');
CREATE SOURCE new (ts TIMESTAMP, number BIGINT, stream TEXT) WITH (connector = 'datagen', nodes = '{0}', rows_per_second = 20,
    fields.number.kind = 'sequence', fields.stream.kind = 'choice', fields.stream.values = 'new');
"""
HOME, SOURCE = 0, 1


def make_world(seed: int = 5, **membership: float) -> World:
    settings = {"engine": {"batch_interval_s": 0.2}, "optimiser": {"enabled": False}, "membership": membership}
    world = World(4, seed=seed, settings=settings)
    world.start_all()
    world.settle()
    world.submit(SOURCES.format(world.nodes[SOURCE]), at=SOURCE)
    world.run(1.0)
    return world


def has_joined(world: World, number: int) -> bool:
    """A restarted agent knows the others and the names."""
    return len(world.ask(number, "members")) == 4 and any(row["name"] == "new" for row in world.ask(number, "names"))


def queries_served(world: World) -> set[str]:
    """The queries that operators of any living agent serve."""
    agents = [agent for agent in world.agents if isinstance(agent, Agent)]
    return {query for agent in agents for instance in agent.engine.instances.values() for query in instance.users}


def test_a_restarted_home_gives_its_queries_other_names_and_other_rows() -> None:
    world = make_world()
    for batch in range(4):  # names once followed from the clock's second and the last one: they must not come again in any way
        world.submit(";".join([f"SELECT number + {batch} AS number, stream FROM old"] * 3), at=HOME)
    before = queries_served(world)
    assert len(before) == 12

    world.run(1.0)
    world.restart(HOME)
    until = world.now + 2.0
    while not has_joined(world, HOME):
        world.run(0.1)
    assert world.now < until, "so soon that names from the clock's seconds would come again"
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
