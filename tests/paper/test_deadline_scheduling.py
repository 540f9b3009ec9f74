"""Which rows to work on when not all can be in time: claims of latency-constrained analytics, section 4, and of cells."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbon.deadline_scheduling.batches import BatchEdf, InOrder
from sbon.deadline_scheduling.bound import most_in_time
from sbon.deadline_scheduling.cells import Cells
from sbon.deadline_scheduling.dover import Dover
from sbon.deadline_scheduling.interface import Costs, Policy
from sbon.deadline_scheduling.on_miss import DeadlineQueue, OnMiss
from sbon.deadline_scheduling.tree import DeadlineTree, Tree
from sbon.deadline_scheduling.tuples import Tuples, Waiting, is_schedulable, largest_schedulable_subset
from sbon.errors import ShapeError
from sbon_testbed.deadlines.overload import Trace, compare, policies, serve, trace

DISK = (0.00004, 0.0006)
"""Costs of a row in memory and on disk, twenty times the paper's."""


def overload(load: float = 2.0, seconds: float = 2.0, seed: int = 3, burst: float = 0.5) -> Trace:
    rate = load / (0.8 * DISK[0] + 0.2 * DISK[1])
    rng = np.random.default_rng(seed)
    return trace(rng, seconds=seconds, rows_per_s=rate, shares=(0.8, 0.2), costs_s=DISK, bound_s=0.5, before_s=0.2, burst=burst)


def everything(policy: Policy, now_s: float = 0.0) -> list[int]:
    found: list[int] = []
    while (rows := policy.next(now_s)).size:
        found += rows.tolist()
    return found


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 20), st.integers(1, 8)), max_size=12), st.integers(0, 4))
def test_algorithm_1_is_as_good_as_all_subsets(drawn, now):
    """Proposition 4.1."""
    rows = [Waiting(float(deadline), row, float(cost)) for row, (deadline, cost) in enumerate(drawn)]

    kept = largest_schedulable_subset(rows, now)

    assert is_schedulable(kept, now)
    if len(kept) < len(rows):
        assert not any(is_schedulable(chosen, now) for chosen in itertools.combinations(rows, len(kept) + 1))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 9), st.booleans()), max_size=60), st.integers(0, 5))
def test_the_tree_is_the_list(drawn, now):
    """Algorithm 2 is algorithm 1, also if rows come and go in between."""
    tree, rows = DeadlineTree(), list[Waiting]()
    for row, (deadline, cost, pops) in enumerate(drawn):
        tree.insert(float(deadline), row, float(cost))
        rows.append(Waiting(float(deadline), row, float(cost)))
        if pops:
            popped = tree.pop_earliest()
            earliest = min(one.deadline_s for one in rows)
            assert earliest == next(one.deadline_s for one in rows if one.row == popped)
            rows = [one for one in rows if one.row != popped]
        assert tree.fits(now) == is_schedulable(rows, now)
        while not tree.fits(now):
            lost = tree.remove_dearest(tree.first_that_does_not_fit(now))
            rows = [one for one in rows if one.row != lost]
        assert tree.size == len(rows)
        assert len(largest_schedulable_subset(rows, now)) == len(rows)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 12), st.integers(0, 2)), min_size=1, max_size=40), st.integers(0, 3))
def test_cells_keep_as_many_as_tuples_where_costs_and_deadlines_agree(drawn, now):
    costs = Costs([1.0, 2.0, 5.0])
    deadline_s = np.array([float(deadline) for deadline, _ in drawn])
    kinds = np.array([kind for _, kind in drawn])
    rows = np.arange(len(drawn))
    cells, tuples, tree = Cells(costs, 1.0, expects_more=False), Tuples(costs), Tree(costs)
    for policy in (cells, tuples, tree):
        policy.release(rows, deadline_s, kinds, now)

    assert cells.take_lost().size == tuples.take_lost().size == tree.take_lost().size
    kept = everything(tuples)
    assert cells.waiting == len(kept)
    # Every row that is kept is in time, although cells do cheap rows first.
    at_s, seen = float(now), 0
    while (chunk := cells.next(at_s)).size:
        for row in chunk.tolist():
            at_s += float(costs.of_class[kinds[row]])
            assert at_s <= deadline_s[row]
            seen += 1
    assert seen == len(kept)


