"""Searches and placements for latency: moves compared with a full evaluation, exhaustive search, pins, cores, budgets."""

import itertools
from typing import Any

import numpy as np
import pytest

from sbon.cost.node_excess import Nodes, excess_s
from sbon.errors import ShapeError
from sbon.search.correlation import place_by_correlation
from sbon.search.interface import Budget
from sbon.search.latency import LatencyPlacement
from sbon.search.strategies import baseline, climb_from_arranged, climb_from_random, random_search

WIDTH_S = 1.0


def bursts(rng: np.random.Generator, operators: int, intervals: int = 8) -> Any:
    return rng.choice([0.05, 1.0], (operators, intervals), p=[0.7, 0.3]) * rng.uniform(0.2, 1.0, (operators, 1))


def worst_s(work: Any, node_of: Any, nodes: Nodes, already: Any = 0.0) -> float:
    """Returns Mace's worst case, evaluated from scratch."""
    loads = np.vstack((work, np.broadcast_to(already, (len(nodes.cores), work.shape[1]))))
    return float(excess_s(loads, np.concatenate((node_of, np.arange(len(nodes.cores)))), nodes, WIDTH_S).max())


@pytest.mark.parametrize("cores", [1, 3])
@pytest.mark.parametrize("seed", range(5))
def test_a_move_is_valued_as_the_placement_after_it_is_anew(seed: int, cores: int) -> None:
    rng = np.random.default_rng(seed)
    work, count = bursts(rng, 20), 5
    nodes = Nodes(
        rng.uniform(0.5, 2.0, count), rng.integers(1, cores + 1, count), rng.uniform(0.5, 1.0, (count, 8)) if cores == 1 else None
    )
    placement = LatencyPlacement(work, nodes, WIDTH_S, rng)
    scale = 1.0 if nodes.left is None else None

    for _ in range(10):
        moves = np.column_stack((rng.integers(0, 20, 6), rng.integers(0, count, 6)))
        after = placement.values_after(moves)
        anew = []
        for operator, node in moves.tolist():
            node_of = placement.node_of
            node_of[operator] = node
            if scale is None:  # a peak is divided by the nominal capacity here
                full = LatencyPlacement(work, nodes, WIDTH_S, rng, node_of)
                anew.append(full.value())
            else:
                anew.append(worst_s(work, node_of, nodes))
        assert after == pytest.approx(anew)
        placement.apply(moves[0])
        assert placement.value() == pytest.approx(anew[0])


def test_groups_of_moves_leave_the_node_that_is_furthest_behind_and_reach_all_others() -> None:
    rng = np.random.default_rng(3)
    placement = LatencyPlacement(bursts(rng, 60), Nodes(np.ones(30), np.ones(30, dtype=int)), WIDTH_S, rng)
    groups = list(placement.neighbourhoods())

    sources = {int(placement.node_of[operator]) for group in groups for operator in group[:, 0]}

    assert len(sources) == 1
    worst = sources.pop()
    on_it = set(np.flatnonzero(placement.node_of == worst).tolist())
    assert {tuple(move) for group in groups for move in group.tolist()} == {(o, n) for o in on_it for n in range(30) if n != worst}


@pytest.mark.parametrize("search", [climb_from_random, climb_from_arranged])
@pytest.mark.parametrize("seed", range(3))
def test_climbing_finds_nearly_the_best_of_all_placements(search: Any, seed: int) -> None:
    """6 operators on 3 nodes: all 729 placements are tried. Climbing from bottlenecks alone may miss the best one."""
    rng = np.random.default_rng(seed)
    work, nodes = bursts(rng, 6), Nodes(np.array([1.0, 1.0, 2.0]), np.ones(3, dtype=int))
    best = min(worst_s(work, np.array(node_of), nodes) for node_of in itertools.product(range(3), repeat=6))

    placement = LatencyPlacement(work, nodes, WIDTH_S, rng)
    found = search(placement, Budget(evaluations=2000))

    assert best - 1e-9 <= found.value <= 1.05 * best + 1e-9
    assert placement.value() == pytest.approx(found.value) == pytest.approx(worst_s(work, found.best, nodes))


