"""A running query gets another order of its joins if that is cheaper by measurements, and its answers stay those of one plan."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sbon.errors import SbonError
from sbon.planning import ordering
from sbon.planning.reordering import reordered
from sbon.query.instances import sets_of
from sbon.query.params.joined import JoinParams
from sbon.query.params.source import SourceParams
from sbon.supervision.record import QueryRecord
from sbon_testbed.simulator.cpu import CpuConfig
from sbon_testbed.simulator.harness import World
from tests.system.simulation.test_replanning_exactly_once import make_world
from tests.system.simulation.test_sizing import give

ROWS = 1_200
FIELDS = "fields.k.min = 0, fields.k.max = {k}, fields.m.min = 0, fields.m.max = {m}, fields.v.min = 0, fields.v.max = 9"
SOURCE = (
    "CREATE SOURCE {name} (ts TIMESTAMP, k BIGINT, m BIGINT, v BIGINT, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', "
    "nodes = '{node}', rows_per_second = {rate}, rows = {rows}, seed = {seed}, 'start' = '2026-01-01T00:00:00', {fields});"
)
NEAR = "BETWEEN a.ts - INTERVAL '250 milliseconds' AND a.ts + INTERVAL '250 milliseconds'"
QUERY = f"""
WITH j AS (SELECT a.ts AS ts, a.k AS k, b.v AS v, c.v AS w FROM a
    JOIN b ON a.k = b.k AND b.ts {NEAR} JOIN c ON a.m = c.m AND c.ts {NEAR})
SELECT window_end, k, COUNT(*) AS n, SUM(v) AS v, SUM(w) AS w FROM TUMBLE(j, ts, INTERVAL '1 second') GROUP BY window_end, k
"""


class Story:
    """A query whose source b is on the node of the sink, while a and c are together on another node."""

    def __init__(self, nodes: int, rare: int, rate: int = 40, rows: int = ROWS, keys: int = 3, **how: Any) -> None:
        self.world: World = make_world(nodes, seed=3, predictions="fine", **how)
        for seed, (name, number) in enumerate({"a": 1, "b": 0, "c": 1}.items(), 1):
            node, fields = self.world.nodes[number % nodes], FIELDS.format(k=keys, m=rare)
            self.world.submit(SOURCE.format(name=name, node=node, rate=rate, rows=rows, seed=seed, fields=fields))
        self.query = self.world.submit(QUERY)
        self.tail = self.world.tail(self.query)
        home: Any = self.world.agents[0]
        self.record: QueryRecord = home.queries.owned.records[self.query]

    def replan(self, **options: Any) -> dict[str, Any]:
        found = self.world.ask(0, "replan", query=self.query, **options)
        assert isinstance(found, dict)
        return found

    def spread(self) -> None:
        """Moves the upper join and all operators after it, except the sink, to a separate node."""
        joins = [spec.id for spec in self.record.plan.operators if isinstance(spec.params, JoinParams)]
        behind = {link.target for link in self.record.plan.links if link.source in joins and link.target in joins}
        for spec in self.record.plan.operators:
            behind |= {link.target for link in self.record.plan.links if link.source == spec.id and spec.id in behind}
        for operator in behind - {self.record.sink}:
            here, there = self.record.nodes[operator], self.world.nodes[2]
            assert self.world.ask(here, "migrate", operator=operator, node=there)["committed"]
            self.world.run(0.5)

    def give(self, times: float) -> None:
        """Multiplies the rates of all sources."""
        for agent in self.world.agents:
            give(agent, times)

    def first_joined(self) -> set[str]:
        """Returns the sources of the lower join."""
        specs = {spec.id: spec for spec in self.record.plan.operators}
        feeding = {spec.id: [specs[link.source] for link in self.record.plan.links if link.target == spec.id] for spec in specs.values()}
        lower = next(
            spec.id
            for spec in specs.values()
            if isinstance(spec.params, JoinParams) and not any(isinstance(one.params, JoinParams) for one in feeding[spec.id])
        )
        found, waiting = set[str](), feeding[lower]
        while waiting:
            one = waiting.pop()
            waiting += feeding[one.id]
            if isinstance(one.params, SourceParams):
                found.add(one.params.name)
        return found

    def instances(self) -> list[int]:
        return [len(one.operators) for one in sets_of(self.record.plan)]

    def restart_home(self) -> None:
        """Kills the query's home, and starts it again."""
        former = self.query
        self.world.restart(0)
        home: Any = self.world.agents[0]
        self.world.run_until(lambda: bool(home.queries.owned.records), 60.0, "the query runs anew")
        [self.query] = home.queries.owned.records
        self.record = home.queries.owned.records[self.query]
        assert self.record.former == former

    def rows(self) -> list[str]:
        self.world.run_until(lambda: self.tail.finished, 300.0, "the query ends")
        return list(map(str, self.tail.rows))


