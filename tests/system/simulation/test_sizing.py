"""Queries with `instances = 'auto'` on agents in virtual time: planned when they are submitted, and again when the rate changes."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sbon.errors import SbonError
from sbon.planning import resizing
from sbon.supervision import own_changes
from sbon_testbed.simulator.cpu import CpuConfig
from sbon_testbed.simulator.harness import World
from sbon_testbed.topology import Topology
from tests.worlds import settled_world

RTT_MS = np.array([[0.0, 10.0], [10.0, 0.0]])
ROW_NS = 200e3
"""Cost of a row at each operator: 2,200 rows/s take 0.44 cores."""
RATE = 2200
HOME = 1
QUERY = """
CREATE SINK {name} WITH (connector = '{connector}', instances = {instances}{more}) AS
SELECT window_end, key, COUNT(*) AS n, SUM(value) AS total FROM TUMBLE(s, ts, INTERVAL '1 second') GROUP BY window_end, key
"""


def make_world(*, changes: bool = False, pace_s: float = 0.05) -> World:
    topology = Topology("two", ("a", "b"), ({}, {}), RTT_MS, np.zeros(2))
    settings = {
        "optimiser": {"enabled": changes, "interval_s": 1e6},
        "engine": {"batch_interval_s": pace_s},
        "membership": {"interval_s": 0.5},
    }
    cpu = CpuConfig(cores=4, batch_us=100.0, row_ns=ROW_NS, timed=True)
    world = settled_world(topology, seed=5, settings=settings, cpu=cpu, predictions="fine")
    world.run(30)
    return world


def declare(world: World, rows: int | None = None) -> None:
    world.submit(
        "CREATE SOURCE s (ts TIMESTAMP, key BIGINT, value BIGINT, WATERMARK FOR ts AS ts) "
        f"WITH (connector = 'datagen', nodes = 'a', rows_per_second = {RATE}, seed = 5, fields.key.max = 7, fields.value.max = 6"
        + (f", rows = {rows})" if rows is not None else ")"),
        at=HOME,
    )


def give(agent: Any, times: float) -> None:
    """Multiplies the rates of an agent's running sources."""
    for running in [one.source for one in agent.execution.engine.instances.values() if one.source is not None]:
        datagen: Any = running
        while not hasattr(datagen, "_began"):
            datagen = datagen._source
        datagen._rate *= times
        datagen._began = agent.host.now() - datagen._sent / datagen._rate


def submitted(world: World, name: str, instances: int | str = "'auto'", connector: str = "discard", **options: str) -> str:
    more = "".join(f", {option} = '{value}'" for option, value in options.items())
    return world.submit(QUERY.format(name=name, connector=connector, instances=instances, more=more), at=HOME)


def row(world: World, query: str) -> dict[str, Any]:
    return next(one for one in world.ask(HOME, "queries") if one["id"] == query)


def instances(world: World, query: str) -> tuple[int, int | None]:
    """Returns the number of running instances, and the wanted number."""
    (one,) = row(world, query)["instances"]
    return len(one["operators"]), one["wanted"]


@pytest.mark.soak
def test_a_rate_that_doubles_asks_for_more_instances_which_a_change_of_the_plan_or_the_next_submission_gives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resizing, "OFF_S", 10.0)
    world = make_world(pace_s=0.2)
    declare(world)
    query = submitted(world, "o")
    world.run(20)
    assert instances(world, query) == (1, 1)
    assert row(world, query)["state"] == "running"

    give(world.agents[0], 2.0)
    world.run(7.5)
    assert instances(world, query) == (1, 1), "half of the required time must not change the number"
    world.run(15)
    seen = row(world, query)
    assert instances(world, query) == (1, 2)
    assert seen["state"] == "degraded"
    assert "1 of window were planned for 2,200 rows/s, 4,4" in seen["reason"]
    assert "rows/s come and need 2; `sbon replan` gives them to it" in seen["reason"]
    give(world.agents[0], 0.9)
    world.run(30)
    assert instances(world, query) == (1, 2), "the number of instances must stay"

    assert len(world.ask(HOME, "replan", query=query)["instances"]) == 1
    world.run(15)
    assert instances(world, query) == (2, 2)
    assert row(world, query)["state"] == "running"

    world.ask(HOME, "drop", query=query)
    again = submitted(world, "o")
    assert instances(world, again)[0] == 2


@pytest.mark.soak
def test_a_query_with_a_bound_runs_with_the_instances_that_were_planned_and_one_that_none_keeps_is_refused() -> None:
    world = make_world()
    declare(world)
    learning = submitted(world, "free", 1)
    give(world.agents[0], 2.0)
    world.run(160)
    world.ask(HOME, "drop", query=learning)
    world.run(5)

    query = submitted(world, "o", max_latency="10 s")
    with pytest.raises(SbonError) as refused:
        submitted(world, "late", max_latency="30 ms")

    (shown,) = row(world, query)["instances"]
    assert 0.8 < shown["auto"]["cores"] < 1.6, "0.9 cores, and the cost of another instance's batches"
    assert shown["text"].startswith("window: 2 by key (")
    assert "; auto: rate 4,4" in shown["text"]
    assert "\n" not in str(refused.value)
    assert str(refused.value).startswith(("max_latency = 30 ms cannot be kept", "the window gets"))


def test_a_rate_that_doubles_and_halves_gets_its_instances_by_itself_and_no_answer_is_lost(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It waits for a rest period before it changes back."""
    monkeypatch.setattr(resizing, "OFF_S", 10.0)
    monkeypatch.setattr(own_changes, "REST_S", 40.0)
    rows, answers = 350_000, tmp_path / "answers.csv"
    world = make_world(changes=True, pace_s=0.5)
    declare(world, rows)
    query = submitted(world, "o", connector="file", path=str(answers))
    owner: Any = world.agents[HOME]
    record = owner.queries.owned.records[query]
    world.run(25)
    assert instances(world, query) == (1, 1)

    give(world.agents[0], 2.0)
    world.run(8)
    assert instances(world, query) == (1, 1), "a short peak must not change the number"
    wait_for(world, lambda: instances(world, query) == (2, 2))
    (happened,) = record.history.latest(1)
    assert happened.event == "replanned"
    assert happened.reason.startswith("window: 2 instead of 1, 4")

    give(world.agents[0], 0.5)
    wait_for(world, lambda: instances(world, query) == (2, 1))
    world.run(10)
    assert instances(world, query) == (2, 1), "the rest period must delay the change"
    wait_for(world, lambda: instances(world, query) == (1, 1))
    wait_for(world, lambda: record.state.value == "finished")
    assert [one.event for one in record.history.latest(9)].count("replanned") == 2

    found = list(csv.DictReader(answers.open()))
    assert len({(one["window_end"], one["key"]) for one in found}) == len(found)
    assert sum(int(one["n"]) for one in found) == rows


def wait_for(world: World, condition: Callable[[], bool]) -> None:
    """Waits until a condition holds, checked every two seconds."""
    for _ in range(60):
        if condition():
            return
        world.run(2)
    raise AssertionError(f"the condition does not hold by {world.now:.0f} s")
