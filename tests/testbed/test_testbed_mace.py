"""The result of a small run of `sbon testbed mace`."""

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
        if name != "corr":
            assert values == sorted(values, reverse=True)
    assert found["ours"]["worst_s"] < found["baseline"]["p5_s"]  # reached in the first pass, so at any speed of the machine
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


def test_bursts_known_by_quarters_of_a_second_are_predicted_within_them(tmp_path: Path) -> None:
    where = tmp_path / "mace.json"

    assert run(["testbed", "mace", "--part", "bursts", "--runs", "1", "--quiet", "--json", str(where)]) in (0, None)

    found = json.loads(where.read_text())["bursts"]
    assert list(found) == ["on_off", "levels", "waves"]
    for kind in found.values():
        (one,) = kind["runs"]
        assert one["error"] == pytest.approx(abs(one["predicted_s"] / one["measured_s"] - 1)) == kind["error"]
        assert one["mace_s"] <= one["predicted_s"] <= one["upper_s"]
    assert found["on_off"]["error"] < 0.03


def test_chunks_are_predicted_from_statistics_of_the_first(tmp_path: Path) -> None:
    where = tmp_path / "mace.json"

    assert run(["testbed", "mace", "--part", "chunks", "--events", "2000", "--quiet", "--json", str(where)]) in (0, None)

    found = json.loads(where.read_text())["chunks"]
    assert list(found) == ["1", "2", "3"]
    assert len({one["measured_s"] for one in found.values()}) == 3
    for one in found.values():
        assert one["error"] == pytest.approx(abs(one["predicted_s"] / one["measured_s"] - 1))
        assert one["error"] < 0.25


def test_queries_are_placed_within_bounds_of_their_latency_or_refused_if_they_cannot_be(tmp_path: Path) -> None:
    where = tmp_path / "mace.json"

    assert run(["testbed", "mace", "--part", "bounds", "--bounded", "3", "--share", "0.9", "--quiet", "--json", str(where)]) in (0, None)

    found = json.loads(where.read_text())["bounds"]
    assert (found["queries"], found["nodes"]) == (3, 60)
    assert found["admitted"] + found["refused"] + found["without_end"] == 3
    assert found["admitted"] >= 1
    assert 0 < found["moved"] <= found["admitted"]
    assert found["paid_p50"] < 0.2
    assert found["refused_wrongly"] == 0
