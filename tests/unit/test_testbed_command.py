"""`sbon testbed` as it is typed, wrongly too."""

from pathlib import Path

import pytest

from sbon.cli.__main__ import run
from testbed.telemetry.generator import generate


@pytest.mark.parametrize(("typed", "meant"), [("exactly_once", "exactly-once"), ("coordinate", "coordinates"), ("rum", "run")])
def test_a_wrong_spelling_names_what_may_have_been_meant(typed: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["testbed", typed]) == 2

    assert f"No such command '{typed}'. Did you mean '{meant}'" in capsys.readouterr().err


def test_a_made_up_log_that_is_interrupted_leaves_nothing(tmp_path: Path) -> None:
    seen: list[bool] = []

    def interrupt(told: str) -> None:
        seen.append((tmp_path / "telemetry").exists())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate(tmp_path, agents=2, hours=2, queries=1, probe_interval_s=60, seed=1, progress=interrupt)

    assert seen == [True]
    assert not list(tmp_path.iterdir())
