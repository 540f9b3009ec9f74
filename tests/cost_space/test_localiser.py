"""The coordinate of one node: which samples it refuses, remembers, forgets and keeps over a restart."""

import math

import numpy as np
import pytest

from sbon.cost_space.config import CoordinateConfig
from sbon.cost_space.coordinate import Coordinate, estimated_rtt_ms
from sbon.cost_space.localiser import Localiser
from sbon.cost_space.memory import Memory
from sbon.cost_space.vivaldi import vivaldi_step
from sbon.errors import CoordinateError

HERE = Coordinate((10.0, 20.0, 30.0), 2.0, 0.1)


def make_localiser(start: Coordinate | None = None, seed: int = 1, **settings: object) -> Localiser:
    return Localiser(CoordinateConfig(**settings), np.random.default_rng(seed), start)


def beacons(count: int = 24, seed: int = 5) -> dict[str, Coordinate]:
    rng = np.random.default_rng(seed)
    return {f"p{i}": Coordinate(tuple(rng.normal(0, 60, 3).tolist()), float(rng.uniform(1, 8)), 0.1) for i in range(count)}


def settle(localiser: Localiser, peers: dict[str, Coordinate], truth: Coordinate, start_s: float = 0.0, laps: int = 3) -> float:
    now = start_s
    for _ in range(laps):
        for name, peer in peers.items():
            now += 1.0
            assert localiser.observe(name, peer, estimated_rtt_ms(truth, peer), now)
    return now


@pytest.mark.parametrize(
    ("rtt_ms", "reason"),
    [
        (math.nan, "rtt_not_finite"),
        (math.inf, "rtt_not_finite"),
        (0.0, "rtt_not_positive"),
        (-3.0, "rtt_not_positive"),
        (1e9, "rtt_absurd"),
    ],
)
def test_an_impossible_rtt_is_refused_and_counted(rtt_ms: float, reason: str):
    localiser = make_localiser()

    assert not localiser.observe("p", HERE, rtt_ms, 1.0)
    assert localiser.rejected == {reason: 1}
    assert localiser.measured_rtt_ms("p") is None


@pytest.mark.parametrize(
    "bad",
    [
        Coordinate((math.nan, 0.0, 0.0), 0.0, 0.1),
        Coordinate((0.0, -math.inf, 0.0), 0.0, 0.1),
        Coordinate((0.0, 0.0, 1e7), 0.0, 0.1),
        Coordinate((0.0, 0.0, 0.0), -1.0, 0.1),
        Coordinate((0.0, 0.0, 0.0), 0.0, math.nan),
        Coordinate((0.0, 0.0, 0.0), 0.0, 0.1, math.nan),
    ],
)
def test_an_impossible_coordinate_is_refused_from_probes_and_from_gossip(bad: Coordinate):
    localiser = make_localiser()
    localiser.observe("p", HERE, 30.0, 1.0)
    before = localiser.coordinate

    assert not localiser.observe("p", bad, 30.0, 2.0)
    localiser.heard("p", bad, 3.0)

    assert localiser.rejected == {"coordinate": 2}
    assert localiser.coordinate == before


@pytest.mark.parametrize("algorithm", ["refit", "vivaldi"])
def test_a_node_among_exact_peers_finds_its_place(algorithm: str):
    truth = Coordinate((25.0, -40.0, 10.0), 6.0, 0.1)
    localiser = make_localiser(algorithm=algorithm)
    settle(localiser, beacons(), truth, laps=3 if algorithm == "refit" else 60)

    error = localiser.median_relative_error()
    assert error is not None
    assert error < (0.001 if algorithm == "refit" else 0.03)


def test_fewer_samples_than_unknowns_do_no_harm():
    localiser = make_localiser()
    for now, name in enumerate(["a", "b"]):
        localiser.observe(name, beacons()["p1"], 40.0, float(now))

    assert all(math.isfinite(v) for v in localiser.coordinate.vector)
    assert localiser.coordinate.height_ms >= 0


