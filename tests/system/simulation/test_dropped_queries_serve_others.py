"""A dropped query's operators that another query uses are recreated after crashes as long as the other query runs."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sbon.errors import SbonError
from sbon.execution.life import State
from sbon.query.multicast_ids import is_multicast
from sbon.supervision.record import QueryRecord, QueryState
from sbon_testbed.simulator.harness import World

HOME, SOURCE, MIDDLE, OTHER, KEEPER = 0, 1, 2, 4, 5
WINDOW = (
    "SELECT window_start, window_end, v >= 0 AS k, COUNT(*) AS n FROM TUMBLE((SELECT ts, v FROM s WHERE v >= 0), ts, "
    "INTERVAL '1 second') GROUP BY 1, 2, 3"
)
AGAIN_WITHIN_S = 30.0


class Story:
    """Two queries share a source, a filter and a window, whose hosts may crash separately. The first query is dropped."""

    OPTIONS = ""
    """More options of the source."""
    SEED = 3

    def __init__(self, folder: Path | None = None, **engine: Any) -> None:
        settings = {
            "telemetry": {"enabled": False},
            "optimiser": {"enabled": False},
            "engine": {"batch_interval_s": 0.2, "lost_consumer_s": 2.0, **engine},
        }
        self.world = world = World(6, seed=self.SEED, data_dir=folder, settings=settings)
        world.start_all()
        world.settle()
        world.submit(
            "CREATE SOURCE s (ts TIMESTAMP, v BIGINT, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', rows_per_second = 20, "
            f"{self.OPTIONS}nodes = '{world.nodes[SOURCE]}')",
            at=KEEPER,
        )
        world.run(3.0)
        world.submit(
            f"CREATE SINK k WITH (connector = 'discard', node = '{world.nodes[HOME]}', max_latency = '1 minute') AS {WINDOW}", HOME
        )
        world.run(3.0)
        self.first = self.found(HOME, "k").id
        self.second = world.submit(f"SELECT window_start, n + 100 AS n FROM ({WINDOW}) WHERE n > 0", OTHER)
        self.tail = world.tail(self.second, OTHER)
        first, second = self.found(HOME, "k"), self.found(OTHER, self.second)
        kinds = {first.kind_of(one): one for one in second.nodes if one in first.specs}
        assert set(kinds) == {"source", "map", "window"}, "the second query uses these of the first one"
        self.shared, self.window = frozenset(kinds.values()), kinds["window"]
        if first.nodes[self.window] != world.nodes[MIDDLE]:
            assert world.ask(first.nodes[self.window], "migrate", operator=self.window, node=world.nodes[MIDDLE])["committed"]
        world.run_until(lambda: len(self.tail.rows) > 3)

    def queries(self, number: int) -> Any:
        agent: Any = self.world.agents[number]
        return agent.queries.owned

    def found(self, number: int, query: str) -> QueryRecord:
        record: QueryRecord = self.queries(number).find(query)
        return record

    def owners(self) -> list[int]:
        """Returns the living agents that own the first query."""
        return [
            number for number, agent in enumerate(self.world.agents) if agent is not None and self.first in self.queries(number).records
        ]

    def rows_of(self, query: str) -> list[dict[str, Any]]:
        return [row for row in self.world.ask(OTHER, "queries") if row["id"] == query]

    def drop(self) -> None:
        self.world.ask(OTHER, "drop", query="k")
        record = self.found(HOME, self.first)
        assert record.state is QueryState.SHARED
        self.world.run_until(lambda: not record.health.healing.plans.retiring, 10.0, "its sink has ended")
        assert {one for one in self.hosted() if one.startswith(self.first)} == self.shared

    def hosted(self) -> list[str]:
        """Returns all operators that run anywhere."""
        agents: list[Any] = [agent for agent in self.world.agents if agent is not None]
        return sorted(one for agent in agents for one in agent.execution.operators.instances if not is_multicast(one))

    def goes_on(self, after: Callable[[], object]) -> None:
        """Checks that the second query gives right rows again, each once, after `after` has been called."""
        before = len(self.tail.rows)
        after()
        said = "the second query goes on"
        self.world.run_until(lambda: len(self.tail.rows) > before + 3 and not self.lost(), AGAIN_WITHIN_S, said)
        assert {row[1] for row in self.tail.rows[1:]} == {120}, "no answer is wrong"
        assert len({row[0] for row in self.tail.rows}) == len(self.tail.rows), "no answer comes twice"

    def lost(self) -> bool:
        second = self.found(OTHER, self.second)
        return second.state is not QueryState.RUNNING or any(self.found(owner, self.first).lost for owner in self.owners())

    def ends(self) -> None:
        """Checks that nothing is left once the second query is dropped, too."""
        self.world.ask(OTHER, "drop", query=self.second)
        self.world.run_until(lambda: not self.hosted() and not self.owners(), 30.0, "nothing is left")
        for number, agent in enumerate(self.world.agents):
            if agent is not None:
                assert not self.queries(number).ownership.inheriting.records
                assert self.first not in {query.id for query in self.queries(number).kept_queries()}


@pytest.fixture
def story() -> Iterator[Callable[..., Story]]:
    made: list[Story] = []

    def make(folder: Path | None = None, **engine: Any) -> Story:
        made.append(Story(folder, **engine))
        return made[-1]

    yield make
    for one in made:
        one.world.close()


def test_what_others_use_of_a_dropped_query_is_made_again_until_nobody_uses_it(story: Any) -> None:
    told: Story = story()
    world = told.world
    told.drop()
    assert told.hosted() == sorted({*told.shared, *told.found(OTHER, told.second).specs})
    [row] = told.rows_of(told.first)
    assert (row["state"], row["name"], row["sink_node"]) == ("shared", told.first, None)
    assert row["reason"] == "dropped; its operators serve other queries"
    with pytest.raises(SbonError, match="has been dropped; its operators serve other queries"):
        world.ask(HOME, "replan", query=told.first, instances=2)
    with pytest.raises(SbonError, match="there is no query k"):
        world.ask(OTHER, "drop", query="k")
    world.submit("CREATE SINK k WITH (connector = 'discard') AS SELECT v FROM s", OTHER)
    world.ask(OTHER, "drop", query="k")

    told.goes_on(lambda: world.kill(MIDDLE))
    assert "lack what it had taken" in told.found(HOME, told.first).reason, "the reason names the lost rows"
    assert "are lost" in told.found(OTHER, told.second).reason, "the other query's reason names them too"

    def restart_source() -> None:
        world.kill(SOURCE)
        world.run(6.0)
        world.start(SOURCE)

    told.goes_on(restart_source)
    assert told.found(HOME, told.first).health.healing.account.recoveries >= 2
    told.ends()


def test_a_keeper_recovers_what_is_left_of_a_dropped_query_that_has_crashed_together_with_its_owner(story: Any, tmp_path: Path) -> None:
    told: Story = story(tmp_path)
    told.drop()
    told.goes_on(lambda: [told.world.kill(number) for number in (HOME, MIDDLE)])
    told.world.start(HOME)
    told.goes_on(lambda: told.world.run(5.0))
    [owner] = told.owners()
    assert owner != HOME
    assert told.found(owner, told.first).state is QueryState.SHARED
    assert not told.queries(HOME).kept_queries()
    told.ends()


def test_a_home_that_restarts_leaves_what_it_had_dropped_to_its_keepers(story: Any, tmp_path: Path) -> None:
    told: Story = story(tmp_path)
    told.drop()
    told.world.restart(HOME)
    told.world.run_until(lambda: told.owners() not in ([], [HOME]), 60.0, "it is taken over")
    told.goes_on(lambda: told.world.kill(MIDDLE))
    assert set(told.hosted()) == {*told.shared, *told.found(OTHER, told.second).specs}, "nothing of it runs anew"
    told.ends()


@pytest.mark.soak
def test_a_home_that_nobody_follows_takes_up_what_is_left_of_what_it_had_dropped(story: Any, tmp_path: Path) -> None:
    told: Story = story(tmp_path, take_over=False, wanted_interval_s=3.0)
    told.drop()
    told.world.restart(HOME)
    told.world.run_until(lambda: told.owners() == [HOME], 20.0, "it lives on")
    told.world.run(10.0)
    assert [row["state"] for row in told.rows_of(told.first)] == ["shared"]
    told.goes_on(lambda: told.world.kill(MIDDLE))
    assert set(told.hosted()) == {*told.shared, *told.found(OTHER, told.second).specs}, "nothing of it runs anew"
    told.ends()


def test_what_others_use_of_a_query_that_begins_anew_lives_on_under_its_former_id(story: Any, tmp_path: Path) -> None:
    told: Story = story(tmp_path, take_over=False, wanted_interval_s=3.0)
    told.world.restart(HOME)
    told.world.run_until(lambda: told.found(HOME, "k") is not None and told.found(HOME, "k").former == told.first, 60.0, "it begins anew")
    assert told.owners() == [HOME]
    assert told.rows_of(told.first)[0]["state"] == "shared"
    assert {one for one in told.hosted() if one.startswith(f"{told.first}.")} == told.shared, "nothing else of the first query is left"
    told.goes_on(lambda: told.world.kill(MIDDLE))
    told.world.run_until(lambda: told.found(HOME, "k").state is QueryState.RUNNING, 30.0, "the sink goes on, too")
    told.world.ask(OTHER, "drop", query="k")
    told.ends()


def test_who_drops_it_once_more_ends_it_and_the_others_run_on(story: Any) -> None:
    told: Story = story()
    told.drop()
    told.world.ask(OTHER, "drop", query=told.first)
    assert not told.owners()
    told.goes_on(lambda: None)
    told.ends()


@pytest.mark.parametrize("silent_s", [1.0, pytest.param(6.0, marks=pytest.mark.soak)])
def test_a_query_that_is_dropped_while_what_others_use_of_it_is_lost_has_it_made_again(story: Any, silent_s: float) -> None:
    told: Story = story()

    def drop_in_the_midst() -> None:
        told.world.kill(MIDDLE)
        told.world.run(silent_s)
        told.world.ask(HOME, "drop", query="k")

    told.goes_on(drop_in_the_midst)
    assert told.found(HOME, told.first).health.healing.account.recoveries == 1
    told.ends()


def test_a_query_that_is_dropped_where_queries_do_not_heal_ends_at_once(story: Any) -> None:
    told: Story = story(heal=False)
    told.world.ask(HOME, "drop", query="k")
    assert not told.owners()
    told.goes_on(lambda: None)
    told.ends()


class Elsewhere(Story):
    """The story of a query whose keepers have none of the operators."""

    SEED = 8


@pytest.mark.soak
def test_a_query_whose_keepers_restart_with_its_home_leaves_others_what_they_use(tmp_path: Path) -> None:
    told = Elsewhere(tmp_path)
    keepers = {told.world.nodes.index(node) for node in told.found(HOME, "k").health.healing.keepers}
    assert keepers.isdisjoint({SOURCE, MIDDLE, OTHER})
    for number in (HOME, *keepers):
        told.world.kill(number)
    told.world.run(1.0)
    for number in (HOME, *keepers):
        told.world.start(number)
    told.world.run_until(lambda: told.found(HOME, "k") is not None and told.found(HOME, "k").former == told.first, 90.0, "it begins anew")
    assert told.owners() == [HOME]
    told.world.run_until(lambda: len(told.found(HOME, told.first).health.healing.keepers) == 2, 30.0, "it has keepers again")
    told.goes_on(lambda: [told.world.kill(number) for number in (HOME, MIDDLE)])
    assert told.owners() != [HOME]
    told.world.close()


class Ending(Story):
    """The story of queries whose source ends."""

    OPTIONS = "rows = 150, "

    def rows(self, *, crashes: bool) -> list[tuple[Any, ...]]:
        """Returns the answers of the second query, with or without a crash between the ends of the two queries."""
        first, second = self.found(HOME, "k"), self.found(OTHER, self.second)
        shared = [self.world.agents[number].execution.operators.instances[one] for one, number in self.hosts()]
        self.world.run_until(lambda: shared[0].state is State.FINISHED, 30.0, "the source ends")
        if crashes:
            self.world.partition([[OTHER]])
        self.world.run_until(lambda: first.state is QueryState.FINISHED and not self.owners(), 3.0, "the first query ends")
        assert {one.state for one in shared} == {State.FINISHED}, "the shared operators have given all their rows"
        if crashes:
            assert second.state is QueryState.RUNNING
            self.world.kill(MIDDLE)
            self.world.heal()
        self.world.run_until(lambda: second.state is QueryState.FINISHED, 30.0, "the second query ends")
        self.world.close()
        return self.tail.rows

    def hosts(self) -> list[tuple[str, int]]:
        """Returns the shared operators, upstream first, with their hosts."""
        return [(one, self.world.nodes.index(node)) for one, node in self.found(HOME, "k").nodes.items() if one in self.shared]


def test_a_query_that_has_finished_has_given_all_its_rows_to_others() -> None:
    assert Ending().rows(crashes=True) == Ending().rows(crashes=False)
