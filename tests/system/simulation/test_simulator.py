"""Random queries under random faults: every seed succeeds; a failed seed is reported with the command that repeats it."""

import re
from collections.abc import Iterator
from functools import cache, partial
from types import SimpleNamespace

import pytest

from sbon.errors import UsageError
from sbon_testbed.seeds import outcomes_of
from sbon_testbed.simulator import simulation
from sbon_testbed.simulator.checkers.tcp import Tcp
from sbon_testbed.simulator.command import again, summary
from sbon_testbed.simulator.faults.kinds import KINDS, kinds_of
from sbon_testbed.simulator.report import report
from sbon_testbed.simulator.simulation import Outcome, Simulation, simulate
from sbon_testbed.simulator.tcp_traffic import CONNECTORS
from sbon_testbed.simulator.workload import make_workload
from tests.examples import seeds
from tests.worlds import QUIET, settled_world

KILLS_AND_MOVES = ("kills", "moves")


@cache
def outcome_of(seed: int) -> Outcome:
    return simulate(seed)


@pytest.mark.parametrize("seed", seeds([0], range(1, 100)))
def test_a_seed_is_right_whatever_fails(seed: int) -> None:
    outcome = outcome_of(seed)

    assert not outcome.problem, report(outcome, again(seed, KINDS))


@pytest.mark.parametrize("seed", seeds([34], range(40)))
def test_a_seed_with_programs_outside_is_right_whatever_fails(seed: int) -> None:
    """Seed 34 breaks the streams at both ends of a query, and kills the agent of its sink."""
    outcome = simulate(seed, connectors=CONNECTORS)

    assert not outcome.problem, report(outcome, again(seed, KINDS, CONNECTORS))


@pytest.mark.parametrize("seed", seeds([5], range(40)))
def test_a_seed_whose_windows_are_dealt_is_right_whatever_crashes(seed: int) -> None:
    outcome = simulate(seed, KILLS_AND_MOVES, dealt=True)

    assert not outcome.problem, report(outcome, again(seed, KILLS_AND_MOVES, dealt=True))


def test_the_same_seed_gives_the_same_run() -> None:
    assert simulate(0) == outcome_of(0)


def test_no_key_of_groups_is_a_number_alone() -> None:
    """DuckDB takes a number alone as the position of a column."""
    keys = [asked.query.duck.rpartition("GROUP BY")[2] for asked in make_workload(184).queries if "GROUP BY" in asked.query.duck]

    assert any("::BIGINT" in text for text in keys)
    assert not any(re.fullmatch(r"\s*\(?\d+\)?\s*", key) for text in keys for key in text.split(","))


def test_workloads_differ_in_everything() -> None:
    made = [make_workload(seed) for seed in range(12)]

    assert len({len(one.topology.nodes) for one in made}) > 2
    assert {one.topology.kind for one in made} == {"cities", "transit-stub"}
    assert len({asked.query.shape for one in made for asked in one.queries}) > 10
    assert len({asked.format for one in made for asked in one.queries}) == 3
    assert all(one.spare for one in made)
    assert not any(one.data.late_rows for one in made)


@pytest.fixture(scope="module")
def at_its_end(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulation]:
    """Yields a run without faults whose queries read from and write to programs."""
    made = Simulation(0, (), tmp_path_factory.mktemp("seed"), CONNECTORS)
    made.go()
    yield made
    made.close()


def test_programs_feed_sources_and_take_the_rows_of_sinks(at_its_end: Simulation) -> None:
    run = at_its_end.run
    fed = [one for one in run.traffic if one.feeder is not None]

    assert [len(one.feeder.delivered) for one in fed if one.feeder is not None] == [len(one.rows) for one in fed] != []
    assert len([one for one in run.traffic if one.collector is not None and one.collector.text]) == 3
    assert {asked.name for asked in run.reference.queries}.isdisjoint(one.asked.name for one in run.traffic)


