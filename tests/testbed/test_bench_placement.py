"""`sbon bench placement`: which figures it gives, whatever the speed of the machine."""

import json

import pytest

import sbon_testbed.bench.placement as bench
from sbon.cli.__main__ import run
from sbon.errors import ConfigError


def test_the_command_tells_times_and_memory(capsys):
    assert run(["bench", "placement", "--nodes", "600", "--operators", "3", "--queries", "4", "--json"]) == 0

    result = json.loads(capsys.readouterr().out)
    assert (result["nodes"], result["operators"], result["queries"], result["seed"]) == (600, 3, 4, 1)
    assert result["milliseconds_median"] > 0
    assert result["milliseconds_p99"] is None  # four queries are too few
    assert result["index_s"] > 0
    assert result["peak_memory_mb"] >= result["memory_mb_before_the_space"] > 0
    bench.show(result)
    assert capsys.readouterr().out.splitlines()[1].split()[:3] == ["600", "3", "4"]


@pytest.mark.parametrize(("nodes", "operators", "queries", "named"), [(1, 1, 1, "nodes"), (9, 0, 1, "operators"), (9, 1, 0, "queries")])
def test_numbers_out_of_range_are_named(nodes, operators, queries, named):
    with pytest.raises(ConfigError, match=f"--{named} "):
        bench.measure(nodes, operators, queries, 1)


def test_fewer_nodes_than_producers_are_enough():
    assert bench.measure(2, 12, 1, 1, progress=False)["milliseconds_median"] > 0
