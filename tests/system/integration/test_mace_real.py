"""A short run of `sbon testbed mace --real` with a real agent."""

import json
from pathlib import Path

import pytest

from sbon.cli.__main__ import run


def test_a_real_agent_is_asked_how_late_it_will_be_and_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing here depends on how fast the machine is; the answers of the agent are checked row by row in the run."""
    where = tmp_path / "mace.json"
    words = ["--part", "training", "--part", "series", "--real", "--events", "200", "--seed", "3", "--json", str(where)]

    assert run(["testbed", "mace", *words]) in (0, None)

    found = json.loads(where.read_text())
    (one,) = found["training"].values()
    assert one["real"] is True
    assert one["measured_s"] > 0
    assert one["predicted_s"] > 0
    assert one["error"] == pytest.approx(abs(one["predicted_s"] / one["measured_s"] - 1))
    assert one["mace_s"] <= one["upper_s"]
    assert 0 < one["core"]["used"] <= 1.1
    assert found["series"]["intervals"] > 0
    assert "used" in capsys.readouterr().out
