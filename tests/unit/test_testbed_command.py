"""`sbon testbed` as it is typed, wrongly too."""

import pytest

from sbon.cli.__main__ import run


@pytest.mark.parametrize(("typed", "meant"), [("exactly_once", "exactly-once"), ("coordinate", "coordinates"), ("rum", "run")])
def test_a_wrong_spelling_names_what_may_have_been_meant(typed: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["testbed", typed]) == 2

    assert f"No such command '{typed}'. Did you mean '{meant}'" in capsys.readouterr().err
