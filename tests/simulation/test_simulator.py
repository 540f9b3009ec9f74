"""Random queries under random faults: every seed succeeds; a failed seed is reported with the command that repeats it."""

import re
from functools import cache, partial

import pytest

from sbon.errors import UsageError
from sbon_testbed.seeds import outcomes_of
from sbon_testbed.simulator import simulation
from sbon_testbed.simulator.command import again, summary
from sbon_testbed.simulator.faults.kinds import KINDS, kinds_of
from sbon_testbed.simulator.report import report
from sbon_testbed.simulator.simulation import Outcome, simulate
from sbon_testbed.simulator.workload import make_workload
from tests.examples import seeds
from tests.worlds import QUIET, settled_world


@cache
def outcome_of(seed: int) -> Outcome:
    return simulate(seed)


@pytest.mark.parametrize("seed", seeds(range(3), range(3, 100)))
def test_a_seed_is_right_whatever_fails(seed: int) -> None:
    outcome = outcome_of(seed)

    assert not outcome.problem, report(outcome, again(seed, KINDS))


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


def test_kinds_of_faults_are_chosen_by_name() -> None:
    assert kinds_of("") == KINDS
    assert kinds_of("moves, loss") == ("moves", "loss")
    with pytest.raises(UsageError, match="earthquakes"):
        kinds_of("moves,earthquakes")


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
