"""The paper's experiments: their arithmetic on small numbers, and one short run of each on a small overlay."""

import gzip
import json
import re
import sys

import numpy as np
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from sbon.cost.latency import KnownLatencies
from sbon.cost.problem import PlacementLink, PlacementProblem
from sbon.errors import ConfigError
from sbon.placement.optimal import optimal_assignment
from sbon_testbed.documents import print_document
from sbon_testbed.figures.command import figures_command
from sbon_testbed.figures.experiments import EXPERIMENTS, Extent, run_figures
from sbon_testbed.figures.migration import draw_far_pair, label
from sbon_testbed.figures.oracle import Judge, delay_everywhere, usage_everywhere
from sbon_testbed.figures.pairs import Rates, draw_pairs
from sbon_testbed.figures.shared_queries import Asked, draw_far_groups, draw_zipf, each_equal_operator_once
from sbon_testbed.figures.text import as_text
from sbon_testbed.figures.topology import layers, without_projections
from sbon_testbed.figures.world import MeasuredNetwork, merged, read_loads, read_measured
from tests.examples import examples

TINY = Extent(
    nodes=8,
    hours_one=0.1,
    hours_pairs=0.05,
    pairs=2,
    seattle_slices=2,
    groups=1,
    zipf_queries=4,
    zipf_sources=2,
    apart_s=30.0,
    zipf_apart_s=20.0,
    settle_s=60.0,
    after_s=60.0,
)


def drawn_network(nodes=10, slices=2, seed=5, name="Somewhere"):
    """Returns a network of points on a plane in two distant clusters; the points move a little from slice to slice."""
    rng = np.random.default_rng(seed)
    at = rng.uniform(0, 20, (nodes, 2)) + np.where(np.arange(nodes) % 2, 0.0, 120.0)[:, None]
    rtt = []
    for _ in range(slices):
        matrix = np.linalg.norm(at[:, None] - at[None], axis=2) + 1.0
        np.fill_diagonal(matrix, 0.0)
        rtt.append(matrix)
        at = at + rng.normal(0, 4, at.shape)
    return MeasuredNetwork(name, tuple(f"n{i}" for i in range(nodes)), np.stack(rtt))


def read(name, nodes, slices):
    return drawn_network(nodes, slices or 2, seed=len(name), name=name)


# ------------------------------------------------------------------------------------------------------ arithmetic


def test_usage_and_delay_of_one_operator_by_hand():
    latency_ms = np.array([[0.0, 10.0, 40.0], [10.0, 0.0, 35.0], [40.0, 35.0, 0.0]])

    assert usage_everywhere(latency_ms, [0, 1, 2], [1000.0, 1000.0, 500.0]).tolist() == [30.0, 27.5, 75.0]
    assert delay_everywhere(latency_ms, [0, 1], 2).tolist() == [50.0, 45.0, 40.0]


@given(st.integers(0, 10_000))
@examples(20)
def test_the_best_node_is_that_of_the_exact_search(seed):
    rng = np.random.default_rng(seed)
    network = drawn_network(8, 1, seed)
    ends, rates = rng.choice(8, 3, replace=False).tolist(), rng.uniform(1, 2000, 3).tolist()
    pinned = {name: network.nodes[end] for name, end in zip("pqc", ends, strict=True)}
    links = (PlacementLink("p", "f", rates[0]), PlacementLink("q", "f", rates[1]), PlacementLink("f", "c", rates[2]))
    truth = KnownLatencies(network.nodes, network.rtt_ms[0])

    _, best = optimal_assignment(PlacementProblem(pinned, ("f",), links), truth, network.nodes)

    assert usage_everywhere(network.rtt_ms[0] / 2, ends, rates).min() == pytest.approx(best)


@given(st.integers(0, 10_000))
@examples(20)
def test_nothing_costs_less_than_all_knowing_placement(seed):
    rng = np.random.default_rng(seed)
    network = drawn_network(9, 3, seed)
    pairs = draw_pairs(network, 4, seed)
    judge = Judge(network, pairs, [Rates(1000.0, 900.0, 500.0)] * 4, np.arange(5.0, 90.0, 10.0), 90.0)
    best = judge.all_knowing().usage

    assert (best <= judge.of(rng.integers(9, size=(9, 4))).usage + 1e-9).all()
    assert best.sum() <= judge.best_fixed().usage.sum() + 1e-9
    assert judge.best_fixed().usage.sum() <= judge.fixed(rng.integers(9, size=4)).usage.sum() + 1e-9


