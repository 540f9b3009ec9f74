"""Whatever peers send, a node's coordinate stays acceptable to others. Shifting the whole space changes nothing."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbon.cost_space.config import CoordinateConfig
from sbon.cost_space.coordinate import ERROR_MAX, Coordinate, check, estimated_rtt_ms
from sbon.cost_space.localiser import Localiser
from sbon.cost_space.nearest import NearestIndex
from sbon.cost_space.rtt_filter import RttFilter
from sbon.errors import CoordinateError
from tests.examples import examples

ANY = st.floats(width=64)
EXTREME = st.one_of(ANY, st.sampled_from([0.0, -0.0, 5e-324, 1e-300, 1e5, -1e5, 1e308]))
ANY_COORDINATE = st.builds(Coordinate, st.tuples(EXTREME, EXTREME, EXTREME), EXTREME, EXTREME, EXTREME)
WIDE = st.floats(-1e5, 1e5)
SANE_COORDINATE = st.builds(Coordinate, st.tuples(WIDE, WIDE, WIDE), st.floats(0, 1e5), st.floats(0, ERROR_MAX), st.floats(0, 1e5))
NEAR = st.floats(-200, 200)


@given(
    samples=st.lists(st.tuples(st.integers(0, 5), st.one_of(ANY_COORDINATE, SANE_COORDINATE), EXTREME, st.floats(0, 1e6)), max_size=60),
    algorithm=st.sampled_from(["refit", "vivaldi"]),
)
@examples(150)
def test_no_sample_makes_a_coordinate_that_others_would_refuse(samples, algorithm):
    localiser = Localiser(CoordinateConfig(algorithm=algorithm), np.random.default_rng(0))
    refused = 0
    for number, (peer, coordinate, rtt_ms, gap_s) in enumerate(samples):
        refused += not localiser.observe(f"p{peer}", coordinate, rtt_ms, number * gap_s)
        check(localiser.coordinate)

    assert localiser.rejected.total() == refused
    error = localiser.median_relative_error()
    assert error is None or error >= 0


@given(samples=st.lists(st.tuples(st.integers(0, 9), SANE_COORDINATE, st.floats(1e-3, 6e4)), min_size=1, max_size=80))
@examples(80)
def test_sane_but_contradictory_samples_are_all_taken_and_do_no_lasting_harm(samples):
    localiser = Localiser(CoordinateConfig(), np.random.default_rng(0))
    for number, (peer, coordinate, rtt_ms) in enumerate(samples):
        assert localiser.observe(f"p{peer}", coordinate, rtt_ms, float(number))
        check(localiser.coordinate)


@given(coordinate=ANY_COORDINATE)
def test_the_check_lets_pass_exactly_what_is_finite_and_in_range(coordinate):
    values = (*coordinate.vector, coordinate.height_ms, coordinate.error, coordinate.load_ms)
    sane = all(math.isfinite(v) and abs(v) <= 1e5 for v in values) and min(values[3:]) >= 0 and coordinate.error <= ERROR_MAX
    if sane:
        assert check(coordinate) is coordinate
    else:
        with pytest.raises(CoordinateError):
            check(coordinate)


@given(seed=st.integers(0, 1000), shift=st.tuples(NEAR, NEAR, NEAR))
@examples(30)
def test_a_node_finds_its_place_wherever_the_space_lies(seed, shift):
    """Moving all peers by a vector moves the node by the same vector. Gravity is off: it ties the space to its origin."""
    rng = np.random.default_rng(seed)
    peers = [Coordinate(tuple(rng.normal(0, 50, 3).tolist()), 2.0, 0.1) for _ in range(12)]
    truth = Coordinate((5.0, 6.0, 7.0), 3.0, 0.1)
    here, there = (Localiser(CoordinateConfig(gravity_ms=0.0), np.random.default_rng(1)) for _ in range(2))
    for number in range(36):
        peer = peers[number % 12]
        rtt_ms = estimated_rtt_ms(truth, peer)
        moved = Coordinate(tuple(a + b for a, b in zip(peer.vector, shift, strict=True)), peer.height_ms, peer.error)
        here.observe(f"p{number % 12}", peer, rtt_ms, float(number))
        there.observe(f"p{number % 12}", moved, rtt_ms, float(number))

    expected = [a + b for a, b in zip(here.coordinate.vector, shift, strict=True)]
    assert there.coordinate.vector == pytest.approx(expected, abs=1e-3)
    assert there.coordinate.height_ms == pytest.approx(here.coordinate.height_ms, abs=1e-3)


@given(rtts=st.lists(st.floats(0.01, 1e4), min_size=1, max_size=60), interval_s=st.floats(0.01, 200))
def test_a_filtered_rtt_is_one_that_was_measured_lately(rtts, interval_s):
    rtt_filter, config = RttFilter(), CoordinateConfig()
    for number, rtt_ms in enumerate(rtts):
        filtered = rtt_filter.add(rtt_ms, config, number * interval_s)
        assert filtered in rtts[max(0, number - config.filter_window + 1) : number + 1]


@given(
    points=st.lists(st.tuples(NEAR, NEAR, NEAR, st.floats(0, 50), st.floats(0, 100)), min_size=1, max_size=30),
    point=st.tuples(NEAR, NEAR, NEAR),
    k=st.integers(1, 40),
)
@settings(deadline=None)
def test_nobody_left_out_is_nearer_than_somebody_named(points, point, k):
    table = {f"n{i:02d}": Coordinate((x, y, z), height, 0.1, load) for i, (x, y, z, height, load) in enumerate(points)}
    everyone = NearestIndex(table).nearest(point, len(table))

    assert NearestIndex(table).nearest(point, k) == everyone[:k]
    assert [d for _, d in everyone] == sorted(d for _, d in everyone)
