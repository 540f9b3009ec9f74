"""The command `sbon testbed`, with right and wrong arguments."""

from pathlib import Path

import pytest

from sbon.cli.__main__ import run
from sbon_testbed.telemetry.generator import generate


@pytest.mark.parametrize(("typed", "meant"), [("exactly_once", "exactly-once"), ("coordinate", "coordinates"), ("rum", "run")])
def test_a_wrong_spelling_names_what_may_have_been_meant(typed: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["testbed", typed]) == 2

    assert f"No such command '{typed}'. Did you mean '{meant}'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command", ["coordinates --matrix any.txt", "exactly-once", "simulate", "mace", "membership", "placement", "throughput"]
)
@pytest.mark.parametrize(("where", "told"), [("no/one.json", "there is no folder"), (".", "it is a folder")])
def test_a_result_that_cannot_be_written_is_refused_before_minutes_of_work(
    command: str, where: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["testbed", *command.split(), "--json", str(tmp_path / where)]) == 1

    said = capsys.readouterr()
    assert told in said.err
    assert said.err.startswith("sbon: cannot write --json ")
    assert said.err.count("\n") == 1
    assert said.out == ""


@pytest.mark.parametrize("command", ["exactly-once", "simulate"])
@pytest.mark.parametrize(
    ("typed", "told"),
    [("--seeds 0", "--seeds 0, expected at least 1"), ("--first -1", "--first -1, expected"), ("--jobs -1", "--jobs -1, expected")],
)
def test_seeds_that_cannot_be_are_refused(command: str, typed: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["testbed", command, *typed.split()]) == 2

    assert told in capsys.readouterr().err


def test_a_made_up_log_that_is_interrupted_leaves_nothing(tmp_path: Path) -> None:
    seen: list[bool] = []

    def interrupt(told: str) -> None:
        seen.append((tmp_path / "telemetry").exists())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate(tmp_path, agents=2, hours=2, queries=1, probe_interval_s=60, seed=1, progress=interrupt)

    assert seen == [True]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("nodes = ", "not TOML"),
        ('nodes = 2\n[topology]\nkind = "matrx"', "did you mean matrix? there is cities, matrix, transit-stub"),
        ('nodes = 2\n[topology]\nkind = "matrix"\nfile = "none.npz"', "none.npz: cannot be read"),
        ('nodes = 2\n[topology]\nkind = "cities"\ncities = ["atlantis"]', "atlantis"),
        ("nodes = 2\n[agent.engine]\nworkrs = 1", "settings of london: engine.workrs is not a setting; did you mean engine.workers?"),
        ('nodes = 2\n[agent]\nname = "x"', 'agent.name = "x" cannot be set; the topology names the agents'),
        ('nodes = 2\n[[event]]\nat_s = 1\nkind = "kill"\nagents = "moon"', 'event 1: no node "moon"'),
        (
            'nodes = 2\n[[statement]]\nat_s = 1\nsql = "SELECT nod FROM sys.load"',
            ".toml:6:15: statement 1: there is no column nod; did you mean node?",
        ),
    ],
)
def test_a_mistake_in_a_scenario_is_wrong_usage(written: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is started. `written` begins at line 3 of the file, behind the name and the duration."""
    scenario = tmp_path / "wrong.toml"
    scenario.write_text(f'name = "wrong"\nduration_s = 5\n{written}\n')

    assert run(["testbed", "run", str(scenario), "--out", str(tmp_path / "out")]) == 2

    out, err = capsys.readouterr()
    assert told in err
    assert (out, err.count("\n")) == ("", 1)
    assert not (tmp_path / "out").exists()