def test_each_look_is_judged_by_the_slice_in_force():
    network = drawn_network(6, 3)
    judge = Judge(network, draw_pairs(network, 1, 1), [Rates(1.0, 1.0, 1.0)], np.array([10.0, 29.0, 31.0, 61.0, 89.0]), 90.0)

    assert judge.slice_at.tolist() == [0, 0, 1, 2, 2]


def test_equal_operators_shared_once_by_hand():
    rtt = 2 * np.array([[0.0, 10.0, 40.0], [10.0, 0.0, 35.0], [40.0, 35.0, 0.0]])
    network = MeasuredNetwork("line", ("a", "b", "c"), rtt[None])
    once = each_equal_operator_once(network, [("a", "b")], [Asked(0, "c"), Asked(0, "c")], Rates(1000.0, 1000.0, 500.0))

    assert once == {"usage_bytes": 45.0, "wan_bytes_per_s": 2000.0}  # on b, in bytes: 10 from a, 17.5 to each of two consumers


def test_popular_sources_are_asked_for_more_often():
    network = drawn_network(40, 1)
    streams, asked = draw_zipf(network, 10, 400, 1.0, seed=3)
    uses = {}
    for one in asked:
        for node in streams[one.streams]:
            uses[node] = uses.get(node, 0) + 1
    counts = sorted(uses.values(), reverse=True)

    assert len(asked) == 400
    assert len(streams) <= 45
    assert counts[0] > 4 * counts[-1]
    assert draw_zipf(network, 10, 400, 1.0, seed=3) == (streams, asked)


def test_groups_have_near_consumers_and_far_producers():
    network = drawn_network(20, 1)
    streams, asked = draw_far_groups(network, 2, seed=1)
    number = {node: index for index, node in enumerate(network.nodes)}

    for group, ends in enumerate(streams):
        consumers = [number[one.consumer] for one in asked if one.streams == group]
        assert len(set(consumers)) == 4
        assert network.rtt_ms[0][np.ix_(consumers, consumers)].max() < 60.0
        assert network.rtt_ms[0][np.ix_([number[end] for end in ends], consumers)].min() > 100.0


def test_a_far_pair_has_near_producers():
    network = drawn_network(20, 1)
    left, right, consumer = (network.nodes.index(node) for node in draw_far_pair(network, 1))

    assert network.rtt_ms[0][left, right] <= 30.0
    assert min(network.rtt_ms[0][left, consumer], network.rtt_ms[0][right, consumer]) > 100.0


def test_placements_are_lettered_as_in_the_paper():
    assert [label(number) for number in (0, 1, 25, 26, 27, 52)] == ["A", "B", "Z", "AA", "AB", "BA"]


def test_a_drawing_shows_who_sends_to_whom_without_the_projections_beside_consumers():
    kinds = {"p": "source", "q": "source", "j": "join", "m": "multicast", "x": "map", "a": "sink", "b": "sink"}
    ends = [("p", "j"), ("q", "j"), ("j", "m"), ("m", "x"), ("x", "a"), ("j", "b")]
    shown = without_projections(
        {
            "operators": [{"id": name, "kind": kind, "node": "n"} for name, kind in kinds.items()],
            "links": [{"source": source, "target": target, "bytes_per_s": 1.0} for source, target in ends],
        }
    )
    at = layers(shown)

    assert [(link["source"], link["target"]) for link in shown["links"]] == [("p", "j"), ("q", "j"), ("j", "m"), ("m", "a"), ("j", "b")]
    assert {name: x for name, (x, _) in at.items()} == {"p": 0.0, "q": 0.0, "j": 1.0, "m": 2.0, "a": 3.0, "b": 3.0}
    assert len({at["a"], at["b"]}) == len({at["p"], at["q"]}) == 2


def test_settings_are_laid_over_each_other_table_by_table():
    assert merged({"a": {"x": 1, "y": 2}}, {"a": {"y": 3}, "b": {"z": 4}}) == {"a": {"x": 1, "y": 3}, "b": {"z": 4}}


# ----------------------------------------------------------------------------------------------------------- files


def test_nodes_and_slices_of_a_measured_network_come_from_the_seed(tmp_path):
    rtt = np.stack([drawn_network(12, 1, seed).rtt_ms[0] for seed in range(4)])
    rtt[1, 0, 1] = np.nan
    np.savez(tmp_path / "rtt.npz", rtt=rtt)
    one, again = (read_measured("x", tmp_path / "rtt.npz", 6, 3, 2) for _ in range(2))

    assert one.nodes == again.nodes
    assert one.rtt_ms.shape == (2, 6, 6)
    assert np.isfinite(one.rtt_ms).all()
    assert np.array_equal(one.one_way_ms(0.75), one.rtt_ms[1] / 2)
    with pytest.raises(ConfigError, match="12 nodes, expected at least 13"):
        read_measured("x", tmp_path / "rtt.npz", 13, 3)