def test_each_row_is_worked_on_once_or_lost():
    given_trace = overload(seconds=1.0)
    rows = np.arange(len(given_trace.entered_s))
    for make in policies(given_trace, fairness=0.5).values():
        policy, seen, at_s = make(), list[int](), 0.0
        for start in range(0, len(rows), 500):
            part = slice(start, start + 500)
            policy.release(rows[part], given_trace.deadline_s[part], given_trace.cost_class[part], float(given_trace.arrived_s[start]))
            seen += policy.next(at_s).tolist()
            at_s = float(given_trace.arrived_s[start])
        seen += everything(policy, at_s)
        lost = policy.take_lost().tolist()
        assert sorted(seen + lost) == rows.tolist()


def test_nothing_is_lost_while_all_can_be_in_time():
    light = overload(load=0.7, burst=0.0)

    assert compare(light, ("batch_edf", "dover", "tree", "cells"), 1) == pytest.approx(
        {"batch_edf": 1.0, "dover": 1.0, "tree": 1.0, "cells": 1.0, "bound": 1.0}, abs=0.002
    )


def test_costs_count_in_overload():
    """Figure 7 (d), and what cells add: 0.02, 0.06, 0.64, 0.68, 0.72 of a bound of 0.72 when written."""
    found = compare(overload(), ("none", "batch_edf", "dover", "tree", "cells"), 1)

    assert found["none"] < 0.2
    assert found["batch_edf"] < 0.5
    assert found["dover"] <= found["bound"]
    assert found["tree"] > found["batch_edf"]
    assert found["cells"] >= found["tree"] - 0.002
    assert 0.97 * found["bound"] < found["cells"] <= found["bound"]


def test_costs_may_scatter():
    given_trace = trace(
        np.random.default_rng(4),
        seconds=2.0,
        rows_per_s=2.0 / (0.8 * DISK[0] + 0.2 * DISK[1]),
        shares=(0.8, 0.2),
        costs_s=DISK,
        bound_s=0.5,
        before_s=0.2,
        cost_scatter=1.0,
    )

    found = compare(given_trace, ("cells",), 1)

    assert found["cells"] > 0.95 * found["bound"]


def test_fairness_bounds_what_a_class_loses():
    given_trace = overload(load=6.0, burst=0.0)
    shares = {}
    for fairness in (0.0, 0.8):
        served = serve(given_trace, Cells(Costs(DISK), 0.02, fairness=fairness), np.random.default_rng(1))
        shares[fairness] = [done / rows for done, rows in zip(served.in_time_by_class, served.rows_by_class, strict=True)]

    alike = 1 / given_trace.load
    assert shares[0.0][1] < 0.25 * alike
    assert shares[0.8][1] > 0.7 * alike
    assert shares[0.8][0] > 0.8 * alike


def test_d_over_is_deadlines_alone_until_rows_do_not_fit():
    dover = Dover(Costs([1.0, 4.0]))
    dover.release(np.array([0, 1, 2]), np.array([9.0, 3.0, 20.0]), np.array([0, 0, 1]), 0.0)

    assert dover.factor == 3.0
    assert dover.next(0.0).tolist() == [1]
    assert dover.next(1.0).tolist() == [0]
    assert dover.next(2.0).tolist() == [2]
    assert dover.next(6.0).size == 0


def test_d_over_does_not_give_up_a_dear_row_for_cheap_ones():
    """Why cost counts: the dear row that came first keeps the processor, and two cheap ones are lost."""
    kinds, deadline_s, rows = np.array([1, 0, 0]), np.array([4.0, 4.0, 4.0]), np.array([0, 1, 2])
    dover, tree = Dover(Costs([1.0, 4.0])), Tree(Costs([1.0, 4.0]))
    for policy in (dover, tree):
        policy.release(rows, deadline_s, kinds, 0.0)

    assert dover.next(0.0).tolist() == [0]
    assert dover.next(4.0).size == 0
    assert sorted(dover.take_lost().tolist()) == [1, 2]
    assert sorted(everything(tree)) == [1, 2]


