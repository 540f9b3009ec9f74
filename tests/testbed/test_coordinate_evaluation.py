"""`sbon testbed coordinates`: its figures, and its options, output and exit codes for scripts."""

import json
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from sbon.errors import ConfigError
from sbon_testbed.coordinates.command import coordinates_command
from sbon_testbed.coordinates.evaluation import evaluate, predicted_rtt_ms, score, score_by_probing
from sbon_testbed.coordinates.jitter import JITTER_SHARE, Jitter
from sbon_testbed.coordinates.space import draw_peers
from sbon_testbed.matrix import per_pair_median, slice_of

TIMES = ("seconds", "updates_per_second")


def plane(nodes: int, seed: int = 1) -> np.ndarray:
    """Returns RTTs in ms of nodes on a plane behind access links."""
    rng = np.random.default_rng(seed)
    points, heights = rng.uniform(0, 150, (nodes, 2)), rng.uniform(1, 10, nodes)
    rtt = np.linalg.norm(points[:, None] - points[None], axis=-1) + heights[:, None] + heights[None]
    np.fill_diagonal(rtt, 0.0)
    return rtt


def test_the_result_has_the_keys_that_scripts_rely_on():
    result = evaluate(plane(12), rounds=50, neighbours=None, seed=3)

    assert {k: result[k] for k in ("nodes", "rounds", "neighbours", "seed", "gossip", "jitter")} == {
        "nodes": 12,
        "rounds": 50,
        "neighbours": "all",
        "seed": 3,
        "gossip": "latest",
        "jitter": 0.0,
    }
    errors = {"median_relative_error", "p90_relative_error", "median_absolute_error_ms"}
    assert errors <= set(result)
    assert set(result["warmup"]) == {"20", "50"}
    assert all(set(values) == errors for values in result["warmup"].values())
    assert {"drift_ms_per_round", *TIMES} <= set(result)
    assert set(result["probed"]) == {*errors, "pairs"}
    assert "against_median" not in result
    json.dumps(result)


@pytest.mark.parametrize("gossip", [None, 4])
def test_the_same_seed_gives_the_same_numbers(gossip: int | None):
    first, second, other = (evaluate(plane(10), rounds=30, neighbours=4, seed=seed, gossip=gossip) for seed in (5, 5, 6))
    for result in (first, second, other):
        for key in TIMES:
            result.pop(key)

    assert first == second
    assert first["median_relative_error"] != other["median_relative_error"]


def test_slices_follow_each_other_in_equal_parts_and_both_scores_are_given():
    slices = np.stack([plane(12), 3 * plane(12), 3 * plane(12)])
    trace: dict[int, float] = {}
    result = evaluate(slices, rounds=240, neighbours=None, seed=1, trace=trace)

    assert trace[80] < 0.05
    assert trace[81] > 0.5
    assert result["against_median"]["median_relative_error"] == pytest.approx(result["median_relative_error"])
    assert result["median_relative_error"] < 0.1


def test_scores_are_taken_over_measured_pairs_in_each_direction():
    positions = np.array([[0.0, 0, 0, 1], [3, 4, 0, 2], [0, 0, 0, 0]])
    truth = np.array([[0.0, 10, np.nan], [16, 0, np.nan], [np.nan, np.nan, 0]])

    assert predicted_rtt_ms(positions)[0, 1] == 8.0
    assert score(positions, truth) == {
        "median_relative_error": pytest.approx((0.2 + 0.5) / 2),
        "p90_relative_error": pytest.approx(0.47),
        "median_absolute_error_ms": pytest.approx(5.0),
    }


def test_probed_pairs_are_scored_apart_from_the_rest():
    positions = np.array([[0.0, 0, 0, 0], [10, 0, 0, 0], [20, 0, 0, 0]])
    truth = np.array([[0.0, 10, 40], [10, 0, 10], [40, np.nan, 0]])
    probed = np.array([[False, True, False], [True, False, True], [False, True, False]])

    apart = score_by_probing(positions, truth, probed)
    assert {name: (part["median_relative_error"], part["pairs"]) for name, part in apart.items() if part} == {
        "probed": (0.0, 3),
        "unprobed": (0.5, 2),
    }
    assert score_by_probing(positions, truth, probed, only=[0, 1])["unprobed"] is None
    assert score_by_probing(positions, truth, ~np.eye(3, dtype=bool))["unprobed"] is None


def test_a_pair_counts_as_probed_when_either_end_has_measured_it():
    result = evaluate(plane(12), rounds=200, neighbours=2, seed=4)

    assert result["probed"]["pairs"] + result["unprobed"]["pairs"] == 12 * 11
    assert 2 * 12 <= result["probed"]["pairs"] <= 2 * 2 * 12
    assert result["unprobed"]["median_relative_error"] > result["probed"]["median_relative_error"]


def test_jitter_lengthens_each_probe_by_its_mean():
    jitter = Jitter(0.1, np.random.default_rng(1))
    drawn = np.array([jitter.measured_ms(50.0) for _ in range(4000)]) / 50.0 - 1.0

    assert drawn.min() >= 0.0
    assert np.mean(drawn) == pytest.approx(0.1, rel=0.05)
    assert np.median(drawn) == pytest.approx(0.1 * np.log(2), rel=0.07)


