"""Queries outlive their homes: keepers of their records take them over."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sbon.errors import SbonError
from sbon.supervision.record import QueryRecord, QueryState
from sbon.supervision.resumption import Kept, decode_kept
from sbon_agent.kept_file import KEPT_NAME, KeptFile
from sbon_testbed.exactly_once.story import run_seed
from sbon_testbed.simulator.faults.kinds import KINDS
from sbon_testbed.simulator.harness import World
from sbon_testbed.simulator.simulation import simulate
from tests.examples import seeds

HOME, SOURCE, SINK = 0, 1, 2
QUERIES = 5
ROWS, PER_SECOND = 1800, 20
FILTER = "SELECT v, v * 2 AS d FROM r WHERE v % 3 = 0"
WINDOW = "SELECT window_start, COUNT(*) AS n, SUM(v) AS s FROM TUMBLE(r, ts, INTERVAL '1 second') GROUP BY window_start"
SPLIT = ("partitions", "kills", "moves")
ANSWERS = [[str(v), str(2 * v)] for v in range(ROWS) if v % 3 == 0]


class Story:
    """A file is replayed on one host, its answers are written to a file on another one, and the home of the query fails."""

    def __init__(self, folder: Path, agents: int = 6, sql: str = FILTER) -> None:
        settings = {
            "telemetry": {"enabled": False},
            "optimiser": {"enabled": False},
            "placement": {"reuse": False},
            "engine": {"batch_interval_s": 0.1, "take_over": True},
        }
        self.world = world = World(agents, seed=3, data_dir=folder, settings=settings)
        world.start_all()
        world.settle()
        path = world.data_dir_of(SOURCE) / "files" / "r.csv"
        path.parent.mkdir(parents=True)
        rows = (f"2026-01-01T00:{i // PER_SECOND // 60:02d}:{i // PER_SECOND % 60:02d}.{i % PER_SECOND * 50:03d},{i}" for i in range(ROWS))
        path.write_text("\n".join(["ts,v", *rows, ""]))
        world.submit(
            f"CREATE SOURCE r (ts TIMESTAMP, v BIGINT, WATERMARK FOR ts AS ts - INTERVAL '0.2 s') WITH "
            f"(connector = 'file', path = '{path}', nodes = '{world.nodes[SOURCE]}', replay = 'event_time')",
            at=SOURCE,
        )
        world.run(3.0)
        sink = f"(connector = 'file', path = 'k.csv', node = '{world.nodes[SINK]}')"
        self.query = world.submit(f"CREATE SINK k AS {sql} WITH {sink}", at=HOME)
        world.run(2.0)

    def owners(self) -> list[int]:
        """Returns the living agents that own the query."""
        return [number for number, agent in enumerate(self.world.agents) if agent is not None and self.query in agent.queries.owned.records]

    def record(self) -> QueryRecord:
        """Returns the query's record at its only owner."""
        (number,) = self.owners()
        agent: Any = self.world.agents[number]
        found = agent.queries.owned.find(self.query)
        assert isinstance(found, QueryRecord)
        return found

    def keepers(self) -> list[int]:
        """Returns the owner's keepers."""
        return [self.world.nodes.index(name) for name in self.record().health.healing.keepers]

    def copies(self) -> dict[str, list[str]]:
        """Returns the hosts of each operator of the query."""
        found: dict[str, list[str]] = {}
        for name, agent in zip(self.world.nodes, self.world.agents, strict=True):
            for instance in agent.execution.engine.instances.values() if agent is not None else ():
                found.setdefault(instance.id, []).append(name)
        return found

    def answers(self) -> list[list[str]]:
        """Returns the answers in the file, once the query has ended."""
        ended: list[QueryRecord] = []

        def has_ended() -> bool:
            agents = [agent for agent in self.world.agents if agent is not None]
            found = [agent.queries.owned.find(self.query) for agent in agents]
            ended[:] = [one for one in found if one is not None and one.state is QueryState.FINISHED]
            return bool(ended)

        self.world.run_until(has_ended, 120.0, "the query ends")
        file = next(self.world.data_dir_of(SINK).rglob("k.csv"))
        return [line.split(",") for line in file.read_text().splitlines()[1:]]

    def taken_over(self) -> None:
        """Waits until another agent owns the query, and the query runs."""
        self.world.run_until(
            lambda: self.owners() not in ([], [HOME]) and self.record().state is QueryState.RUNNING, 30.0, "the query is taken over"
        )


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Any]:
    made: list[Story] = []

    def make(**how: Any) -> Story:
        made.append(Story(tmp_path, **how))
        return made[-1]

    yield make
    for one in made:
        one.world.close()


