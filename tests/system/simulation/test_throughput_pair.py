"""The two agents of `sbon testbed throughput --part engine`, here in virtual time: a query begins when they see each other."""

from functools import partial
from types import SimpleNamespace

import pytest

from sbon.errors import SbonError
from sbon_testbed.throughput import engine
from tests.worlds import settled_world


@pytest.fixture
def world():
    """Returns a world of two agents that do not reach each other; one has just given up the other, which still waits."""
    found = settled_world(2, seed=5)
    found.partition([[0], [1]])
    found.run_until(lambda: {alive(found, number) for number in (0, 1)} == {1, 2}, 300.0)
    yield found
    found.close()


@pytest.fixture
def pair(world, monkeypatch):
    monkeypatch.setattr(engine, "time", SimpleNamespace(monotonic=lambda: world.now, sleep=world.run))
    agents = {name: SimpleNamespace(client=SimpleNamespace(ask=partial(world.ask, number))) for number, name in enumerate(engine.NODES)}
    return engine.Pair(agents, engine.SETUPS["optimised"], {})


def alive(world, number):
    return sum(member["status"] == "alive" for member in world.ask(number, "members"))


def test_an_agent_that_has_given_up_the_other_is_waited_for(world, pair):
    healed_s = world.now + 5.0
    world.world.time.at(round(healed_s * 1e9), world.heal)

    pair._meet()

    assert world.now > healed_s
    assert [alive(world, number) for number in (0, 1)] == [2, 2]


def test_agents_that_do_not_see_each_other_end_the_measurement(world, pair):
    began_s = world.now
    with pytest.raises(SbonError, match="within 30 s"):
        pair._meet()
    assert began_s + 30.0 < world.now < began_s + 32.0
