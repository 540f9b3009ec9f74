"""A first deployment that is refused half-way leaves no rows in the query's sink."""

import json

from sbon.errors import LinkError, ShapeError
from sbon.execution.life import State
from sbon.query.params.source import SinkParams
from sbon_agent.engine import engine
from tests.worlds import settled_world

SOURCES = """
CREATE SOURCE l (ts TIMESTAMP, i BIGINT, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = '{0}', rows_per_second = 500,
    rows = 3000, 'start' = '2026-01-01T00:00:00', fields.i.kind = 'sequence');
CREATE SOURCE r (ts TIMESTAMP, i BIGINT, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = '{1}', rows_per_second = 500,
    rows = 3000, 'start' = '2026-01-01T00:00:00', fields.i.kind = 'sequence');
"""
BOTH = "SELECT ts, i FROM l WHERE i % 2 = 0 UNION ALL SELECT ts, i FROM r WHERE i % 2 = 1"


def make_world(tmp_path):
    settings = {"optimiser": {"enabled": False}, "engine": {"batch_interval_s": 0.01}}
    world = settled_world(3, seed=5, settings=settings, data_dir=tmp_path)
    world.submit(SOURCES.format(*world.nodes))
    world.run(1.0)
    return world


def sinks(world):
    return [i for agent in world.agents for i in agent.execution.engine.instances.values() if isinstance(i.spec.params, SinkParams)]


def test_rows_that_a_refused_deployment_let_flow_are_not_in_the_file(tmp_path):
    world = make_world(tmp_path)
    for number, sql in enumerate(BOTH.split(" UNION ALL ")):
        world.submit(sql, at=number)
    world.run(2.0)
    moving = [i for i in world.agents[1].execution.engine.instances.values() if i.source is not None]
    assert moving
    for instance in moving:
        instance.state = State.EXPORTED  # it is about to move, so it refuses to be shared after the other source has agreed
    path = tmp_path / "answers.ndjson"

    world.submit(f"CREATE SINK k WITH (connector = 'file', path = '{path}', mode = 'append') AS {BOTH}", at=0)

    world.run_until(lambda: path.exists() and len(path.read_text().splitlines()) >= 3000, 60, "all rows are in the file")
    world.run(3.0)
    rows = [json.loads(line)["i"] for line in path.read_text().splitlines()]
    assert sorted(rows) == list(range(3000)), "rows of the first attempt would appear twice"


def test_a_sink_takes_rows_only_once_all_operators_run(tmp_path):
    world = make_world(tmp_path)
    states = []
    world.agents[0].control(world.requests.make("submit", {"sql": BOTH}), lambda reply: states.append("answered"))

    def begun() -> bool:
        states.extend(sink.state.value for sink in sinks(world))
        return "answered" in states

    world.run_until(begun, 20, "the query runs")
    assert states[0] == "building"
    assert "running" not in states[: states.index("building") + states.count("building")]
    assert [sink.state.value for sink in sinks(world)] == ["running"]


def test_a_query_whose_sink_does_not_hear_the_word_to_begin_is_asked_again_and_not_made_twice(tmp_path):
    world = make_world(tmp_path)
    operators = world.agents[0].execution.operators
    begin, heard = operators.begin, []

    def lost(query):
        heard.append(query)
        begun = begin(query)
        if len(heard) < 3:
            raise LinkError("the answer is lost")
        return begun

    operators.begin = lost
    tail = world.tail(world.submit(BOTH))
    assert len(heard) == 3
    world.run_until(lambda: tail.finished, 60, "all rows have come")
    assert sorted(row[1] for row in tail.rows) == list(range(3000))


def test_an_operator_whose_costs_cannot_be_measured_is_refused_and_not_waited_for(tmp_path, monkeypatch):
    world = make_world(tmp_path)

    def refuse(*arguments: object) -> None:
        raise ShapeError("no prior")

    monkeypatch.setattr(engine, "measure_costs", refuse)
    answers = []
    world.agents[0].control(world.requests.make("submit", {"sql": "SELECT ts, i FROM l"}), answers.append)
    world.run_until(lambda: bool(answers), 60, "an answer")
    assert "no prior" in str(answers)
    assert not sinks(world)