def test_news_of_a_peer_that_moved_moves_the_node_with_its_next_sample():
    truth = Coordinate((0.0, 0.0, 0.0), 3.0, 0.1)
    peers, localiser = beacons(), make_localiser()
    now = settle(localiser, peers, truth)
    before = localiser.coordinate
    moved = {name: Coordinate((c.vector[0] + 100.0, *c.vector[1:]), c.height_ms, c.error) for name, c in peers.items()}
    for name, coordinate in moved.items():
        localiser.heard(name, coordinate, now)
    settle(localiser, moved, Coordinate((100.0, 0.0, 0.0), 3.0, 0.1), now, laps=1)

    assert localiser.coordinate.vector[0] - before.vector[0] == pytest.approx(100.0, abs=5.0)


def test_gossip_about_unmeasured_peers_takes_no_memory():
    localiser = make_localiser()
    localiser.heard("stranger", HERE, 1.0)

    assert localiser.measured_rtt_ms("stranger") is None
    assert localiser.median_relative_error() is None


def test_a_forgotten_peer_has_no_say_any_more():
    localiser = make_localiser()
    settle(localiser, beacons(), HERE)
    localiser.forget("p3")
    localiser.forget("p3")
    localiser.forget("never seen")

    assert localiser.measured_rtt_ms("p3") is None
    assert localiser.measured_rtt_ms("p4") == pytest.approx(estimated_rtt_ms(HERE, beacons()["p4"]))


@pytest.mark.parametrize("forgotten", ["p0", "p3", "p7"])
def test_the_fit_after_a_peer_was_forgotten_does_not_depend_on_it(forgotten: str):
    """Once forgotten, it makes no difference whether the peer's round trips were right or 35 % too long."""
    found = []
    for factor in (1.0, 1.35):
        peers, localiser = beacons(count=8), make_localiser(seed=2)
        for now, (name, peer) in enumerate([*peers.items()] * 3):
            localiser.observe(name, peer, estimated_rtt_ms(HERE, peer) * (factor if name == forgotten else 1.0), float(now))
        with_it = localiser.coordinate
        localiser.forget(forgotten)
        del peers[forgotten]
        settle(localiser, peers, HERE, start_s=100.0, laps=12)
        found.append((with_it, localiser.coordinate))

    (right, after_right), (wrong, after_wrong) = found
    assert math.dist(right.vector, wrong.vector) > 0.5
    assert math.dist(after_right.vector, after_wrong.vector) < 0.01
    assert math.dist(HERE.vector, after_wrong.vector) < 0.05


@pytest.mark.parametrize("forgotten", ["a", "b", "d"])
def test_memory_without_a_forgotten_peer_is_as_if_it_had_never_been_there(forgotten: str):
    def columns(names: str, forget: str = "") -> dict[str, list[float]]:
        memory = Memory(CoordinateConfig())
        memory.add("first", HERE, 1.0, 0.0)
        for number, name in enumerate("abcd"):
            if name in names:
                memory.add(name, Coordinate((float(number), 0.0, 0.0), 1.0, 0.1), 10.0 + number, float(number))
        memory.forget(forget)
        places = memory.coordinates(np.empty((5, len(memory))))
        of_all = np.vstack([places, memory.rtt_ms, memory.rtt_square, memory.youth]).T.tolist()
        return dict(zip(memory.peers, of_all, strict=True)) | {f"{peer} rtt": [memory.filtered_rtt_ms(peer)] for peer in memory.peers}

    assert columns("abcd", forgotten) == columns("abcd".replace(forgotten, ""))


def test_memory_is_bounded_and_lets_go_of_the_sample_taken_longest_ago():
    memory = Memory(CoordinateConfig(memory_peers=4))
    for now, name in enumerate(["a", "b", "c", "d"]):
        memory.add(name, HERE, 10.0 + now, float(now))
    memory.add("a", HERE, 10.0, 100.0)
    memory.add("e", HERE, 50.0, 101.0)

    assert "b" not in memory
    assert sorted(memory.peers) == ["a", "c", "d", "e"]
    assert dict(zip(memory.peers, memory.rtt_ms.tolist(), strict=True)) == {"a": 10.0, "c": 12.0, "d": 13.0, "e": 50.0}


