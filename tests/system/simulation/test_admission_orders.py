"""Queries whose order of operators cannot carry their sources' profiles: another order with the same answers runs instead."""

from collections import Counter

import numpy as np

from sbon_testbed.simulator.cpu import CpuConfig
from sbon_testbed.simulator.harness import World
from sbon_testbed.topology import Topology

SECONDS = 3
RATES = {"x": 2000, "y": 200, "z": 20}
SOURCE = """
CREATE SOURCE {name} (ts TIMESTAMP, k BIGINT, m BIGINT, n BIGINT, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = '{node}',
    rows_per_second = {rate}, rows = {rows}, seed = {seed}, start = '2026-01-01T00:00:00Z', fields.k.max = 9, fields.m.max = 99,
    fields.n.kind = 'sequence'{profile});
"""
NEAR = "BETWEEN {0}.ts - INTERVAL '500 ms' AND {0}.ts + INTERVAL '500 ms'"
QUERY = (
    f"SELECT x.n AS a, y.n AS b, z.n AS c FROM x JOIN y ON x.k = y.k AND y.ts {NEAR.format('x')} "
    f"JOIN z ON y.m = z.m AND z.ts {NEAR.format('y')}"
)
HOME = 1


def make_world():
    topology = Topology("pair", ("a", "b"), ({}, {}), np.array([[0.0, 10.0], [10.0, 0.0]]), np.zeros(2))
    cpu = CpuConfig(cores=2, batch_us=100.0, row_ns=50_000.0, timed=True)
    world = World(topology, seed=3, settings={"optimiser": {"enabled": False}}, cpu=cpu)
    world.start_all()
    world.settle()
    return world


def declare(world, *, profiled):
    for seed, (name, rate) in enumerate(RATES.items()):
        profile = f", profile = '{rate}/s'" if profiled else ""
        world.submit(SOURCE.format(name=name, node="a", rate=rate, rows=rate * SECONDS, seed=seed, profile=profile), at=HOME)


def run(world):
    """Returns the answers, the seconds until the last answer, and the messages at the query's start."""
    (told,) = world.ask(HOME, "submit", sql=QUERY)
    began, tail = world.now, world.tail(told["query"], HOME)
    world.run_until(lambda: tail.finished, 600.0)
    took_s = world.now - began
    for name in RATES:
        world.submit(f"DROP SOURCE {name}", at=HOME)
    world.run(5.0)
    return Counter(map(str, tail.rows)), took_s, told["message"]


def test_an_order_that_carries_the_profile_runs_in_the_place_of_one_that_does_not_and_gives_the_same_answers():
    world = make_world()
    declare(world, profiled=False)
    answers, took_s, message = run(world)
    assert took_s > 1.5 * SECONDS, "the written order cannot carry the rates"
    assert "exchanged" not in message

    declare(world, profiled=True)
    shown = world.ask(HOME, "explain", sql=QUERY)
    same, soon_s, message = run(world)

    assert "operators exchanged to carry the profile: join on" in message
    assert soon_s < SECONDS + 1.5, "the query must keep up with its sources"
    assert answers == same
    assert sum(answers.values()) > 100

    (note,) = (one for one in shown["notes"] if "exchanged" in one)
    assert note.partition(", sink")[0] in message
    streams = {(link["source"], link["target"]) for link in shown["links"]}
    joins = [one["id"] for one in shown["operators"] if one["kind"] == "join"]
    (lower,) = (source for source, target in streams if source in joins and target in joins)
    texts = {one["id"]: one["text"] for one in shown["operators"]}
    assert texts[lower].startswith("join on m = m"), "it is the upper join in the statement"
    assert shown["prediction"]["highest_rate"]["multiple"] >= 1.0


def test_explain_shows_a_query_that_nothing_carries_with_the_reason_for_which_it_would_be_refused():
    world = make_world()
    for seed, name in enumerate(RATES):
        world.submit(SOURCE.format(name=name, node="a", rate=10, rows=10, seed=seed, profile=", profile = '50000000/s'"), at=HOME)

    shown = world.ask(HOME, "explain", sql=QUERY)

    assert any(note.startswith("it would be refused: no placement carries the profile") for note in shown["notes"]), shown["notes"]
    assert shown["prediction"]["highest_rate"]["multiple"] < 1.0
