"""Batches that wait are processed together: the share that is processed one by one, and the wait of a row for the last one of its batch."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbon.cost.figure import Edge
from sbon.cost.latency_case import Case
from sbon.cost.latency_prediction import predicted_latency
from sbon.cost.merged_batches import SLICE_ROWS, shares_of_batches, wait_for_later_rows_s
from sbon.cost.placed_query import PlacedQuery
from sbon.engine.execution import SLICE_ROWS_MIN
from sbon.types import FloatArray
from tests.cost.test_bursts import query_of
from tests.examples import examples

WIDTH_S = 0.25


def shares(
    rows: FloatArray, batches: FloatArray, batch_s: float, row_s: float, most: float = 64.0, can: float = 1.0, *, is_bound: bool = False
) -> FloatArray:
    """Returns the shares of one operator on a node with so many cores."""
    one, work = np.atleast_2d(rows), np.atleast_2d(batches) * batch_s
    capacity = np.full(one.shape[1], can * WIDTH_S)
    return shares_of_batches(one, np.atleast_2d(batches), work, one * row_s, capacity, WIDTH_S, np.array([most]), is_bound=is_bound)[0]


def test_slices_are_those_of_the_engine() -> None:
    assert SLICE_ROWS == SLICE_ROWS_MIN


def test_all_batches_count_while_a_node_keeps_up() -> None:
    assert shares(np.full(8, 50.0), np.full(8, 25.0), 4e-3, 3e-3).tolist() == [1.0] * 8


def test_work_of_small_batches_fills_a_node_and_no_more() -> None:
    """100 batches of a row take 1.3 s a second, one by one; their rows alone take 0.4 s."""
    found = shares(np.full(40, 25.0), np.full(40, 25.0), 9e-3, 4e-3)

    assert found[20:] == pytest.approx(np.full(20, 2 / 3), abs=0.02)
    assert 0.9 < np.mean(25 * (found * 9e-3 + 4e-3) / WIDTH_S) < 1.01


def test_far_behind_batches_are_full_and_drain_as_full_ones() -> None:
    """After two seconds with 2.6 times the capacity, nothing comes but a row now and then: what waits is still taken together."""
    rows = np.array([50.0] * 8 + [1.0] * 30)

    found = shares(rows, np.minimum(rows, 25.0), 1e-3, 12e-3)

    assert found[2:8] == pytest.approx(np.full(6, 2 / 64), rel=0.01)
    assert found[9] < 0.25
    assert found[-1] == 1.0


def test_batches_without_a_row_are_not_processed() -> None:
    assert shares(np.full(4, 5.0), np.full(4, 25.0), 1e-3, 1e-3).tolist() == [0.2] * 4


def test_a_node_without_capacity_merges_nothing() -> None:
    assert shares(np.full(4, 25.0), np.full(4, 25.0), 1e-3, 1e-3, can=0.0).tolist() == [1.0] * 4


def test_rows_wait_for_half_a_batch_only_where_more_than_a_batch_waits() -> None:
    found = wait_for_later_rows_s(np.full(8, 100.0), 0.5, np.array([0.0, 0.3, 0.5, 0.9, 4.0, 4.0, 4.0, 4.0, 4.0]), 40.0, 0.5)

    assert found.tolist() == pytest.approx([0.0, 0.0, 0.0, 0.1, 0.1, 0.1, 0.1, 0.1, 0.0])


def bursty(row_share: float) -> PlacedQuery:
    """Returns a query whose batches cost a part of what they cost, with two seconds at 1.5 cores; at usual rates batches have one row."""
    query = query_of([5.0] * 40 + [625.0] * 8 + [5.0] * 60)
    filters = {name for name, known in query.statistics.items() if known.ports[0].law.per_row_ns > 1e5}
    statistics = {}
    for name, known in query.statistics.items():
        (port, *_) = known.ports
        law = port.law
        if name in filters:
            fixed = (1 - row_share) * law.per_row_ns * 25  # of batches of 25 rows
            costs = (fixed, *law.coefficients[1:2], *(row_share * one for one in law.coefficients[2:]))
            law = msgspec.structs.replace(law, coefficients=costs)
        statistics[name] = msgspec.structs.replace(known, ports=(msgspec.structs.replace(port, law=law),) * len(known.ports))
    return msgspec.structs.replace(query, statistics=statistics)


def test_a_burst_is_less_late_if_batches_cost_more_than_rows() -> None:
    """Together, rows and batches of 25 rows take 1.5 cores in both. Full batches have 64 rows."""
    of_rows, of_batches = (predicted_latency(bursty(share)) for share in (1.0, 0.5))

    assert of_rows.worst_s is not None
    assert of_batches.worst_s is not None
    assert of_rows.worst_s.value == pytest.approx(2 * 0.5 + 0.04, rel=0.1)
    assert of_batches.worst_s.value < 0.5 * of_rows.worst_s.value


def test_the_upper_bound_counts_all_batches_where_work_comes_from_other_nodes() -> None:
    """It may come slowly, so that no batches wait."""
    query = bursty(0.5)

    most, expected = (np.sort(Case(query, edge, WIDTH_S, 512).work.sum(axis=0))[-6:].sum() for edge in (Edge.HIGH, Edge.EXPECTED))

    assert most > 1.3 * expected, "batches of 25 rows cost as much as their rows, and full ones have 64"


def test_the_upper_bound_takes_batches_together_where_all_work_begins() -> None:
    query = bursty(0.5)
    on_one_node = msgspec.structs.replace(query, node_of=dict.fromkeys(query.node_of, "b"))

    most, expected = (np.sort(Case(on_one_node, edge, WIDTH_S, 512).work.sum(axis=0))[-6:].sum() for edge in (Edge.HIGH, Edge.EXPECTED))

    assert expected < most < 1.3 * expected


@given(st.lists(st.floats(0.0, 60.0), min_size=1, max_size=12), st.floats(1e-3, 2e-2), st.floats(1e-4, 2e-2))
@examples(40)
def test_no_backlog_is_greater_than_that_of_the_bound(rows: list[float], batch_s: float, row_s: float) -> None:
    """The plain twin follows the backlog in steps of 0.1 ms."""
    all_rows = np.array(rows)
    batches = np.minimum(all_rows, 25.0)
    found = shares(all_rows, batches, batch_s, row_s, is_bound=True)
    bound_s = behind_s = 0.0
    steps = 2500
    for count, each, share in zip(rows, batches.tolist(), found.tolist(), strict=True):
        bound_s = max(0.0, bound_s + count * row_s + share * each * batch_s - WIDTH_S)
        for _ in range(steps):
            alone = max(1 / (1 + behind_s * each / WIDTH_S), min(1.0, max(each, count) / max(each, 1e-9) / 64))
            behind_s = max(0.0, behind_s + (count * row_s + alone * each * batch_s - WIDTH_S) / steps)
        assert behind_s <= bound_s + 1e-3


def test_rows_of_a_burst_wait_for_the_last_row_of_their_batch() -> None:
    """Half of 64 rows take 19 ms at a node that gets 2,500 rows a second: 13 ms of them, and the backlog that they are."""
    query = bursty(1.0)
    case = Case(query, Edge.EXPECTED, 0.05, 2560)

    with_wait = case.expected().likely_s
    case._kept = None
    without = case.expected().likely_s

    assert float((with_wait - without).max()) == pytest.approx(32 * 0.6e-3, rel=0.3)
    assert (with_wait >= without - 1e-9).all()
