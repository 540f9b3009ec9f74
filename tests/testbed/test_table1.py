import json

import numpy as np
import pytest

from sbon.cli.__main__ import run as sbon
from sbon_testbed.placement.plots import Curve, _merged
from sbon_testbed.placement.table1 import PAPER, TITLES, markdown, run, table

SMALL = ["--queries", "6", "--seeds", "1,4", "--rounds", "10", "--stub-domains", "8", "--quiet"]


@pytest.fixture(scope="module")
def small():
    return table(run((1, 4), queries=6, rounds=10, stub_domains=8))


def test_the_papers_figures_stand_beside_ours(small):
    """SBON, table 1."""
    figures = {name: small["strategies"][name]["paper"] for name in PAPER}

    assert list(PAPER) == ["optimal", "relaxation", "ip-multicast", "producer", "consumer", "random"]
    assert [row["usage_penalty_mean"] for row in figures.values()] == [0.0, 0.15, 0.27, 0.43, 0.60, 0.81]
    assert [row["delay_penalty_mean"] for row in figures.values()] == [0.13, 0.24, 0.0, 0.75, 0.0, 0.76]
    assert small["strategies"]["least-usage"]["paper"] is None


def test_means_are_those_of_the_seeds(small):
    assert (small["seeds"], small["nodes"], small["queries"]) == ([1, 4], [130, 130], 6)
    for figures in small["strategies"].values():
        one, other = figures["by_seed"]
        assert figures["usage_penalty_mean"] == pytest.approx((one["usage_penalty_mean"] + other["usage_penalty_mean"]) / 2)
        assert min(one["usage_penalty_mean"], other["usage_penalty_mean"]) >= 0.0


def test_the_table_for_readers_has_a_line_for_each_algorithm(small):
    lines = markdown(small).splitlines()

    assert [line.split("|")[1].strip() for line in lines[4:]] == list(TITLES.values())
    assert len({line.count("|") for line in lines[2:]}) == 1
    assert "| 15% |" in next(line for line in lines if "RELAXATION" in line)


def test_the_same_seeds_write_the_same_files(tmp_path, small, capsys):
    pytest.importorskip("matplotlib")
    for name in ("a", "b"):
        assert sbon(["testbed", "table1", "--out", str(tmp_path / name), *SMALL]) == 0

    first, again = ((tmp_path / name / "table1.json").read_bytes() for name in ("a", "b"))
    assert first == again
    assert json.loads(first) == small
    assert (tmp_path / "a" / "table1.md").read_text() == markdown(small)
    assert capsys.readouterr().out == 2 * markdown(small)
    for figure in ("figure8.png", "figure9.png"):
        assert (tmp_path / "a" / figure).read_bytes().startswith(b"\x89PNG")


def test_json_can_be_printed_instead(tmp_path, small, capsys):
    pytest.importorskip("matplotlib")

    assert sbon(["testbed", "table1", "--out", str(tmp_path), "--json", *SMALL]) == 0
    assert json.loads(capsys.readouterr().out) == small


@pytest.mark.parametrize("seeds", ["", "1,x", "1,,2", "-1", "1,1"])
def test_seeds_that_are_none_are_refused(seeds, tmp_path, capsys):
    assert sbon(["testbed", "table1", "--out", str(tmp_path / "out"), f"--seeds={seeds}"]) == 2
    assert "expected up to 100 different whole numbers" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_place_that_cannot_be_written_is_refused_before_the_work(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    (tmp_path / "file").write_text("")

    assert sbon(["testbed", "table1", "--out", str(tmp_path / "file")]) == 1
    error = capsys.readouterr().err
    assert "--out" in error
    assert error.count("\n") == 1


def test_curves_that_are_the_same_are_drawn_once_and_the_others_keep_their_colours():
    zero, one = np.zeros(3), np.ones(3)

    merged = _merged([Curve("a", zero, False), Curve("b", one, False), Curve("c", zero, True), Curve("d", 2 * one, False)])

    assert [(number, curve.title, curve.ours) for number, curve in merged] == [(0, "a, c", True), (1, "b", False), (3, "d", False)]
