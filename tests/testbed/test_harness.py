"""The harness and the director, with fake agents."""

import pytest

from sbon.errors import ConfigError, SbonError
from sbon.operators.window import Window
from sbon_testbed import report
from sbon_testbed.director import Director
from sbon_testbed.result import result_of
from sbon_testbed.scenario import parse_scenario
from sbon_testbed.simulator.harness import TimeoutInWorldError, World
from sbon_testbed.topology import pairs_between
from tests.testbed.greeting_agents import maker


def fake_world(nodes=4, seed=3, **options):
    ips = []
    world = World(nodes, seed=seed, make_agent=maker(ips), **options)
    ips += [machine.ip for machine in world.world.machines]
    return world


def test_agents_start_get_their_settings_and_agree():
    world = fake_world(settings={"leave_timeout_s": 2.0}, settings_of=lambda number: {"labels": {"tier": "core"}} if number == 1 else {})
    world.start_all()
    world.settle()
    assert world.alive_nodes() == ["london", "new-york", "tokyo", "sao-paulo"]
    assert world.settings.config_of(0).leave_timeout_s == 2.0
    assert world.settings.config_of(1).labels["tier"] == "core"
    assert world.settings.config_of(1).labels["region"] == "na"
    assert world.settings.config_of(0).join == ("10.0.0.1:7946", "10.0.0.2:7946")


def test_wrong_settings_are_refused_with_the_name_of_the_setting():
    with pytest.raises(ConfigError, match="leave_timeout"):
        fake_world(settings={"leave_timeout": 2.0}).settings.config_of(0)


def test_a_killed_agent_is_gone_and_a_restarted_one_is_back():
    world = fake_world()
    world.start_all()
    world.settle()
    world.kill("tokyo")
    world.settle()
    assert "tokyo" not in world.alive_nodes()
    with pytest.raises(SbonError, match="not running"):
        world.ask("tokyo", "status")
    world.restart("tokyo")
    world.settle()
    assert len(world.alive_nodes()) == 4


def test_an_agent_that_leaves_ends_when_it_has_said_goodbye():
    world = fake_world()
    world.start_all()
    world.leave(2)
    assert world.alive(2)
    world.run_until(lambda: not world.alive(2), 5)


def test_a_partition_divides_what_agents_see_until_it_heals():
    world = fake_world()
    world.start_all()
    world.partition([[0, 1]])
    world.run(5)
    assert not world.members_agree()
    world.heal()
    world.settle()


def test_waiting_in_vain_names_the_seed():
    world = fake_world(seed=17)
    world.start_all()
    with pytest.raises(TimeoutInWorldError, match="seed 17"):
        world.run_until(lambda: False, timeout_s=2)


def test_rows_of_a_query_are_collected_and_a_query_of_the_dead_ends():
    world = fake_world()
    world.start_all()
    query = world.submit("SELECT 1", at=1)
    assert query == "new-york-1"
    rows = world.rows(query, at=1, count=3)
    assert [row[1] for row in rows] == ["new-york"] * 3
    world.kill(1)
    assert world.tail(query, 1).finished


def test_the_report_knows_links_usage_and_errors():
    world = fake_world()
    world.start_all()
    world.submit("SELECT 1", at=0)
    overlay = report.running(world)
    assert overlay.links["q1.a>q1.b:0"].received == 10
    assert report.network_usage(world, overlay) == 0.0
    assert report.usage_bytes([("a", "b", 1000.0)], world.topology.rtt_ms, {"london": 0, "tokyo": 2}, {"a": "london", "b": "tokyo"}) == (
        pytest.approx(1000 * world.topology.rtt_ms[0, 2] / 2000)
    )
    assert report.coordinate_errors(world)["pairs"] == 6


SCENARIO = """
name = "fakes"
duration_s = 40
nodes = 5

[[statement]]
at_s = 5
name = "one"
agent = "region=na"
sql = "SELECT 1"

[[statement]]
at_s = 6
name = "two"
sql = "nonsense"

[[event]]
at_s = 10
kind = "latency"
cable = "atlantic"
factor = 2

[[event]]
at_s = 12
kind = "kill"
agents = "tokyo"

[[event]]
at_s = 20
kind = "restart"
agents = "tokyo"

[[event]]
at_s = 24
kind = "partition"
groups = [["region=eu"]]

[[event]]
at_s = 28
kind = "heal"

[[event]]
at_s = 29
kind = "load"
agents = "*"
fraction = 0.5

[expect]
members_agree = true
migrations_min = 3
rows_min = { one = 10, two = 1 }
states = { one = "running" }
"""


def played(nodes=5, seed=3, duration_s=40.0):
    scenario = parse_scenario(SCENARIO, "test")
    world = fake_world(nodes, seed)
    director = Director(scenario, world, duration_s, lambda now_s, what: None)
    director.play()
    return result_of(director, "sim", seed)


def test_a_scenario_is_played_to_its_end_and_says_what_came_of_it():
    result = played()
    assert [event["what"] for event in result["events"]] == [
        "latency x 2 on atlantic",
        "kill tokyo",
        "restart tokyo",
        "partition region=eu",
        "partitions healed",
        "load london, new-york, tokyo, sao-paulo, frankfurt",
    ]
    assert result["members"]["agree"]
    statements = {statement["name"]: statement for statement in result["statements"]}
    assert statements["one"]["rows"] >= 30
    assert statements["one"]["state"] == "running"
    assert result["problems"] == [
        "statement two at london: line 1: nonsense",
        "1 migrations, expected at least 3",
        "statement two gave 0 rows, expected at least 1",
    ]


def test_two_runs_of_one_seed_are_equal_and_those_of_two_seeds_differ():
    assert played(seed=5) == played(seed=5)
    assert played(seed=5) != played(seed=6)


def test_fewer_nodes_and_less_time_skip_what_they_exclude_and_say_so():
    result = played(nodes=2, duration_s=22.0)
    assert result["nodes"] == 2
    assert [line.split(":")[0] for line in result["skipped"]] == [
        "3 statements and events after the end at 22 s",
        "event at 12 s",
        "event at 20 s",
    ]


def test_latencies_scale_paths_but_not_access_links():
    world = fake_world()
    before = world.latencies.rtt_ms()
    world.scale(pairs_between(world.topology, [0], [1]), 2.0)
    after, access = world.latencies.rtt_ms(), world.topology.access_ms
    assert after[0, 1] == pytest.approx(2 * (before[0, 1] - access[0] - access[1]) + access[0] + access[1])
    assert after[1, 0] == after[0, 1]
    assert after[0, 2] == before[0, 2]


def test_ctrl_c_in_the_midst_of_an_operators_work_ends_the_world(monkeypatch):
    world = World(1)
    world.start_all()

    def interrupted(self: object, port: int, frame: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Window, "process", interrupted)

    def run() -> None:
        """Submits a query and runs on. The interrupt may come in either call, because rows may flow before the submission ends."""
        world.submit(
            "CREATE SOURCE s (ts TIMESTAMP, k INT, WATERMARK FOR ts AS ts) WITH (connector = 'datagen');"
            "SELECT window_start, COUNT(*) AS n FROM TUMBLE(s, ts, INTERVAL '1 s') GROUP BY window_start"
        )
        world.run(5.0)

    with pytest.raises(KeyboardInterrupt):
        run()
