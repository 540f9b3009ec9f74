"""`sbon testbed coordinates`: what it computes, and its contract with scripts."""

import json
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from sbon.errors import ConfigError
from sbon_testbed.coordinates.command import coordinates_command
from sbon_testbed.coordinates.evaluation import evaluate, per_pair_median, predicted_rtt_ms, score
from sbon_testbed.coordinates.space import draw_peers

TIMES = ("seconds", "updates_per_second")


def plane(nodes: int, seed: int = 1) -> np.ndarray:
    """RTTs of nodes on a plane behind access links."""
    rng = np.random.default_rng(seed)
    points, heights = rng.uniform(0, 150, (nodes, 2)), rng.uniform(1, 10, nodes)
    rtt = np.linalg.norm(points[:, None] - points[None], axis=-1) + heights[:, None] + heights[None]
    np.fill_diagonal(rtt, 0.0)
    return rtt


def test_the_result_has_the_keys_that_scripts_rely_on():
    result = evaluate(plane(12), rounds=50, neighbours=None, seed=3)

    assert {k: result[k] for k in ("nodes", "rounds", "neighbours", "seed", "gossip")} == {
        "nodes": 12,
        "rounds": 50,
        "neighbours": "all",
        "seed": 3,
        "gossip": "latest",
    }
    errors = {"median_relative_error", "p90_relative_error", "median_absolute_error_ms"}
    assert errors <= set(result)
    assert set(result["warmup"]) == {"20", "50"}
    assert all(set(values) == errors for values in result["warmup"].values())
    assert {"drift_ms_per_round", *TIMES} <= set(result)
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
    assert json.loads((tmp_path / "out.json").read_text())["neighbours"] == 3


@pytest.mark.parametrize(
    ("extra", "words", "code"),
    [
        (("--neighbours", "many"), "expected a number or all", 2),
        (("--algorithm", "guess"), "expected refit or vivaldi", 2),
        (("--attack", "hunger"), "--attack hunger, expected one of", 2),
        (("--json", "/nowhere/out.json"), "--json /nowhere/out.json", 1),
    ],
)
def test_a_wrong_option_is_one_line_of_error(tmp_path: Path, extra: tuple[str, ...], words: str, code: int):
    np.savetxt(tmp_path / "m.txt", plane(5))
    result = run("--matrix", str(tmp_path / "m.txt"), "--rounds", "2", *extra)

    assert result.exit_code == code
    assert words in result.output
    assert "Traceback" not in result.output