def test_weights_by_age_survive_years_of_uptime():
    memory = Memory(CoordinateConfig(sample_half_life_s=60.0))
    for day in range(1000):
        memory.add(f"p{day % 7}", HERE, 20.0, day * 86_400.0)

    assert np.isfinite(memory.youth).all()
    assert memory.youth.max() > 0


def test_a_restarted_node_keeps_its_place_against_one_odd_sample():
    truth = Coordinate((25.0, -40.0, 10.0), 6.0, 0.05)
    restarted = make_localiser(start=truth)
    peer = beacons()["p2"]
    restarted.observe("p2", peer, 3 * estimated_rtt_ms(truth, peer), 1.0)
    restarted.observe("p2", peer, 3 * estimated_rtt_ms(truth, peer), 2.0)

    moved = math.dist(restarted.coordinate.vector, truth.vector)
    assert moved < 0.15 * estimated_rtt_ms(truth, peer)


def test_a_restarted_node_that_has_been_carried_elsewhere_gets_there():
    restarted = make_localiser(start=Coordinate((200.0, 0.0, 0.0), 6.0, 0.05))
    settle(restarted, beacons(), Coordinate((25.0, -40.0, 10.0), 6.0, 0.05), laps=6)

    error = restarted.median_relative_error()
    assert error is not None
    assert error < 0.01


def test_a_start_that_knows_nothing_is_no_start():
    ignorant = make_localiser(start=Coordinate((0.0, 0.0, 0.0), 0.0, 1.0))
    ignorant.observe("p", HERE, 50.0, 1.0)

    assert math.dist(ignorant.coordinate.vector, HERE.vector) == pytest.approx(50.0)


def test_a_saved_coordinate_that_is_nonsense_is_refused():
    with pytest.raises(CoordinateError):
        make_localiser(start=Coordinate((math.nan, 0.0, 0.0), 0.0, 0.1))


def test_the_load_dimension_leaves_the_place_alone():
    localiser = make_localiser()
    settle(localiser, beacons(), HERE)
    before = localiser.coordinate
    localiser.set_load(42.0)

    assert localiser.coordinate == Coordinate(before.vector, before.height_ms, before.error, 42.0)
    localiser.observe("p1", beacons()["p1"], 80.0, 1000.0)
    assert localiser.coordinate.load_ms == 42.0
    with pytest.raises(CoordinateError):
        localiser.set_load(math.nan)


def test_one_sample_moves_a_settled_node_by_a_bounded_length():
    localiser = make_localiser(jump_ms_max=25.0, early_samples=1)
    settle(localiser, beacons(), HERE, laps=6)
    before = localiser.coordinate
    localiser.observe("liar", Coordinate((90_000.0, 0.0, 0.0), 0.0, 0.0), 59_000.0, 500.0)
    localiser.observe("liar", Coordinate((-90_000.0, 0.0, 0.0), 0.0, 0.0), 59_000.0, 501.0)

    assert math.dist(localiser.coordinate.vector, before.vector) <= 25.0


def test_same_samples_give_the_same_place():
    first, second = make_localiser(seed=3), make_localiser(seed=3)
    settle(first, beacons(), HERE)
    settle(second, beacons(), HERE)

    assert first.coordinate == second.coordinate


def test_a_height_is_never_below_zero_however_high_the_peer_is_that_looks_too_far():
    own, peer = Coordinate((0.0, 0.0, 0.0), 1.0, 0.5), Coordinate((1.0, 0.0, 0.0), 80.0, 0.1)

    moved = vivaldi_step(own, peer, 0.5, CoordinateConfig(), np.random.default_rng(1))

    assert moved.height_ms == 0.0