def loads_file(path, name="ec2_cpu_utilization_1"):
    with gzip.open(path, "wt") as file:
        file.write("series,time,value\n" + "".join(f"{name},{minute},{minute}\n" for minute in range(60)))
    return path


def test_loads_are_shares_of_the_processor(tmp_path):
    assert read_loads(loads_file(tmp_path / "load.csv.gz"))[0][[0, 30]].tolist() == [0.0, 0.3]
    with pytest.raises(ConfigError, match="no series named ec2_cpu_utilization"):
        read_loads(loads_file(tmp_path / "other.csv.gz", "requests"))
    (tmp_path / "not.csv.gz").write_text("series")
    with pytest.raises(ConfigError, match="not a table of series, time and value"):
        read_loads(tmp_path / "not.csv.gz")


def test_missing_files_are_refused_by_name(tmp_path):
    app = typer.Typer()
    app.command()(figures_command)

    without = CliRunner().invoke(app, ["--out", str(tmp_path)])
    assert str(without.exception) == "no planetlab file: give --planetlab FILE, or --data DIR with rtt/planetlab490.npz in it"
    absent = CliRunner().invoke(app, ["--out", str(tmp_path), "--data", str(tmp_path)])
    assert "rtt/planetlab490.npz: no such file; give --planetlab FILE" in str(absent.exception)


# ------------------------------------------------------------------------------------------------------------ runs


@pytest.fixture(scope="module")
def result():
    return run_figures(read, [np.linspace(0, 1, 50)], TINY, 1, lambda what, done, total: None)


def test_every_experiment_gives_what_its_figure_needs(result):
    assert set(EXPERIMENTS) <= set(result)
    for one in result["figure10"].values():
        assert len(one["hours"]) == len(one["usage_migrating_bytes"]) == len(one["usage_still_bytes"]) == 6
        assert one["placements"][0]["label"] == "A"
        assert sum(placement["hours"] for placement in one["placements"]) == pytest.approx(0.1, abs=0.01)
    assert [len(one["pairs"]) for one in result["figure12"].values()] == [2, 2, 2, 2]
    assert len(result["figure13"]["groups"]) == 1
    assert sum(result["zipf"]["queries_by_streams"]) == 4


def test_measured_rates_are_those_that_the_sources_send(result):
    """Each side sends one row of about 1,020 bytes per second; a quarter of the rows is joined."""
    for one in result["figure12"].values():
        assert one["rates_bytes_per_s"] == pytest.approx([1030.0, 1030.0, 515.0], rel=0.1)


def test_no_run_costs_less_than_all_knowing_placement(result):
    for one in result["figure12"].values():
        assert one["above_all_knowing"] >= -1e-9
        assert all(pair["usage_migrating_bytes"] >= pair["usage_all_knowing_bytes"] - 1e-9 for pair in one["pairs"])


def test_shared_operators_are_found_and_carry_less(result):
    assert result["figure13"]["reused"] > 0
    assert result["zipf"]["reuse"]["wan_bytes_per_s"] < result["zipf"]["alone"]["wan_bytes_per_s"]


def test_the_same_seed_gives_the_same_figures(result):
    again = run_figures(read, [np.linspace(0, 1, 50)], TINY, 1, lambda what, done, total: None, only=("figure10",))

    assert json.dumps(again["figure10"]) == json.dumps(result["figure10"])


def test_the_page_names_every_experiment(result):
    text = as_text(result)

    for title in ("Figures 10 and 11", "Figure 12", "Figure 13", "Many queries over popular sources"):
        assert title in text
    assert "nan" not in text


def test_the_page_fits_a_terminal(result, capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    print_document(as_text(result))
    lines = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()

    assert [line for line in lines if len(line) > 80] == []
    assert "group  alone  shared  with multicasts  saved  bytes/s between nodes saved" in lines


def test_pictures_are_drawn(result, tmp_path):
    pytest.importorskip("matplotlib")
    from sbon_testbed.figures.plots import draw_figure10, draw_figure11, draw_figure12, draw_figure13, draw_zipf

    for name, draw, values in (
        ("10", draw_figure10, result["figure10"]),
        ("11", draw_figure11, result["figure10"]),
        ("12", draw_figure12, result["figure12"]),
        ("13", draw_figure13, result["figure13"]),
        ("zipf", draw_zipf, result["zipf"]),
    ):
        draw(tmp_path / f"{name}.png", values)
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
