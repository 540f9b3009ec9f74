"""`sbon bench operators`: every workload runs, takes all its rows, and is measured."""

from typing import Any

import pytest

from sbon.operators.operator import Operator
from sbon.operators.registry import build
from sbon.query.params.ordered import DeduplicateParams, TopParams
from sbon_testbed.bench import closing
from sbon_testbed.bench.operators import SECOND_US, WORKLOADS, _batches, _run, measure, show


@pytest.fixture(scope="module")
def batches() -> Any:
    return _batches(65_536)


@pytest.mark.parametrize("name", list(WORKLOADS))
def test_every_workload_takes_its_rows_in_time(name: str, batches: Any) -> None:
    operator = build(WORKLOADS[name])
    time = "second" if isinstance(WORKLOADS[name], TopParams) else "time"
    ports = (0, 1) if "join" in name else (0,)
    _run(operator, batches[:2], 0, time, ports)
    _run(operator, batches[:2], 2 * SECOND_US, time, ports)
    assert operator.late_rows == 0
    if not operator.is_stateless:
        assert operator.state_rows > 0
        assert answers(operator) > 0 or "within" in name or isinstance(WORKLOADS[name], DeduplicateParams)  # these give their rows at once
        assert operator.state_rows == 0


def answers(operator: Operator) -> int:
    return sum(frame.height for frame in operator.advance(60 * SECOND_US))


def test_figures_are_by_workload_and_rows_of_a_batch(capsys: pytest.CaptureFixture[str]) -> None:
    result = measure([65_536], 0.0001, ["tumbling, no keys"], lambda _: None)
    assert result["rows_per_s_per_core"]["tumbling, no keys"]["65536"] > 0
    error = result["prediction_error"]["tumbling, no keys"]["65536"]
    assert result["prediction_error_p50"] == result["prediction_error_max"] == abs(error)
    assert -1 < error < 1  # compares the second round with the first; holds on any machine
    show(result)
    shown = capsys.readouterr().out
    assert "tumbling, no keys" in shown
    assert f"{100 * abs(error):.1f} % at worst" in shown


def test_a_window_of_many_keys_is_told_by_its_steps(capsys: pytest.CaptureFixture[str]) -> None:
    result = closing.measure(100_000, lambda _: None)
    assert set(result["closing"]) == set(closing.WORKLOADS)
    for one in result["closing"].values():
        assert one["rows"] >= 100_000
        assert one["steps"] > 2
        assert 0 < one["longest_ms"] < one["total_ms"]
    closing.show(result)
    assert "tumbling 2 s" in capsys.readouterr().out
