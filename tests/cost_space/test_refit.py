"""One pass of the re-fit finds the minimum of a quadratic, also where the height must not fall below 0."""

import numpy as np
import pytest
from scipy.optimize import minimize

from sbon.cost_space.refit import Refit

SCALE, ACROSS, PRIOR = 0.3, 0.1, 0.5


def samples(seed: int, height_ms: float, count: int = 12):
    """Returns peers, and the round trips and weights of a node at the origin with this true height."""
    rng = np.random.default_rng(seed)
    peers = np.vstack([rng.normal(0, 50, (3, count)), rng.uniform(1, 5, count)])
    rtt_ms = np.maximum(np.linalg.norm(peers[:3], axis=0) + peers[3] + height_ms + rng.normal(0, 3, count), 1.0)
    return peers, rtt_ms, rng.uniform(0.5, 2, count)


def model(place, peers, rtt_ms, weight):
    """Returns the quadratic with which one pass approximates the errors, written as in the module's docstring."""
    x = np.array(place)
    away = x[:3, None] - peers[:3]
    distance = np.linalg.norm(away, axis=0)
    residual = rtt_ms - (distance + x[3] + peers[3])
    say = weight / (rtt_ms**2 * (1 + (residual / rtt_ms / SCALE) ** 2))
    slope = np.vstack([away / distance, np.ones(rtt_ms.size)])
    resists = np.diag([ACROSS * say.sum()] * 3 + [0.0]) + np.eye(4) * say.sum() * PRIOR / rtt_ms.size
    curve = (slope * say) @ slope.T
    curve[:3, :3] *= 1 - ACROSS

    def error(move):
        return 0.5 * move @ (curve + resists) @ move - (slope * say) @ residual @ move

    return error


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("start_ms", "true_ms"), [(4.0, 8.0), (6.0, 0.0), (1.0, -30.0), (0.0, -10.0), (0.0, 6.0)])
def test_move_is_the_best_one_that_keeps_the_height_at_or_above_zero(seed: int, start_ms: float, true_ms: float):
    peers, rtt_ms, weight = samples(seed, true_ms)
    place = (2.0, -3.0, 1.0, start_ms)

    move = np.array(Refit(32).step(place, peers, rtt_ms, rtt_ms**2, weight, SCALE, ACROSS, PRIOR))

    error = model(place, peers, rtt_ms, weight)
    best = minimize(
        error, np.zeros(4), bounds=[(None, None)] * 3 + [(-start_ms, None)], method="L-BFGS-B", options={"ftol": 1e-15, "gtol": 1e-12}
    )
    assert start_ms + move[3] >= 0
    assert move == pytest.approx(best.x, abs=2e-3)
    assert error(move) < 0


def test_cases_above_reach_the_height_of_zero_and_do_not():
    at_zero = []
    for start_ms, true_ms in [(4.0, 8.0), (1.0, -30.0), (0.0, -10.0)]:
        peers, rtt_ms, weight = samples(0, true_ms)
        move = Refit(32).step((2.0, -3.0, 1.0, start_ms), peers, rtt_ms, rtt_ms**2, weight, SCALE, ACROSS, PRIOR)
        at_zero.append(start_ms + move[3] == 0)

    assert at_zero == [False, True, True]