def test_rows_of_programs_that_are_missing_or_come_twice_are_found(at_its_end: Simulation) -> None:
    run = at_its_end.run
    one = next(one for one in run.traffic if one.feeder is not None and one.collector is not None)
    assert one.feeder is not None
    assert one.collector is not None
    taken, written = one.collector.ends[-1].taken, list(one.feeder._written)
    lines, name = bytes(taken).splitlines(keepends=True), one.asked.name

    taken[:] = b"".join(lines[1:])
    assert Tcp(run).end().startswith(f"{name} lacks 1 rows, such as ")
    taken[:] = b"".join([lines[0], *lines])
    assert Tcp(run).end().startswith(f"{name} has 1 rows too many")
    taken[:] = b"".join(lines)
    assert Tcp(run).end() == ""
    one.feeder._written[:] = written[len(written) // 2 :]
    assert "rows too many" in Tcp(run).end()
    run.harmed[name] = "n1 was killed"
    assert f"{name} has rows that nobody sent" in Tcp(run).end()
    run.harmed.clear()
    one.feeder._written[:] = written


def test_a_query_that_lost_rows_of_a_program_must_say_so(at_its_end: Simulation, monkeypatch: pytest.MonkeyPatch) -> None:
    run = at_its_end.run
    one = next(one for one in run.traffic if one.feeder is not None)
    assert one.feeder is not None
    monkeypatch.setattr(one.feeder, "lines_while_away", 1)
    monkeypatch.setitem(run.harmed, one.asked.name, "n1 was killed")
    for reason, problem in (("rows are lost", ""), ("", "came while the agent of its source was away, and does not say so")):
        monkeypatch.setattr(run, "record_of", lambda name, reason=reason: SimpleNamespace(id=run.ids[name], reason=reason))
        assert problem in Tcp(run).end()
        assert bool(Tcp(run).end()) == bool(problem)


def test_an_exception_fails_its_seed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: simulation.Simulation) -> None:
        raise KeyError("k7")

    monkeypatch.setattr(simulation.Simulation, "go", broken)
    outcomes = list(outcomes_of(partial(simulation.simulate, kinds=KINDS), seeds=2, first=0, jobs=1))

    assert [outcome.seed for outcome in outcomes] == [0, 1]
    assert all("KeyError: 'k7'" in outcome.problem for outcome in outcomes)


def test_a_failure_is_shown_with_its_trace_and_the_command_that_runs_it_again() -> None:
    wrong = Outcome(17, "k0 has other rows", ("   12.000 s  move       k0/1 a -> b",), rows=5)
    text = report(wrong, again(17, ("moves",)))
    result = summary([Outcome(16, "", (), rows=7), wrong], 16, ("moves",), 2.0)

    assert text.splitlines()[0] == "seed 17 failed: k0 has other rows"
    assert "sbon testbed simulate --first 17 --seeds 1 --faults moves" in text
    assert "12.000 s  move" in text
    assert (result["seeds"], result["failed"], result["rows"]) == (2, 1, 12)
    assert again(17, KINDS) == "sbon testbed simulate --first 17 --seeds 1"
    assert again(17, KINDS, CONNECTORS) == "sbon testbed simulate --first 17 --seeds 1 --connectors file,tcp"
    assert again(17, KINDS, dealt=True) == "sbon testbed simulate --first 17 --seeds 1 --dealt"


def test_kinds_of_faults_are_chosen_by_name() -> None:
    assert kinds_of("") == KINDS
    assert kinds_of("moves, loss") == ("moves", "loss")
    with pytest.raises(UsageError, match="earthquakes"):
        kinds_of("moves,earthquakes")
    with pytest.raises(UsageError, match="--connectors pigeons: expected some of file,tcp"):
        kinds_of("pigeons", CONNECTORS, "--connectors")


def test_a_stopped_machine_goes_on_where_it_was() -> None:
    world = settled_world(3, seed=4, settings=QUIET)
    called: list[float] = []
    host = world._hosts[1]
    assert host is not None
    began = world.now
    host.call_at(host.now() + 1.0, lambda: called.append(world.now))
    world.world.network.stop(1, 5.0)
    world.run(4.0)
    assert not called
    world.run(2.0)
    assert called == [pytest.approx(began + 5.0)]
    world.settle()