def test_climbing_is_better_than_random_and_random_than_one_draw() -> None:
    rng = np.random.default_rng(5)
    work, nodes = bursts(rng, 100, 20), Nodes(np.full(12, 3.0), np.ones(12, dtype=int))

    found = [
        search(LatencyPlacement(work, nodes, WIDTH_S, np.random.default_rng(1)), Budget(evaluations=600)).value
        for search in (climb_from_random, random_search, baseline)
    ]

    assert found[0] < 0.8 * found[1] < 0.8 * found[2]


@pytest.mark.parametrize("search", [climb_from_random, climb_from_arranged, random_search, baseline])
def test_pinned_operators_stay_and_load_that_is_there_counts(search: Any) -> None:
    rng = np.random.default_rng(6)
    work, nodes = bursts(rng, 10), Nodes(np.ones(3), np.ones(3, dtype=int))
    start, pinned, already = np.zeros(10, dtype=int), np.arange(10) < 4, rng.uniform(0.0, 0.5, (3, 8))
    placement = LatencyPlacement(work, nodes, WIDTH_S, rng, start, pinned=pinned, already=already)

    found = search(placement, Budget(evaluations=200))

    assert (placement.node_of[:4] == 0).all()
    assert (placement.node_of[4:] != 0).any()
    assert found.value == pytest.approx(worst_s(work, placement.node_of, nodes, already))


def test_draws_follow_capacities() -> None:
    placement = LatencyPlacement(np.ones((1000, 2)), Nodes(np.array([1.0, 3.0]), np.ones(2, dtype=int)), 1.0, np.random.default_rng(1))

    assert np.count_nonzero(placement.node_of == 1) == pytest.approx(750, abs=50)


def test_load_correlation_puts_bursts_that_alternate_together() -> None:
    """Six operators burst in even intervals and six in odd ones. Each of three nodes gets two of each kind, so loads are equal."""
    work = np.array([[2.0, 0.0] * 5] * 6 + [[0.0, 2.0] * 5] * 6) + np.linspace(0, 0.01, 10)

    node_of, correlation = place_by_correlation(work, np.ones(3))

    assert [np.bincount(node_of[part], minlength=3).tolist() for part in (slice(6), slice(6, 12))] == [[2, 2, 2], [2, 2, 2]]
    assert correlation == pytest.approx(1.0)


def test_load_correlation_divides_pairs_anew_until_it_is_enough() -> None:
    rng = np.random.default_rng(7)
    work, seen = bursts(rng, 60, 30), []

    _, correlation = place_by_correlation(work, np.ones(6), rounds_max=50, found=lambda node_of: seen.append(node_of.copy()) or True)
    first, _ = place_by_correlation(work, np.ones(6), enough=-1.0)

    def average(node_of: Any) -> float:
        loads = np.array([work[node_of == node].sum(axis=0) for node in range(6)])
        return float((np.corrcoef(loads).sum() - 6) / 30)

    assert (seen[0] == first).all()
    assert [average(one) for one in seen] == sorted(average(one) for one in seen)
    assert correlation == pytest.approx(average(seen[-1]))
    assert len(seen) > 1


def test_a_budget_ends_by_evaluations_time_or_stale_rounds() -> None:
    times = iter(range(100))
    by_time = Budget(seconds=5, clock=lambda: float(next(times)))
    stale = Budget(stale=2)

    stale.end_round(is_better=False)
    stale.end_round(is_better=True)
    stale.end_round(is_better=False)

    assert [by_time.is_spent for _ in range(5)] == [False] * 4 + [True]
    assert not stale.is_spent
    stale.end_round(is_better=False)
    assert stale.is_spent
    with pytest.raises(ShapeError, match="without any limit"):
        Budget()
    with pytest.raises(ShapeError, match="without a clock"):
        Budget(seconds=1.0)
    with pytest.raises(ShapeError, match="pinned"):
        LatencyPlacement(np.ones((1, 1)), Nodes(np.ones(1), np.ones(1, dtype=int)), 1.0, np.random.default_rng(1), pinned=np.array([True]))
