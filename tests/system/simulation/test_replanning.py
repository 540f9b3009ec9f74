"""Running queries get new plans: the answers equal those of one plan, whatever moves, is lost or crashes during the change."""

from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from sbon.errors import LocalProtocolError, SbonError
from sbon.execution import crossing
from sbon.links.config import LinkConfig
from sbon.wire.replanning import Cross, Cut, Uncut
from tests.examples import seeds
from tests.system.simulation.test_recovery import HOME, MIDDLE, OTHER, SINK, SOURCE, Story

Answers = Callable[[str], list[list[str]]]
BY_KEY = "SELECT window_start, window_end, v % 5 AS k, COUNT(*) AS n, SUM(v) AS s FROM TUMBLE(r, ts, INTERVAL '1 second') GROUP BY 1, 2, 3"
HOPS = BY_KEY.replace("TUMBLE(r, ts,", "HOP(r, ts, INTERVAL '500 milliseconds',")


class Dealt(Story):
    """The story of a query with two instances of its window."""

    OPTIONS = ", instances = 2"

    def replan(self, instances: int | None, number: int = HOME) -> dict[str, Any]:
        """Requests another number of instances; returns the answer."""
        found = self.world.ask(self.world.nodes[number], "replan", query="k", instances=instances)
        assert isinstance(found, dict)
        return found

    @property
    def home(self) -> Any:
        """Returns the query's home."""
        return self._agent(HOME)

    @property
    def queries(self) -> Any:
        """Returns the home's queries."""
        return self.home.queries.owned

    def rows_out(self) -> int:
        """Returns the number of answers that the sink has written."""
        return int(self._agent(SINK).execution.operators.instances[self.record.sink].figures.rows_in)

    @property
    def plans(self) -> Any:
        """Returns the state of the query's change of plan."""
        return self.record.health.healing.plans

    def gather(self, number: int) -> None:
        """Moves all movable operators to one host."""
        there = self.world.nodes[number]
        for operator, spec in self.record.specs.items():
            if spec.pinned is None and self.record.nodes[operator] != there:
                assert self.world.ask(self.record.nodes[operator], "migrate", operator=operator, node=there)["committed"]
                self.world.run(0.5)

    def kinds(self) -> list[str]:
        """Returns the kinds of the operators that run anywhere."""
        found = [agent.execution.operators.instances.values() for agent in self.world.agents if agent is not None]
        return sorted(one.spec.params.__struct_config__.tag for instances in found for one in instances)

    def settled(self) -> bool:
        """Tells whether nothing of a change is left."""
        return not self.plans.step and self.plans.other is None and not self.plans.retiring


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Any]:
    made: list[Dealt] = []

    def make(sql: str, **options: Any) -> Dealt:
        made.append(Dealt(tmp_path, sql, **options))
        return made[-1]

    yield make
    for one in made:
        one.world.close()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> "Answers":
    """Returns the answers of one plan, by statement."""
    return cache(lambda sql: Story(tmp_path_factory.mktemp("undisturbed"), sql).answers())


@pytest.mark.parametrize("sql", seeds((BY_KEY,), (HOPS,)))
def test_more_instances_take_over_without_a_row_lost_or_repeated(story: Any, sql: str, undisturbed: Answers) -> None:
    told = story(sql)
    before = told.kinds()
    answer = told.replan(3)
    assert answer["instances"] == [3]
    assert answer["crosses_at"] is not None
    told.world.run_until(told.settled, 20.0, "the change is over")
    assert told.kinds() == sorted([*before, "window"]), "the operators of the former plan must end"
    assert told.record.history.latest(1)[0].event == "replanned"

    assert told.answers() == undisturbed(sql)


@pytest.mark.soak
def test_a_change_that_is_called_off_leaves_nothing(story: Any, undisturbed: Answers) -> None:
    told = story(BY_KEY)
    before, first = told.kinds(), told.record.plan
    told.replan(4)
    told.queries.recovering.replans.call_off(told.record.id)
    told.world.run_until(told.settled, 20.0, "all of it is ended")
    assert told.kinds() == before
    assert told.record.plan == first

    assert told.replan(1)["instances"] == []
    assert told.answers() == undisturbed(BY_KEY)


def test_a_sink_answers_for_no_other_change_and_takes_part_in_none_that_is_called_off(story: Any) -> None:
    told = story(BY_KEY)
    told.replan(3)
    told.world.run_until(told.settled, 20.0, "the first change is over")
    agent = told.world.agents[SINK]
    operators = agent.execution.operators
    change = operators.instances[told.record.sink].waiting.change
    assert change.has_crossed
    number, asked = change.number + 1, {"query": told.record.id, "operator": told.record.sink}

    said = crossing.uncut(operators, agent.execution.engine, Uncut(number=number, **asked))
    assert (said.has_crossed, said.is_called_off) == (False, True)
    with pytest.raises(LocalProtocolError, match="called off"):
        crossing.cross(operators, agent.execution.flow, LinkConfig(), Cross(number=number, inputs=(), time_column="t", **asked))
    with pytest.raises(LocalProtocolError):
        crossing.cut(operators, agent.execution.engine, Cut(number=number - 1, after_us=0, **asked))
    assert crossing.uncut(operators, agent.execution.engine, Uncut(number=number - 1, **asked)).is_called_off


