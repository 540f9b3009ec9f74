"""`sbon testbed mace`, small: what is in its result."""

import json
from pathlib import Path

import pytest

from sbon.cli.__main__ import run


def test_placement_compares_searches_at_equal_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = tmp_path / "mace.json"

    assert run(["testbed", "mace", "--part", "placement", "--scale", "1", "--draws", "20", "--seconds", "0.1", "--json", str(where)]) in (
        0,
        None,
    )

    found = json.loads(where.read_text())["placement"]["1"]
    assert (found["nodes"], found["operators"], found["baseline"]["draws"]) == (20, 200, 20)
    for name in ("mace_hc", "ours", "random", "corr"):
        values = [value for *_, value in found[name]["curve"]]
        assert found[name]["worst_s"] >= found["spread_evenly_s"]
        assert found[name]["worst_s"] == pytest.approx(values[-1])
    assert found["mace_hc"]["worst_s"] < found["baseline"]["p5_s"]
    assert found["ours"]["worst_s"] < found["baseline"]["p5_s"]
    assert "200 operators on 20 nodes" in capsys.readouterr().out


def test_predictions_are_compared_with_virtual_time(tmp_path: Path) -> None:
    where = tmp_path / "mace.json"
    parts = [word for part in ("training", "series", "operators", "wide") for word in ("--part", part)]

    assert run(["testbed", "mace", *parts, "--events", "300", "--runs", "1", "--quiet", "--json", str(where)]) in (0, None)

    found = json.loads(where.read_text())
    assert list(found["training"]) == ["100", "300"]
    assert list(found["operators"]) == ["14", "28", "42", "56", "70"]
    assert found["training"]["300"]["measured_s"] == found["training"]["100"]["measured_s"] > 0
    assert found["series"]["intervals"] > 0
    assert found["wide"]["outside_bounds"] == 0
    for one in (*found["training"].values(), *found["wide"]["runs"]):
        assert one["error"] == pytest.approx(abs(one["predicted_s"] / one["measured_s"] - 1))
        assert one["mace_s"] <= one["predicted_s"] * 1.001 <= one["upper_s"]
