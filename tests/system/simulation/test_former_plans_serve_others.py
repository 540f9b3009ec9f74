"""A query gets a new plan while another query uses operators of its former plan: these are recreated after crashes as long as the other
query runs."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sbon.supervision.dropped import left_to_others
from sbon.supervision.record import QueryRecord, QueryState
from tests.system.simulation.test_dropped_queries_serve_others import HOME, OTHER, Story


class Replanned(Story):
    """The first query gets more instances of its window; the window of its former plan serves the second query."""

    def __init__(self, folder: Path | None = None, **engine: Any) -> None:
        super().__init__(folder, **engine)
        self.replan(2)

    def replan(self, instances: int) -> None:
        record = self.record()
        answered = self.world.ask(HOME, "replan", query="k", instances=instances)
        assert answered["instances"] == [instances]
        self.world.run_until(lambda: len(record.plan.operators) > 4 + instances and self.is_over(), 30.0, "the former plan has ended")
        assert left_to_others(record) == self.shared - {record.plan.operators[0].id}
        assert self.hosted() == sorted({*record.specs, *self.found(OTHER, self.second).specs}), "nothing else of the former plan is left"
        agents: Any = self.world.agents
        hosted = {one.id: one for agent in agents if agent is not None for one in agent.execution.operators.instances.values()}
        assert hosted[record.sink].inputs.keys() == {link.id for link in record.links if link.target == record.sink}
        assert {user for output in hosted[self.window].outputs.values() for user in output.users} == {self.second}
        assert {hosted[operator].users.max_latency_ms.get(self.first) for operator in left_to_others(record)} == {None}

    def record(self) -> QueryRecord:
        [owner] = self.owners()
        return self.found(owner, self.first)

    def is_over(self) -> bool:
        plans = self.record().health.healing.plans
        return plans.other is None and not plans.retiring and not plans.step

    def lost(self) -> bool:
        return self.found(OTHER, self.second).state is not QueryState.RUNNING or not self.shared.isdisjoint(self.record().lost)

    def loses_window(self) -> None:
        """Crashes the host of the shared window; the host comes back without the window."""
        host = self.world.nodes.index(self.record().nodes[self.window])
        before = self.record().health.healing.account.recoveries
        self.world.kill(host)
        self.world.run(1.0)
        self.world.start(host)
        self.world.run_until(lambda: self.record().health.healing.account.recoveries > before, 20.0, "it is made again")


@pytest.fixture
def story() -> Iterator[Callable[..., Replanned]]:
    made: list[Replanned] = []

    def make(folder: Path | None = None, **engine: Any) -> Replanned:
        made.append(Replanned(folder, **engine))
        return made[-1]

    yield make
    for one in made:
        one.world.close()


def test_what_others_use_of_a_former_plan_is_made_again_until_nobody_uses_it(story: Any) -> None:
    told: Replanned = story()
    told.goes_on(told.loses_window)
    assert told.record().state is QueryState.RUNNING
    told.replan(3)
    told.goes_on(told.loses_window)
    assert "lack what it had taken" in told.record().reason

    told.world.ask(OTHER, "drop", query=told.second)
    told.world.run_until(lambda: not left_to_others(told.record()) and told.is_over(), 30.0, "nobody uses them any more")
    assert told.hosted() == sorted(spec.id for spec in told.record().plan.operators)
    assert told.record().nodes.keys() == told.record().specs.keys()
    assert told.record().state is QueryState.RUNNING


def test_a_keeper_makes_again_what_others_use_of_a_former_plan(story: Any, tmp_path: Path) -> None:
    told: Replanned = story(tmp_path)
    told.world.kill(HOME)
    told.world.run_until(lambda: len(told.owners()) == 1, 30.0, "a keeper has taken it over")
    told.goes_on(told.loses_window)
    assert told.window in told.record().specs


def test_a_query_that_is_dropped_after_its_plan_has_changed_leaves_others_what_they_use(story: Any) -> None:
    told: Replanned = story()
    told.drop()
    told.goes_on(told.loses_window)
    assert told.owners()
    told.ends()
    assert not told.owners()


def test_a_home_asks_who_uses_what_before_a_plan_changes(story: Any) -> None:
    told: Replanned = story(report_interval_s=60.0)
    assert told.window in left_to_others(told.record())