@pytest.mark.soak
def test_a_host_of_the_other_plan_crashes_and_the_present_one_goes_on(story: Any, undisturbed: Answers) -> None:
    told = story(BY_KEY)
    told.gather(OTHER)
    told.replan(3)
    other, there = told.plans.other, told.world.nodes[MIDDLE]
    window = next(spec.id for spec in other.plan.operators if spec.params.__struct_config__.tag == "window")
    if other.nodes[window] != there:
        assert told.world.ask(other.nodes[window], "migrate", operator=window, node=there)["committed"]
    assert told.plans.other is other, "the sink must not have switched to the new plan"
    told.world.kill(MIDDLE)
    told.world.run_until(told.settled, 30.0, "it is called off, and all of it is ended")
    assert told.answers() == undisturbed(BY_KEY)


@pytest.mark.parametrize("after_s", seeds((1.5,), (0.2, 0.7)))
def test_the_next_owner_ends_what_it_finds_begun(story: Any, after_s: float, undisturbed: Answers) -> None:
    """The next owner calls the change off, or ends the former operators if the sink has switched to the new plan meanwhile."""
    told = story(BY_KEY)
    told.world.run(2.0)
    told.replan(3)
    told.world.run(after_s)
    told.world.kill(HOME)
    agents = [agent for agent in told.world.agents if agent is not None]
    told.world.run_until(lambda: any(a.queries.owned.records for a in agents), 30.0, "somebody owns the query")
    told.record = next(record for a in agents for record in a.queries.owned.records.values())
    told.world.run_until(told.settled, 30.0, "nothing is left of the change")
    windows = told.kinds().count("window")
    assert windows == len([one for one in told.record.specs.values() if one.params.__struct_config__.tag == "window"])
    assert told.answers() == undisturbed(BY_KEY)


def test_a_source_that_crashes_later_gives_the_other_plan_no_row_twice(story: Any, undisturbed: Answers) -> None:
    told = story(BY_KEY)
    told.replan(3)
    told.world.run_until(told.settled, 20.0, "the change is over")
    told.gather(OTHER)
    told.crash(SOURCE)
    assert told.answers() == undisturbed(BY_KEY)


@pytest.mark.soak
def test_a_sink_that_crashes_later_leaves_out_no_answer(story: Any, undisturbed: Answers) -> None:
    """Its file has rows of two plans, so the sink skips none, and reports that some may come twice."""
    told = story(BY_KEY)
    told.replan(3)
    told.world.run_until(told.settled, 20.0, "the change is over")
    told.world.run(3.0)
    told.crash(SINK)
    found = told.answers()
    assert {tuple(row) for row in found} == {tuple(row) for row in undisturbed(BY_KEY)}
    assert len(found) <= len(undisturbed(BY_KEY)) + 10


def test_rows_that_waited_in_a_sink_whose_host_crashes_are_counted_as_lost(story: Any, undisturbed: Answers) -> None:
    """The rows were acknowledged but are not in its file, and the plan that continues does not give them again."""
    told, expected = story(BY_KEY), undisturbed(BY_KEY)
    told.gather(OTHER)
    told.replan(3)
    other = told.plans.other
    merge = next(link.source for link in other.plan.links if link.target == told.record.sink)
    there = told.world.nodes.index(other.nodes[merge])
    assert there not in (SINK, OTHER)
    for ends in ((there, SINK), (SINK, there)):
        told.world.world.network.cut(*ends)
    change = told._agent(SINK).execution.operators.instances[told.record.sink].waiting.change
    told.world.run_until(lambda: change._held[0] is not None and change._held[0].height >= 5, 30.0, "rows of the present plan wait")
    told.world.run(1.0)
    told.world.heal()
    told.crash(SINK)
    told.world.run(1.0)
    told.crash(SINK)
    told.world.run_until(told.settled, 30.0, "the change is called off")
    found, account = told.answers(), told.record.health.healing.account
    assert found == [row for row in expected if row in found]
    assert account.is_exact
    assert len(expected) - len(found) == account.rows >= 5


@pytest.mark.soak
def test_a_query_may_end_while_its_plan_changes(story: Any, undisturbed: Answers) -> None:
    told = story(BY_KEY)
    told.world.run_until(lambda: told.world.now > 0 and told.rows_out() >= 85, 60.0, "the file is nearly at its end")
    told.replan(3)
    assert told.answers() == undisturbed(BY_KEY)
    told.world.run_until(lambda: not told.kinds(), 60.0, "everything of both plans ends")


def test_of_two_changes_that_are_placed_at_once_one_is_refused(story: Any, undisturbed: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second change would use the same ids and number, and the sink would mistake it for the first."""
    told, said, late = story(BY_KEY), [], []
    replans, replan = told.queries.recovering.replans, told.queries.statements.replan
    replace = replans._replace

    def slowly(*given: Any) -> None:
        replace(*given[:-1], lambda result: late.append(partial(given[-1], result)))

    monkeypatch.setattr(replans, "_replace", slowly)
    replan("k", {"instances": 4}, said.append)
    told.world.run_until(lambda: late, 20.0, "it is placed")
    monkeypatch.setattr(replans, "_replace", replace)
    replan("k", {"instances": 3}, said.append)
    told.world.run_until(lambda: said and told.settled(), 20.0, "the later request is carried out")
    late.pop()()
    assert len(said) == 2
    assert isinstance(said[1], SbonError)
    assert str(said[1]).endswith("try again")
    assert told.answers() == undisturbed(BY_KEY)


def test_refusals_take_one_line(story: Any) -> None:
    told = story(BY_KEY)
    told.world.settle()
    for instances, why in ((2, "already"), (None, "give the number")):
        with pytest.raises(SbonError, match=why) as refused:
            told.replan(instances)
        assert "\n" not in str(refused.value)
    told.replan(3)
    with pytest.raises(SbonError, match="about to get another plan"):
        told.replan(4)
