"""The result of a small run of `sbon testbed deadlines`."""

import json
from pathlib import Path

import pytest

from sbon.cli.__main__ import run
from sbon_testbed.deadlines import plans, scheduling
from sbon_testbed.deadlines.jobs import WORKLOADS, in_memory, zipf_shares


def test_policies_are_compared_with_what_none_can_exceed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    where = tmp_path / "deadlines.json"
    parts = [word for part in ("memory", "overload", "disk") for word in ("--part", part)]
    monkeypatch.setattr(scheduling, "SCALE", 200.0)

    assert run(["testbed", "deadlines", *parts, "--seconds", "0.4", "--quiet", "--json", str(where)]) in (0, None)

    found = json.loads(where.read_text())
    assert list(found["memory"]) == ["200", "150", "100", "50", "25"]
    assert list(found["overload"]) == ["1.1", "1.5", "2"]
    assert list(found["disk"]) == ["10", "30", "50", "100"]
    for one in [*found["memory"].values(), *found["overload"].values(), *found["disk"].values()]:
        assert one["of_bound"] > 0.9
        for policy in ("none", "batch_edf", "dover", "tree", "cells"):
            assert one[policy] <= one["bound"] + 1e-9
    assert found["disk"]["100"]["cells"] > 5 * found["disk"]["100"]["batch_edf"]
    assert "us on disk" in capsys.readouterr().out


def test_all_rows_of_overloaded_agents_are_counted(tmp_path: Path) -> None:
    where = tmp_path / "deadlines.json"

    assert run(["testbed", "deadlines", "--part", "agents", "--seconds", "0.5", "--quiet", "--json", str(where)]) in (0, None)

    found = json.loads(where.read_text())
    assert list(found["agents"]) == ["1.1", "1.5", "2"]
    for one in found["agents"].values():
        assert one["finish_rows"] == one["defer_rows"] == one["shed_rows"] + one["shed_left_out"] == one["rows"]
        assert 0.95 < one["of_bound"] <= 1.0


@pytest.mark.soak
def test_the_engine_has_nearly_as_many_rows_in_time_as_can_be(tmp_path: Path) -> None:
    where = tmp_path / "deadlines.json"

    assert run(["testbed", "deadlines", "--part", "agents", "--seconds", "4", "--quiet", "--json", str(where)]) in (0, None)

    found = json.loads(where.read_text())["agents"]
    assert list(found) == ["1.1", "1.5", "2"]
    for one in found.values():
        assert one["finish_rows"] == one["defer_rows"] == one["shed_rows"] + one["shed_left_out"] == one["rows"]
        assert 0.95 < one["of_bound"] <= 1.0
    assert found["1.1"]["shed_left_out"] == found["1.1"]["defer_left_out"] == 0
    assert found["2"]["shed"] > found["2"]["finish"] + 0.2
    assert found["2"]["defer"] > found["2"]["finish"] + 0.2


def test_predictions_are_compared_with_virtual_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = tmp_path / "deadlines.json"
    assert sum(len(plans._varied(name)) for name in WORKLOADS) == 34
    monkeypatch.setattr(plans, "_varied", lambda name: [{"poll_s": 0.05, "exchange_s": 0.05}])

    words = ["testbed", "deadlines", "--part", "model", "--workload", "words", "--seconds", "0.5", "--quiet", "--json", str(where)]
    assert run(words) in (0, None)

    found = json.loads(where.read_text())
    (one,) = found["model"].values()
    assert abs(one["error"]["mean"]) < 0.1
    assert one["predicted"]["p99_s"] < one["predicted"]["p99_unseen_s"]
    assert len(one["phases"]["measured_s"]) == len(one["phases"]["predicted_s"]) == 12
    assert found["model_summary"]["mean_within_10_percent"] == 1


def test_a_plan_of_a_small_overlay_holds_in_virtual_time(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = WORKLOADS["words"]
    best, _ = plans._planned(workload, None, nodes=1)

    assert plans._holds(workload, plans._setting_of(workload, best), best.rate_max, None, 0.5, [1])
    assert not plans._holds(workload, plans._setting_of(workload, best), 1.2 * best.rate_max, None, 2.0, [1])


def test_hot_keys_stay_in_memory() -> None:
    assert in_memory(1.0, 1000, 1.0) == 1.0
    assert 0.6 < in_memory(1.0, 1000, 0.1) < 0.75
    assert sum(zipf_shares(0.75, 1_000_000)) < 0.5
