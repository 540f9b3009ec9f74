"""The table of all known nodes, made from coordinates or from columns."""

import numpy as np
import pytest

from sbon.cost.latency import EstimatedLatencies
from sbon.cost.network_usage import NetworkUsage
from sbon.cost.space import CostSpace
from sbon.cost_space.coordinate import ORIGIN, Coordinate
from sbon.cost_space.vivaldi import pulled_back
from sbon.errors import CoordinateError, PlacementError, ShapeError
from sbon.optimiser.full import FullOptimiser
from sbon.placement import regions
from sbon.placement.candidates import CandidateReport
from sbon.placement.config import PlacementConfig
from sbon.placement.regions import ranked_regions
from tests.placement_worlds import aggregate, join_tree, place, synthetic_space


def columns_of(space: CostSpace, order: np.ndarray) -> CostSpace:
    """Returns an equal space that is made from arrays in another order."""
    names = np.array(space.names)
    return CostSpace.from_arrays(names[order], space.vectors_ms[order], space.heights_ms[order], space.loads_ms[order], space.errors[order])


def test_columns_make_the_same_space_as_coordinates():
    space = synthetic_space(700, 3)
    columns = columns_of(space, np.random.default_rng(3).permutation(700))

    assert list(columns.names) == list(space.names)
    assert list(columns.names[5:8]) == list(space.names[5:8])
    assert [columns.row[name] for name in space.names] == list(range(700))
    assert dict(columns.coordinates) == space.coordinates
    assert columns.rtt_ms("n003", "n699") == space.rtt_ms("n003", "n699")
    assert columns.index.nearest((1.0, 2.0, 3.0), 9) == space.index.nearest((1.0, 2.0, 3.0), 9)
    assert np.array_equal(columns.cautious_heights_ms, space.cautious_heights_ms)


@pytest.mark.parametrize("strategy", ["least-usage", "relaxation", "producer", "consumer", "random"])
def test_queries_go_to_the_same_nodes_in_a_space_of_columns(strategy):
    space = synthetic_space(120, 4)
    columns = columns_of(space, np.arange(120)[::-1])
    problem = join_tree(space, np.random.default_rng(4), 4)

    decisions = [
        place(
            FullOptimiser(problem, {}, each, PlacementConfig(strategy=strategy, probes=0), np.random.default_rng(1)),
            lambda ask: CandidateReport(ask.node, {}, 9),
        )
        for each in (space, columns)
    ]

    assert decisions[0] == decisions[1]


def test_names_that_are_not_in_the_columns_are_missing():
    columns = columns_of(synthetic_space(10, 5), np.arange(10))

    for stranger in ("n0", "n010", "n001-and-much-longer-than-any-other-name", "", "zzz"):
        assert stranger not in columns
        with pytest.raises(PlacementError, match="has no coordinate, expected one of 10 known nodes"):
            columns.rows([stranger])


def test_columns_of_different_lengths_or_with_a_name_twice_are_refused():
    names = np.array(["a", "b", "a"])

    with pytest.raises(ShapeError, match="node 'a' comes twice"):
        CostSpace.from_arrays(names, np.zeros((3, 3)), np.zeros(3))
    with pytest.raises(ShapeError, match="other lengths"):
        CostSpace.from_arrays(names[:2], np.zeros((2, 3)), np.zeros(3))
    with pytest.raises(ShapeError, match="other lengths"):
        CostSpace.from_arrays(names[:2], np.zeros((2, 2)), np.zeros(2))


def test_columns_that_are_not_finite_are_refused():
    with pytest.raises(CoordinateError, match="node 'b' is not finite"):
        CostSpace.from_arrays(np.array(["b", "a"]), np.zeros((2, 3)), np.array([np.nan, 1.0]))


def test_many_nodes_on_one_point_are_found_all_the_same():
    names = np.char.mod("n%04d", np.arange(5000))
    space = CostSpace.from_arrays(names, np.ones((5000, 3)), np.zeros(5000))

    assert [name for name, _ in space.index.nearest((0.0, 0.0, 0.0), 3)] == ["n0000", "n0001", "n0002"]


def test_strangers_are_at_the_origin_but_no_nodes_of_the_space():
    space = CostSpace({"a": Coordinate((3.0, 4.0, 0.0), 2.0, 0.1), "b": Coordinate((0.0, 0.0, 6.0), 1.0, 0.1)})

    wider = space.with_strangers(["a", "new"])

    assert wider.rtt_ms("new", "a") == 5.0 + 2.0
    assert wider.coordinate("new") == ORIGIN
    assert "new" not in wider
    assert list(wider.names) == ["a", "b"]
    assert "new" not in space
    assert space.with_strangers(["b"]) is space
    with pytest.raises(PlacementError, match="'newer' has no coordinate"):
        wider.rtt_ms("newer", "a")


@pytest.mark.parametrize("seed", range(4))
def test_a_large_space_is_searched_near_the_operators_points_and_finds_what_a_scan_finds(monkeypatch, seed):
    space = synthetic_space(3000, seed)
    rng = np.random.default_rng(seed)
    problem = aggregate(space, rng) if seed % 2 else join_tree(space, rng, 5)
    scanned = ranked_regions(problem, space, 10, NetworkUsage(1.0))
    monkeypatch.setattr(regions, "SCAN_MAX", 100)

    found = ranked_regions(problem, space, 10, NetworkUsage(1.0))

    assert {operator: region[0] for operator, region in found.items()} == {operator: region[0] for operator, region in scanned.items()}
    assert all(len(set(found[operator]) & set(scanned[operator])) >= 8 for operator in found)


def test_caution_prefers_of_equal_predictions_the_coordinate_that_knows_more():
    equal = {"sure": Coordinate((0.0, 50.0, 0.0), 0.0, 0.05), "unsure": Coordinate((0.0, -50.0, 0.0), 0.0, 0.5)}
    ends = {"p": Coordinate((-50.0, 0.0, 0.0), 0.0, 0.1), "c": Coordinate((50.0, 0.0, 0.0), 0.0, 0.1)}
    latencies = EstimatedLatencies(CostSpace({**equal, **ends}))

    assert latencies.one_way_ms("sure", "p") == latencies.one_way_ms("unsure", "p")
    assert latencies.cautious().one_way_ms("sure", "p") < latencies.cautious().one_way_ms("unsure", "p")
    latencies.learn("unsure", {"p": 60.0})
    assert latencies.cautious().one_way_ms("unsure", "p") == 30.0  # a measured RTT needs no caution
    assert latencies.cautious().one_way_ms("unsure", "unsure") == 0.0


def test_an_empty_space_and_one_of_a_single_node_have_no_typical_rtt():
    assert CostSpace({}).cautious_heights_ms.tolist() == [0.0]
    assert CostSpace({"a": Coordinate((1.0, 2.0, 3.0), 4.0, 0.5)}).cautious_heights_ms[0] == 8.0


def test_gravity_pulls_towards_the_origin_with_the_square_of_the_distance_and_not_beyond_it() -> None:
    assert pulled_back((30.0, 40.0, 0.0), 100.0) == pytest.approx((30.0 * 0.995, 40.0 * 0.995, 0.0))  # by 0.25 ms of 50 ms
    assert pulled_back((300.0, 400.0, 0.0), 100.0) == pytest.approx((300.0 * 0.95, 400.0 * 0.95, 0.0))  # by 25 ms of 500 ms
    assert pulled_back((30_000.0, 0.0, 0.0), 100.0) == (0.0, 0.0, 0.0)
    assert pulled_back((30.0, 40.0, 0.0), 0.0) == (30.0, 40.0, 0.0)
