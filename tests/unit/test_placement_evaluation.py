import json

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from sbon.cost.latency import KnownLatencies
from sbon.errors import ConfigError
from sbon.placement.problem import PlacementLink, PlacementProblem
from testbed.placement_evaluation import completed, direct_delay_ms, evaluate, longest_delay_ms, placement_command
from testbed.placement_queries import draw_query
from tests.placement_worlds import synthetic_space, truth_of


def small_matrix(count=40):
    space = synthetic_space(count, 21)
    return 2 * truth_of(space, 0.1, 21).matrix_ms(space.names, space.names)


def test_missing_rtts_are_filled_over_a_third_node():
    gap = float("nan")
    filled = completed(np.array([[0.0, 10.0, gap], [20.0, 0.0, 30.0], [gap, gap, 0.0]]))

    assert filled.tolist() == [[0.0, 15.0, 45.0], [15.0, 0.0, 30.0], [45.0, 30.0, 0.0]]


def test_a_node_that_nobody_reaches_is_named():
    gap = float("nan")
    with pytest.raises(ConfigError, match="no RTT between nodes 0 and 2"):
        completed(np.array([[0.0, 10.0, gap], [10.0, 0.0, gap], [gap, gap, 0.0]]))


def test_delay_is_that_of_the_longest_way():
    truth = KnownLatencies(["a", "b", "c"], np.array([[0.0, 20.0, 60.0], [20.0, 0.0, 100.0], [60.0, 100.0, 0.0]]))
    problem = PlacementProblem(
        {"p": "a", "q": "b", "s": "c"},
        ("f", "j"),
        (PlacementLink("p", "f", 1.0), PlacementLink("f", "j", 1.0), PlacementLink("q", "j", 1.0), PlacementLink("j", "s", 1.0)),
    )

    assert longest_delay_ms(problem, {**problem.pinned, "f": "b", "j": "a"}, truth) == 10.0 + 10.0 + 30.0
    assert direct_delay_ms(problem, truth) == 50.0


@pytest.mark.parametrize("shape", ["aggregate", "join-tree", "mixed"])
def test_queries_are_drawn_from_the_seed(shape):
    names = [f"n{i}" for i in range(30)]
    drawn = [[draw_query(shape, names, np.random.default_rng(seed)) for seed in range(20)] for _ in range(2)]

    assert drawn[0] == drawn[1]
    assert all(problem.unpinned and problem.producers and problem.consumers for problem in drawn[0])


@pytest.mark.parametrize("shape", ["aggregate", "mixed"])
def test_no_strategy_beats_the_optimum_and_ours_comes_nearest(shape):
    result = evaluate(small_matrix(), queries=8, shape=shape, rounds=60)

    penalty = {name: figures["usage_penalty_mean"] for name, figures in result["strategies"].items()}
    assert penalty["optimal"] == 0.0
    assert min(penalty.values()) >= 0.0
    assert min(penalty, key=lambda name: penalty[name] if name != "optimal" else 9.9) == "least-usage"
    assert result["strategies"]["least-usage-unprobed"]["probes_per_query"] == 0
    assert result["strategies"]["least-usage"]["probes_per_query"] > 0


def test_an_unknown_strategy_is_named():
    with pytest.raises(ConfigError, match="'best' is unknown"):
        evaluate(small_matrix(), queries=1, strategies=("best",))


def test_the_command_needs_exactly_one_network():
    app = typer.Typer()
    app.command()(placement_command)

    assert CliRunner().invoke(app, []).exit_code == 2


def test_the_command_writes_json(tmp_path):
    pytest.importorskip("testbed.matrix")
    app = typer.Typer()
    app.command()(placement_command)
    np.savez(tmp_path / "m.npz", rtt=small_matrix(12))
    out = tmp_path / "out.json"

    done = CliRunner().invoke(
        app, ["--matrix", str(tmp_path / "m.npz"), "--queries", "2", "--rounds", "20", "--strategy", "relaxation", "--json", str(out)]
    )

    assert done.exit_code == 0
    result = json.loads(out.read_text())
    assert sorted(result["strategies"]) == ["optimal", "relaxation"]
    assert (result["nodes"], result["queries"], result["seed"]) == (12, 2, 1)
