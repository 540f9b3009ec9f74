"""The nodes nearest to a point of the cost space."""

import numpy as np
import pytest

from sbon.cost_space.coordinate import Coordinate, cost_distance_ms
from sbon.cost_space.nearest import BRUTE_FORCE_MAX, NearestIndex


def random_table(size: int, seed: int) -> dict[str, Coordinate]:
    rng = np.random.default_rng(seed)
    return {
        f"n{i:04d}": Coordinate(tuple(rng.normal(0, 80, 3).tolist()), float(rng.exponential(15)), 0.1, float(rng.choice([0.0, 40.0, 90.0])))
        for i in range(size)
    }


def plainly_nearest(table: dict[str, Coordinate], point: tuple[float, float, float], k: int) -> list[tuple[str, float]]:
    return sorted(((name, cost_distance_ms(point, c)) for name, c in table.items()), key=lambda pair: (pair[1], pair[0]))[:k]


@pytest.mark.parametrize("size", [1, 7, 200, BRUTE_FORCE_MAX + 300])
@pytest.mark.parametrize("k", [1, 5, 40])
def test_scan_and_tree_find_what_a_plain_sort_finds(size: int, k: int):
    table = random_table(size, seed=size)
    index = NearestIndex(table)

    for point in [(0.0, 0.0, 0.0), (60.0, -20.0, 5.0), (5000.0, 0.0, 0.0)]:
        assert index.nearest(point, k) == plainly_nearest(table, point, k)


def test_a_loaded_node_and_one_behind_a_slow_access_link_are_passed_over():
    table = {
        "loaded": Coordinate((0.0, 0.0, 0.0), 0.0, 0.1, 100.0),
        "far": Coordinate((40.0, 0.0, 0.0), 0.0, 0.1),
        "high": Coordinate((1.0, 0.0, 0.0), 60.0, 0.1),
    }

    assert [name for name, _ in NearestIndex(table).nearest((0.0, 0.0, 0.0), 3)] == ["far", "high", "loaded"]


def test_equal_distances_come_in_order_of_name():
    table = {name: Coordinate((3.0, 4.0, 0.0), 0.0, 0.1) for name in ("c", "a", "b")}

    assert NearestIndex(table).nearest((0.0, 0.0, 0.0), 2) == [("a", 5.0), ("b", 5.0)]


def test_an_empty_table_and_no_wish_give_nothing():
    assert NearestIndex({}).nearest((0.0, 0.0, 0.0), 3) == []
    assert NearestIndex(random_table(3, 1)).nearest((0.0, 0.0, 0.0), 0) == []
