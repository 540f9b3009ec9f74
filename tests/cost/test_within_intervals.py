"""Arrivals within an interval, estimated from the intervals around it."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbon.cost.load import OperatorCost, Polynomial, Source, deterministic_load
from sbon.cost.mace import predict
from sbon.cost.node_excess import Nodes
from sbon.cost.within_intervals import refined
from sbon.errors import ShapeError
from sbon.types import FloatArray
from tests.examples import examples

PARTS = 8


def in_parts(rows_until: Callable[[FloatArray], FloatArray], intervals: int) -> FloatArray:
    """Returns the rows of each part of each interval, (1, intervals x PARTS), of arrivals with a known sum up to each instant."""
    found: FloatArray = np.diff(rows_until(np.arange(intervals * PARTS + 1) / PARTS))[None]
    return found


def by_interval(rows: FloatArray) -> FloatArray:
    found: FloatArray = rows.reshape(1, -1, PARTS).sum(axis=2)
    return found


@pytest.mark.parametrize("end_s", [6.0, 6.125, 6.5, 6.875])
@pytest.mark.parametrize("low", [0.0, 2.0])
def test_a_rate_that_jumps_is_found_exactly(end_s: float, low: float) -> None:
    true = in_parts(lambda at_s: low * at_s + 100.0 * np.clip(at_s - 2.375, 0.0, end_s - 2.375), 10)

    assert refined(by_interval(true), PARTS) == pytest.approx(true, abs=1e-6)


def test_a_rate_that_grows_evenly_is_found_exactly_between_the_first_and_the_last_interval() -> None:
    true = in_parts(lambda at_s: 3.0 * at_s + 5.0 * at_s**2, 8)

    assert refined(by_interval(true), PARTS)[:, PARTS:-PARTS] == pytest.approx(true[:, PARTS:-PARTS])


def test_a_smooth_rate_gets_no_jumps() -> None:
    """A step in each interval of a wave would make the estimate worse than even rows."""
    true = in_parts(lambda at_s: 50.0 * at_s - 50.0 * 12 / (2 * np.pi) * np.cos(2 * np.pi * at_s / 12), 24)
    even = np.repeat(by_interval(true) / PARTS, PARTS, axis=1)

    assert np.abs(refined(by_interval(true), PARTS) - true).sum() < 0.9 * np.abs(even - true).sum()  # observed: 0.79


def test_a_high_interval_between_low_ones_stays_even() -> None:
    assert refined(np.array([[1.0, 1.0, 9.0, 1.0, 1.0]]), 3)[0, 6:9] == pytest.approx([3.0, 3.0, 3.0])


@given(
    rows=st.lists(st.integers(0, 1000) | st.floats(0, 1e6), min_size=1, max_size=12),
    parts=st.integers(1, 9),
)
@examples(200)
def test_the_parts_of_an_interval_add_up_to_its_rows_and_none_is_negative(rows: list[float], parts: int) -> None:
    found = refined(np.array([rows], dtype=float), parts)

    assert found.shape == (1, len(rows) * parts)
    assert (found >= 0).all()
    assert found.reshape(len(rows), parts).sum(axis=1) == pytest.approx(np.array(rows), rel=1e-9, abs=1e-6)


def test_the_backlog_at_the_end_of_a_high_period_is_expected_within_an_interval() -> None:
    """2 s of work a second for 3.5 s: 3.5 s behind when it ends, but 3 s at the end of that interval. Bounds do not change."""
    one = (OperatorCost((Source(0),), Polynomial((1.0,)), Polynomial((1.0,))),)
    rows = np.array([[0.0, 2.0, 2.0, 2.0, 1.0, 0.0, 0.0, 0.0, 0.0]])
    node, nodes, grain = np.zeros(1, dtype=np.int64), Nodes(np.ones(1), np.ones(1, dtype=np.int64)), np.zeros(1)
    work = deterministic_load(one, rows).work
    even = predict(one, work, node, nodes, 1.0, grain, even=False)

    found = predict(one, work, node, nodes, 1.0, grain, even=False, work_of_parts=deterministic_load(one, refined(rows, PARTS)).work)

    assert even.likely_s.max() == pytest.approx(3.0)
    assert found.likely_s.max() == pytest.approx(3.5)
    assert int(np.argmax(found.likely_s)) == 4
    assert found.parts_s == {0: pytest.approx(3.5)}
    assert (found.mace_s == even.mace_s).all()
    assert (found.upper_s == even.upper_s).all()


def test_capacity_that_varies_is_that_of_each_part() -> None:
    """Half a second of work comes each second; in the second second a quarter can be done. Work of its middle ends with it, 0.5 s later."""
    one = (OperatorCost((Source(0),), Polynomial((1.0,)), Polynomial((1.0,))),)
    nodes = Nodes(np.ones(1), np.ones(1, dtype=np.int64), np.array([[1.0, 0.25, 1.0, 1.0]]))

    found = predict(one, np.full((1, 4), 0.5), np.zeros(1, dtype=np.int64), nodes, 1.0, np.zeros(1), work_of_parts=np.full((1, 16), 0.125))

    assert found.likely_s == pytest.approx([0.0, 0.5, 0.25, 0.0])


@pytest.mark.parametrize(("rows", "parts"), [(np.ones(3), 2), (np.ones((1, 3)), 0)])
def test_wrong_shapes_are_refused(rows: FloatArray, parts: int) -> None:
    with pytest.raises(ShapeError):
        refined(rows, parts)


def test_parts_that_do_not_divide_intervals_are_refused() -> None:
    one = (OperatorCost((Source(0),), Polynomial((1.0,)), Polynomial((1.0,))),)

    with pytest.raises(ShapeError):
        predict(
            one,
            np.ones((1, 2)),
            np.zeros(1, dtype=np.int64),
            Nodes(np.ones(1), np.ones(1, dtype=np.int64)),
            1.0,
            np.zeros(1),
            work_of_parts=np.ones((1, 3)),
        )