def test_a_home_that_never_returns_is_succeeded_and_nothing_is_lost(story: Any) -> None:
    told = story()
    keepers = told.keepers()
    assert len(keepers) == 2
    told.world.kill(HOME)
    told.taken_over()

    (owner,) = told.owners()
    assert owner in keepers
    for number in range(1, 6):
        (row,) = told.world.ask(number, "queries")
        assert (row["id"], row["owner"], row["state"]) == (told.query, told.world.nodes[owner], "running")
        assert len(row["keepers"]) == 2
        assert told.world.nodes[HOME] not in row["keepers"]
    assert told.answers() == ANSWERS


def test_a_home_that_fails_with_operators_on_it_is_succeeded_and_they_run_again(story: Any) -> None:
    told = story(sql=WINDOW)
    operator = next(one for one, spec in told.record().specs.items() if spec.pinned is None)
    if told.record().nodes[operator] != told.world.nodes[HOME]:
        moved = told.world.ask(told.record().nodes[operator], "migrate", operator=operator, node=told.world.nodes[HOME])
        assert moved["committed"]
    told.world.run(2.0)
    told.world.kill(HOME)
    told.taken_over()

    assert {len(hosts) for hosts in told.copies().values()} == {1}
    (cost,) = told.record().health.healing.account.told(str)
    assert [one["id"] for one in cost["operators"]] == [operator]
    lost_until = datetime.fromisoformat(cost["operators"][0]["state_lost_until"]).replace(tzinfo=None)
    answers = told.answers()
    starts = [datetime.fromisoformat(start).replace(tzinfo=None) for start, _, _ in answers]
    assert all(int(n) == PER_SECOND for _, n, _ in answers)
    assert len(set(starts)) == len(starts)
    missing = {datetime(2026, 1, 1) + timedelta(seconds=second) for second in range(ROWS // PER_SECOND)} - set(starts)
    assert 0 < len(missing) <= 10
    assert all(start <= lost_until for start in missing)


def test_a_query_can_be_dropped_at_the_agent_that_is_taking_it_over(story: Any) -> None:
    """It refused the drop once, as its hosts heard from it that it still wanted the query."""
    told = story()
    told.world.kill(HOME)

    def taking() -> list[int]:
        agents = [(number, agent) for number, agent in enumerate(told.world.agents) if agent is not None]
        return [number for number, agent in agents if told.query in agent.queries.owned.ownership.owned]

    while not taking():
        told.world.run(0.01)
    (owner,) = taking()
    assert told.owners() == []
    told.world.submit("DROP SINK k", at=owner)
    assert all(told.query not in told.world.agents[number].queries.owned.ownership.owned for number in range(1, 6))
    told.world.run_until(lambda: not told.copies(), 10.0, "all operators have ended")
    assert told.world.ask(owner, "queries") == []


@pytest.mark.parametrize("back_s", seeds([0.5], [20.0]))
def test_a_home_that_returns_is_not_the_owner_any_more(story: Any, back_s: float) -> None:
    told = story()
    told.world.kill(HOME)
    told.world.run(back_s)
    told.world.start(HOME)
    told.taken_over()
    told.world.run(10.0)

    assert HOME not in told.owners()
    (row,) = told.world.ask(HOME, "queries")
    assert (row["id"], row["owner"], row["state"]) == (told.query, told.world.nodes[told.owners()[0]], "running")
    assert {len(hosts) for hosts in told.copies().values()} == {1}
    assert told.answers() == ANSWERS


def test_any_agent_drops_a_query_that_has_been_taken_over(story: Any) -> None:
    told = story()
    told.world.kill(HOME)
    told.taken_over()
    asked = next(number for number in (3, 4, 5) if number not in told.owners())
    told.world.ask(asked, "drop", query="k")
    told.world.run_until(lambda: not told.copies(), 5.0, "its operators end")
    told.world.start(HOME)
    told.world.run(30.0)

    assert told.owners() == []
    assert told.world.ask(HOME, "queries") == []
    assert told.copies() == {}


def test_a_sink_is_not_replaced_while_keepers_may_take_its_query_over(story: Any) -> None:
    """Just after its home has restarted without its statements no agent owns the query, so replacing the sink would end only half of it."""
    told = story()
    told.world.kill(HOME)
    told.world.start(HOME, forget=True)
    sink = f"CREATE SINK k AS SELECT v FROM r WITH (connector = 'file', path = 'other.csv', node = '{told.world.nodes[SINK]}')"
    home = told.world.agents[HOME]
    told.world.run_until(
        lambda: len(home.network.gossip.alive_labels()) == 6 and {"r", "k"} <= home.queries.replication.catalog.living.keys(),
        5.0,
        "it knows them all",
    )
    with pytest.raises(SbonError, match="there is a sink k"):
        told.world.submit(sink, at=HOME)
    told.taken_over()
    with pytest.raises(SbonError, match="there is a sink k already"):
        told.world.submit(sink, at=HOME)
    assert told.answers() == ANSWERS


def test_successors_are_succeeded(story: Any) -> None:
    told = story(agents=8)
    for _ in range(3):
        (before,) = told.owners()
        told.world.kill(before)
        told.world.run_until(lambda: len(told.owners()) == 1, 30.0, "it is taken over")
        told.world.run(8.0)
        told.world.start(before)
        told.world.run_until(lambda: told.record().state is QueryState.RUNNING, 30.0, "it runs")

    assert {len(hosts) for hosts in told.copies().values()} == {1}
    assert told.record().owner != told.world.nodes[HOME]


def test_a_home_that_restarts_in_a_partition_without_its_keepers_waits_for_one_of_them(story: Any) -> None:
    """Its keepers may take the query over meanwhile, so the home, which has the query on disk, must not run it a second time."""
    told = story()
    keepers = told.keepers()
    others = [number for number in range(6) if number not in keepers]
    told.world.partition([keepers])
    told.world.kill(HOME)
    told.world.run(1.0)
    told.world.start(HOME)
    told.world.run(30.0)
    assert [number for number in told.owners() if number in others] == []
    (row,) = (row for row in told.world.ask(HOME, "queries") if row["state"] == "waiting")
    assert all(told.world.nodes[number] in row["reason"] for number in keepers)
    told.world.heal()
    told.taken_over()
    told.world.run(10.0)

    assert set(told.owners()) <= set(keepers)
    assert {len(hosts) for hosts in told.copies().values()} == {1}
    assert {row["id"] for row in told.world.ask(HOME, "queries")} == {told.query}
    assert told.answers() == ANSWERS


def test_a_home_goes_on_by_itself_once_its_keepers_have_restarted_too(story: Any) -> None:
    """No agent has the record any more. One keeper's promise is enough; the other keeper stays away."""
    told = story()
    keepers = told.keepers()
    for number in [HOME, *keepers]:
        told.world.kill(number)
    told.world.run(1.0)
    told.world.start(HOME)
    told.world.run(20.0)
    assert told.owners() == []
    told.world.start(keepers[0])
    told.world.run_until(lambda: any(row["former"] == told.query for row in told.world.ask(HOME, "queries")), 30.0, "it runs anew")
    given = told.world.agents[keepers[0]].queries.owned.ownership.inheriting.promises.of(told.query)
    assert given is not None
    assert given.to.name == told.world.nodes[HOME]


def test_a_home_whose_query_had_no_keepers_goes_on_by_itself(story: Any) -> None:
    told = story(agents=3)
    told.world.kill(SOURCE)
    told.world.run_until(lambda: not told.record().health.healing.keepers, 30.0, "nobody keeps it")
    told.world.kill(HOME)
    told.world.start(HOME)
    told.world.start(SOURCE)
    told.world.run_until(lambda: any(row["former"] == told.query for row in told.world.ask(HOME, "queries")), 20.0, "it runs anew")
    (row,) = told.world.ask(HOME, "queries")
    assert row["id"] != told.query, "it must have a new id"


def test_a_keeper_alone_takes_over_once_the_home_is_back_as_another_process(story: Any) -> None:
    """The home and a keeper fail together. The home's promises are on its disk, so its next process can promise for it."""
    told = story()
    keepers = told.keepers()
    for number in (HOME, keepers[0]):
        told.world.kill(number)
    told.world.run(20.0)
    assert told.owners() == []
    told.world.start(HOME)
    told.taken_over()
    assert told.owners() == [keepers[1]]


def test_fewer_than_three_agents_inherit_nothing(story: Any) -> None:
    told = story(agents=3)
    told.world.kill(SOURCE)
    told.world.run_until(lambda: not told.record().health.healing.keepers, 30.0, "nobody keeps it")
    assert "fewer than three agents are alive" in told.record().health.healing.ownership
    told.world.kill(HOME)
    told.world.run(40.0)

    assert told.owners() == []
    (row,) = told.world.ask(SINK, "queries")
    assert row["state"] == "orphaned"


def test_promises_are_on_disk_before_anybody_hears_of_them(story: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A keeper whose disk refuses all writes promises nothing, and without it there is no majority."""
    told = story()
    keepers = told.keepers()

    save, broken_disk = KeptFile.save, told.world.data_dir_of(keepers[0])

    def refuse(self: KeptFile, kept: Kept) -> None:
        if self.path is not None and self.path.parent == broken_disk:
            raise OSError("no")
        save(self, kept)

    with monkeypatch.context() as broken:
        broken.setattr(KeptFile, "save", refuse)
        told.world.kill(HOME)
        told.world.run(30.0)
        assert told.owners() == []
    told.world.run_until(lambda: len(told.owners()) == 1, 60.0, "it is taken over")
    (owner,) = told.owners()
    (other,) = set(keepers) - {owner}
    given = told.world.agents[other].queries.owned.ownership.inheriting.promises.all
    assert [promise.query for promise in given] == [told.query]
    assert decode_kept((told.world.data_dir_of(other) / KEPT_NAME).read_bytes()).promises == given
    told.world.restart(other)
    assert told.world.agents[other].queries.owned.ownership.inheriting.promises.all == given


def window_on(told: Any, number: int) -> None:
    """Moves the window to a host."""
    operator = next(one for one, spec in told.record().specs.items() if spec.params.__struct_config__.tag == "window")
    here, there = told.record().nodes[operator], told.world.nodes[number]
    if here != there:
        assert told.world.ask(here, "migrate", operator=operator, node=there)["committed"]
    told.world.run(3.0)


def other_than(told: Any) -> int:
    """Returns an agent without a part in the query."""
    return next(number for number in (3, 4, 5) if number not in told.keepers())


@pytest.mark.parametrize("cut_off", seeds(["both"], ["home and both keepers", "home", "host"]))
def test_after_a_partition_there_is_one_owner_and_one_copy_and_rows_agree_with_the_account(story: Any, cut_off: str) -> None:
    told = story(sql=WINDOW)
    middle = other_than(told)
    window_on(told, middle)
    group = {"home": [HOME], "host": [middle], "both": [HOME, middle]}.get(cut_off, [HOME, *told.keepers()])
    goes = cut_off not in ("host", "home and both keepers")
    told.world.partition([group])
    told.world.run(60.0)
    told.world.heal()
    told.world.run_until(
        lambda: (
            len(told.owners()) == 1
            and told.record().state is QueryState.RUNNING
            and all(len(hosts) == 1 for hosts in told.copies().values())
        ),
        30.0,
        "one owner, one copy",
    )
    assert (told.owners() != [HOME]) == goes

    costs = told.record().health.healing.account.told(str)
    for number in range(6):
        rows = [(told.query, told.record().owner, "running")]
        while [(row["id"], row["owner"], row["state"]) for row in told.world.ask(number, "queries")] != rows:
            told.world.run(1.0)
            assert told.world.now < 200.0
    answers = told.answers()
    assert all(int(n) == PER_SECOND for _, n, _ in answers)
    starts = [datetime.fromisoformat(start).replace(tzinfo=None) for start, _, _ in answers]
    assert len(set(starts)) == len(starts)
    missing = {datetime(2026, 1, 1) + timedelta(seconds=second) for second in range(ROWS // PER_SECOND)} - set(starts)
    until = [one["state_lost_until"] for cost in costs for one in cost["operators"] if one["state_lost_until"]]
    assert bool(missing) <= bool(until)
    assert all(start <= max(datetime.fromisoformat(one).replace(tzinfo=None) for one in until) for start in missing)


def test_an_owner_without_its_keepers_changes_nothing_and_says_so(story: Any) -> None:
    told = story(sql=WINDOW)
    middle = other_than(told)
    window_on(told, middle)
    before = dict(told.record().nodes)
    told.world.partition([told.keepers()])
    told.world.kill(middle)
    told.world.run(40.0)
    record = told.world.agents[HOME].queries.owned.find(told.query)

    assert record is not None
    assert dict(record.nodes) == before
    assert record.health.healing.account.recoveries == 0
    (row,) = (one for one in told.world.ask(HOME, "queries") if one["id"] == told.query and one["owner"] == told.world.nodes[HOME])
    assert "too few of its keepers" in row["reason"]


@pytest.mark.parametrize(
    ("seed", "faults"),
    [
        pytest.param(
            9, KINDS, id="a host that had not heard of the new owner asked nobody whether the query had ended", marks=pytest.mark.soak
        ),
        pytest.param(34, KINDS, id="a query that begins anew twice", marks=pytest.mark.soak),
        pytest.param(
            19, ("kills", "partitions", "moves", "restarts", "leaving"), id="a home restarts in a partition", marks=pytest.mark.soak
        ),
        pytest.param(38, SPLIT, id="an agent with two places among the holders was asked twice", marks=pytest.mark.soak),
        pytest.param(7, KINDS, id="a holder that took the first home for the owner refused another one's version", marks=pytest.mark.soak),
        pytest.param(181, KINDS, id="an owner told all of an epoch that did not count", marks=pytest.mark.soak),
        pytest.param(152, KINDS, id="the next owner left, and the former one promised nothing as it had no record", marks=pytest.mark.soak),
        pytest.param(
            105,
            KINDS,
            id="the next owner did not know of a multicast that had crashed, and asked its feeder for its links",
            marks=pytest.mark.soak,
        ),
        pytest.param(
            28,
            KINDS,
            id="a link of an operator that was being made again got the name that the attempt had given it",
            marks=pytest.mark.soak,
        ),
        pytest.param(2, SPLIT, id="a join that was worked through again gave its rows in another order", marks=pytest.mark.soak),
        pytest.param(
            294, KINDS, id="all that had the record were killed, the next owner before the query ran there", marks=pytest.mark.soak
        ),
        pytest.param(
            1099, KINDS, id="an owner was killed before those that it had chosen for keepers had its record", marks=pytest.mark.soak
        ),
        pytest.param(
            1288, KINDS, id="the first version of a query that had begun anew did not say which it had been", marks=pytest.mark.soak
        ),
        pytest.param(
            76, KINDS, id="a query had ended, and its home was killed while it asked for the last figures", marks=pytest.mark.soak
        ),
        pytest.param(
            182,
            KINDS,
            id="the home had given up its query, which its next owner was to begin anew, and refused the promise",
            marks=pytest.mark.soak,
        ),
        pytest.param(2017, KINDS, id="an owner left before all hosts had heard that the query had ended"),
    ],
)
def test_seeds_of_the_simulator_that_were_wrong(seed: int, faults: tuple[str, ...]) -> None:
    assert simulate(seed, faults).problem == ""


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(967, id="two keepers that had promised the query to themselves", marks=pytest.mark.soak),
        pytest.param(954, id="a keeper that had not been told took over a query that had ended", marks=pytest.mark.soak),
        pytest.param(988, id="a sink made anew while keepers take its query over", marks=pytest.mark.soak),
    ],
)
def test_seeds_of_the_exactly_once_story_that_were_wrong(seed: int) -> None:
    assert run_seed(seed, take_over=True).problem == ""


def bytes_sent(world: World) -> int:
    """Returns the bytes that all agents have sent."""
    counters = world.world.network.counters
    return counters["datagram_bytes"] + counters["stream_bytes"]


@pytest.mark.soak
def test_a_calm_query_and_an_idle_overlay_pay_nothing_for_it(tmp_path: Path) -> None:
    """Compares the bytes between agents over two minutes, with and without records at keepers."""
    told: dict[bool, float] = {}
    for heals in (False, True):
        world = World(
            5,
            seed=7,
            data_dir=tmp_path / str(heals),
            settings={"optimiser": {"enabled": False}, "engine": {"heal": heals, "take_over": heals}},
        )
        world.start_all()
        world.settle()
        source = f"CREATE SOURCE r (ts TIMESTAMP, v BIGINT) WITH (connector = 'datagen', nodes = '{world.nodes[1]}', rows_per_second = 1)"
        world.submit(source)
        for number in range(QUERIES):
            world.submit(f"SELECT v FROM r WHERE v < -{number}")
        world.run(30.0)
        before = bytes_sent(world)
        world.run(120.0)
        told[heals] = (bytes_sent(world) - before) / 120.0 / QUERIES
        world.close()
    assert told[True] - told[False] <= 200.0