@pytest.fixture
def story() -> Iterator[Any]:
    made: list[Story] = []

    def make(nodes: int, rare: int, **how: Any) -> Story:
        made.append(Story(nodes, rare, **how))
        return made[-1]

    yield make
    for one in made:
        one.world.close()


def test_joins_are_exchanged_where_that_is_cheaper_by_what_is_measured(story: Any) -> None:
    """Both joins are equal by rules of thumb, but the join that is written first gives fifty times as many pairs as the other."""
    told = story(3, rare=200)
    told.world.run(12.0)
    assert told.first_joined() == {"a", "b"}
    with pytest.raises(SbonError, match="one after the other"):
        told.replan(order=True, instances=2)
    home: Any = told.world.agents[0]
    assert reordered(home.queries.owned.statements._as_it_runs(told.record), to_carry=True).plan is None, "the order must sustain the rates"
    said = told.replan(order=True)
    assert "exchanged for " in said["text"]
    assert said["crosses_at"] is not None
    told.world.run_until(lambda: not told.record.health.healing.plans.step, 20.0, "the change is over")
    assert told.first_joined() == {"a", "c"}
    happened = next(one for one in reversed(told.record.history.latest(9)) if one.event == "replanned")
    assert happened.reason == said["text"]

    told.world.run(5.0)
    again = told.replan(order=True)
    assert again["text"].startswith("it keeps its order: no other order")
    assert again["crosses_at"] is None

    told.replan(instances=2)
    told.world.run_until(lambda: not told.record.health.healing.plans.step, 20.0, "the second change is over")
    assert told.first_joined() == {"a", "c"}
    assert told.instances() == [2]
    expected = story(1, rare=200).rows()
    assert len(expected) > 50
    assert told.rows() == expected


@pytest.mark.soak
def test_a_query_keeps_its_order_where_another_is_no_better(story: Any) -> None:
    told = story(3, rare=3)
    told.world.run(8.0)
    assert told.replan(order=True)["text"].startswith("it keeps its order: no other order")
    assert not told.record.health.healing.plans.step


def test_a_query_has_the_order_and_the_instances_of_its_last_plan_after_a_restart(story: Any, tmp_path: Path) -> None:
    told = story(3, rare=200, data_dir=tmp_path)
    told.world.run(12.0)
    told.replan(order=True)
    told.world.run_until(lambda: not told.record.health.healing.plans.step, 20.0, "the change is over")
    told.replan(instances=2)
    told.world.run_until(lambda: not told.record.health.healing.plans.step, 20.0, "the second change is over")
    for _ in range(2):
        told.restart_home()
        assert told.first_joined() == {"a", "c"}
        assert told.instances() == [2]


def test_a_query_whose_order_cannot_carry_what_comes_gets_another_by_itself_once(story: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four times the rate fills the core of the upper join wherever it runs, so sources are held up; the exchanged joins sustain it."""
    monkeypatch.setattr(ordering, "OFF_S", 5.0)
    how: dict[str, Any] = {"rare": 666, "keys": 5, "rate": 100, "rows": 7_000}
    cpu = CpuConfig(cores=1, batch_us=100.0, row_ns=250e3, timed=True)
    told = story(3, cpu=cpu, optimiser={"interval_s": 1e6}, **how)
    told.world.run(1.0)
    told.spread()
    told.world.run(12.0)
    assert told.first_joined() == {"a", "b"}
    told.give(4.0)
    told.world.run_until(lambda: told.first_joined() == {"a", "c"}, 60.0, "the order changes")
    (happened,) = (one for one in told.record.history.latest(9) if one.event == "replanned")
    assert "exchanged to carry " in happened.reason

    assert told.rows() == story(1, **how).rows()
    assert [one.event for one in told.record.history.latest(9)].count("replanned") == 1