@pytest.mark.parametrize("share", [-0.1, 11.0, float("nan")])
def test_a_senseless_jitter_is_refused(share: float):
    with pytest.raises(ConfigError, match="expected 0 to 10, a share of the RTT"):
        evaluate(plane(4), rounds=1, jitter=share)


def test_no_jitter_draws_nothing():
    """`--jitter 0` takes no random numbers, so it repeats runs of versions without jitter exactly."""
    jitter = Jitter(0.0, np.random.default_rng(1))
    assert jitter.measured_ms(50.0) == 50.0
    quiet, noisy = (evaluate(plane(12), rounds=60, neighbours=None, seed=1, jitter=share) for share in (0.0, 0.1))
    assert quiet["median_relative_error"] < noisy["median_relative_error"]


def test_coordinates_see_through_a_tenth_of_exponential_noise():
    """Each of 60 peers is probed four times in 240 rounds."""
    errors = [evaluate(plane(60), rounds=240, neighbours=None, seed=seed, jitter=0.1)["median_relative_error"] for seed in (1, 2)]

    assert max(errors) < 0.02  # observed 0.008; 0.036 without a filter of samples


def test_a_slice_is_taken_by_name_or_number():
    slices = np.array([[[0.0, rtt], [rtt, 0.0]] for rtt in (10.0, 99.0, 12.0)])

    assert [float(slice_of(slices, wanted)[0, 1]) for wanted in ("first", "median", "1")] == [10.0, 12.0, 99.0]
    assert slice_of(slices[0], "0")[0, 1] == 10.0
    for wrong in ("3", "-1", "last", ""):
        with pytest.raises(ConfigError, match="expected first, median or a number from 0 to 2"):
            slice_of(slices, wrong)


def test_nobody_probes_itself_or_whom_it_cannot_reach():
    rtt = plane(6)
    rtt[0, 1:4] = np.nan
    peers = draw_peers(rtt[None], 3, np.random.default_rng(1))

    assert sorted(peers[0]) == [4, 5]
    assert all(node not in others and len(others) == 3 for node, others in enumerate(peers[1:], start=1))


def test_the_median_over_time_passes_over_gaps():
    slices = np.array([[[0.0, 5.0], [np.nan, 0.0]], [[0.0, np.nan], [np.nan, 0.0]], [[0.0, 7.0], [np.nan, 0.0]]])

    np.testing.assert_array_equal(per_pair_median(slices), [[0.0, 6.0], [np.nan, 0.0]])


@pytest.mark.parametrize("settings", [{"rounds": 0}, {"neighbours": 0}, {"gossip": -1}])
def test_senseless_settings_are_refused(settings: dict[str, int]):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        evaluate(plane(4), **settings)


def run(*arguments: str):
    app = typer.Typer()
    app.command()(coordinates_command)
    return CliRunner().invoke(app, list(arguments))


def test_the_command_writes_json_and_prints_a_summary(tmp_path: Path):
    np.savetxt(tmp_path / "m.txt", plane(8))
    result = run("--matrix", str(tmp_path / "m.txt"), "--rounds", "20", "--neighbours", "3", "--json", str(tmp_path / "out.json"))

    assert result.exit_code == 0
    assert "after 20 rounds" in result.output
    assert "unprobed pairs" in result.output
    written = json.loads((tmp_path / "out.json").read_text())
    # The defaults are as in agents: probes are noisy, and each reply brings the coordinates of four others.
    assert (written["neighbours"], written["jitter"], written["gossip"]) == (3, JITTER_SHARE, 4)


def test_the_command_takes_one_slice_of_a_matrix_over_time(tmp_path: Path):
    np.savez(tmp_path / "m.npz", rtt=np.stack([plane(8), 3 * plane(8)]))
    arguments = ["--matrix", str(tmp_path / "m.npz"), "--rounds", "40", "--neighbours", "all", "--jitter", "0", "--json", "-"]
    both, second = (json.loads(run(*arguments, *extra).stdout) for extra in ([], ["--slice", "1"]))

    assert "against_median" in both
    assert "against_median" not in second
    assert (second["jitter"], second["nodes"]) == (0.0, 8)


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (("--neighbours", "many"), "expected a number or all"),
        (("--algorithm", "guess"), "expected refit or vivaldi"),
        (("--attack", "hunger"), "--attack hunger, expected one of"),
        (("--jitter", "-1"), "jitter = -1.0, expected 0 to 10"),
        (("--slice", "4"), "--slice 4, expected first, median or a number from 0 to 0"),
    ],
)
def test_a_wrong_option_is_one_line_of_error(tmp_path: Path, extra: tuple[str, ...], words: str):
    np.savetxt(tmp_path / "m.txt", plane(5))
    result = run("--matrix", str(tmp_path / "m.txt"), "--rounds", "2", *extra)

    assert result.exit_code == 2
    assert words in result.output
    assert "Traceback" not in result.output
