"""The evaluation of coordinates with lying nodes, and its command."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from sbon.cli.__main__ import build
from sbon.errors import ConfigError
from sbon.types import FloatArray
from sbon_testbed.coordinates.adversaries import attacked
from sbon_testbed.coordinates.liars import ATTACKS


def world(nodes: int = 40, seed: int = 2) -> FloatArray:
    """Returns RTTs in ms between random points in space behind access links."""
    rng = np.random.default_rng(seed)
    points, heights = rng.uniform(0, 100, (nodes, 3)), rng.uniform(1, 10, nodes)
    rtt_ms: FloatArray = np.sqrt(((points[:, None] - points[None, :]) ** 2).sum(axis=2)) + heights[:, None] + heights[None, :]
    rtt_ms *= rng.uniform(0.9, 1.1, rtt_ms.shape)
    return rtt_ms


def test_every_attack_of_a_tenth_leaves_the_honest_pairs_nearly_as_they_were():
    """A tenth of the nodes lies. Observed: 1.0 to 1.1 times the error without lies."""
    result = attacked(world(30), list(ATTACKS), rounds=80, neighbours=None, seed=1)

    assert result["liars"] == 3
    assert set(result["attacks"]) >= {"inflation", "deflation", "oscillation", "creeping"}
    assert result["worst_ratio"] == max(figures["ratio"] for figures in result["attacks"].values())
    assert result["worst_ratio"] < 1.3


def test_without_attacks_nothing_is_worse():
    result = attacked(world(20), [], rounds=10)

    assert result["attacks"] == {}
    assert result["worst_ratio"] == 1.0


@pytest.mark.parametrize(("attacks", "fraction", "words"), [(["hunger"], 0.1, "hunger"), ([], 0.5, "fraction"), ([], 0.0, "fraction")])
def test_senseless_trials_are_refused(attacks: list[str], fraction: float, words: str):
    with pytest.raises(ConfigError, match=words):
        attacked(world(10), attacks, fraction=fraction)


def test_the_command_compares_one_attack_and_writes_json(tmp_path: Path):
    np.savez(tmp_path / "m.npz", rtt=np.stack([world(20), world(20, seed=3)]))
    arguments = ["testbed", "adversaries", "--matrix", str(tmp_path / "m.npz"), "--slice", "1", "--rounds", "20", "--attack", "deflation"]

    run = CliRunner().invoke(build(), [*arguments, "--json", str(tmp_path / "out.json")])

    assert run.exit_code == 0, run.output
    assert "without lies" in run.output
    result = json.loads((tmp_path / "out.json").read_text())
    assert (result["nodes"], result["liars"]) == (20, 2)
    assert list(result["attacks"]) == ["deflation"]


@pytest.mark.parametrize("wrong", [("--slice", "7"), ("--neighbours", "few"), ("--attack", "hunger")])
def test_a_wrong_option_is_a_clear_error(tmp_path: Path, wrong: tuple[str, str]):
    np.savez(tmp_path / "m.npz", rtt=np.stack([world(10), world(10)]))

    run = CliRunner().invoke(build(), ["testbed", "adversaries", "--matrix", str(tmp_path / "m.npz"), "--rounds", "2", *wrong])

    assert isinstance(run.exception, ConfigError)
    assert wrong[1] in str(run.exception)