def test_the_bound_is_that_of_small_cases():
    both = np.array([0.0, 0.0])

    assert most_in_time(both, np.array([1.0, 1.0]), np.array([1.0, 1.0]), 1.0) == pytest.approx(1)
    assert most_in_time(both, np.array([1.0, 2.0]), np.array([1.0, 1.0]), 1.0) == pytest.approx(2)
    assert most_in_time(both, np.array([1.0, 1.0]), np.array([0.5, 2.0]), 1.0) == pytest.approx(1.25)
    with pytest.raises(ShapeError):
        most_in_time(both, both, np.zeros(3), 1.0)


# ------------------------------------------------------------------------------------------------------------------ on_miss


def run_queue(on_miss: OnMiss, given_trace: Trace) -> tuple[list[int], list[int], DeadlineQueue]:
    """Rows worked on, in order, and rows shed."""
    queue = DeadlineQueue(on_miss, Costs(given_trace.costs_s), given_trace.bound_s)
    seen: list[int] = []
    cost_s = np.array(given_trace.costs_s)[given_trace.cost_class]
    at_s, start, count = 0.0, 0, len(cost_s)
    while True:
        while start < count and given_trace.arrived_s[start] <= at_s:
            end = int(np.searchsorted(given_trace.arrived_s, given_trace.arrived_s[start], side="right"))
            part = slice(start, end)
            queue.release(np.arange(start, end), given_trace.deadline_s[part], given_trace.cost_class[part], at_s)
            start = end
        rows = queue.next(at_s)
        if rows.size:
            seen += rows.tolist()
            at_s += float(cost_s[rows].sum())
        elif start < count:
            at_s = float(given_trace.arrived_s[start])
        else:
            return seen, queue.take_lost().tolist(), queue


def test_without_on_miss_nothing_is_ever_left_out():
    given_trace = overload(load=3.0, seconds=1.0)
    seen, lost, _ = run_queue(OnMiss.FINISH, given_trace)

    assert seen == list(range(len(given_trace.entered_s)))  # one bound: the order in which rows came
    assert lost == []


def test_deferred_rows_are_worked_on_in_the_end():
    given_trace = overload(load=3.0, seconds=1.0)
    seen, lost, queue = run_queue(OnMiss.DEFER, given_trace)

    assert sorted(seen) == list(range(len(given_trace.entered_s)))
    assert lost == []
    assert queue.late_by_class.sum() > 0
    assert queue.deferred == 0


def test_shed_rows_are_counted():
    given_trace = overload(load=3.0, seconds=1.0)
    seen, lost, queue = run_queue(OnMiss.SHED, given_trace)

    assert sorted(seen + lost) == list(range(len(given_trace.entered_s)))
    assert queue.late_by_class.tolist() == np.bincount(given_trace.cost_class[lost], minlength=2).tolist()
    assert len(lost) > 0


def test_what_makes_no_sense_is_refused():
    for wrong in ([], [0.0], [float("nan")]):
        with pytest.raises(ShapeError):
            Costs(wrong)
    for unit_s, fairness in ((0.0, 0.0), (1.0, 2.0)):
        with pytest.raises(ShapeError):
            Cells(Costs([1.0]), unit_s, fairness=fairness)
    assert InOrder().next(0.0).size == BatchEdf().next(0.0).size == 0


def test_measured_costs_move_what_is_known():
    costs = Costs([1.0, 10.0])
    costs.told(1, 40.0, 2, memory_rows=4)

    assert costs.of_class.tolist() == [1.0, 15.0]


def test_a_batch_that_came_too_late_is_left_out():
    """Section 4.1: work on what is late already takes time from what is not."""
    batches = BatchEdf()
    batches.release(np.array([0, 1]), np.array([1.0, 2.0]), np.zeros(2, dtype=np.int64), 2.5)
    batches.release(np.array([2]), np.array([4.0]), np.zeros(1, dtype=np.int64), 2.5)

    assert batches.next(2.5).tolist() == [2]
    assert batches.take_lost().tolist() == [0, 1]
