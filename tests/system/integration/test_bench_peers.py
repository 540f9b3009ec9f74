"""`sbon bench peers` with a real Flink, if `SBON_FLINK` names a Python that has it."""

import json
import os

import pytest

import sbon_testbed.bench.peers as bench
from sbon.cli.__main__ import run
from sbon_testbed.bench.agent_process import one_agent

FLINK = os.environ.get("SBON_FLINK", "")


@pytest.mark.skipif(not FLINK, reason="SBON_FLINK names no Python with apache-flink")
@pytest.mark.slow
def test_both_give_right_answers_and_are_measured(capsys):
    assert run(["bench", "peers", "--flink", FLINK, "--rows", "400000", "--runs", "1", "--json"]) == 0

    result = json.loads(capsys.readouterr().out)
    assert [(one["workload"], one["source"]) for one in result["figures"]] == [(w, s) for w in ("W1", "W2", "W3") for s in bench.SOURCES]
    for one in result["figures"]:
        assert one["answers_equal"] == {"sbon": True, "flink": True}
        assert one["ratio"] > 0
        assert one["ratio_per_cpu_s"] > 0


@pytest.mark.parametrize("kind", bench.SOURCES)
def test_sbon_reads_the_union_of_two_files_and_makes_keys_that_are_equally_often(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "CHECKED_ROWS", 120_000)
    with one_agent() as agent:
        assert bench._sbon_right(agent, "W2", kind, tmp_path)
        took = bench._sbon(agent, "W2", bench._supply("W2", kind, 50_000, tmp_path))
    assert took.rows == 50_000
    assert took.wall_s > 0
    assert took.cpu_s > 0
