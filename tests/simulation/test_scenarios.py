"""Whole scenarios with real agents in virtual time: they go as expected, and a seed says everything."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

SCENARIOS = Path(__file__).resolve().parents[2] / "testbed" / "scenarios"


def start(json_file, out, hash_seed, *more):
    command = [
        sys.executable,
        "-m",
        "sbon.cli",
        "testbed",
        "run",
        str(SCENARIOS / "ocean.toml"),
        "--json",
        str(json_file),
        "--out",
        str(out),
        "-q",
    ]
    return subprocess.Popen(
        [*command, *more], env={**os.environ, "PYTHONHASHSEED": str(hash_seed)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def finish(process):
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, (out + err).decode()


def test_a_scenario_goes_as_it_expects_and_the_same_seed_writes_the_same_bytes(tmp_path):
    """Different hash seeds: nothing may depend on the order of a set. The agents' logs, with their virtual times, must agree too."""
    runs = [start(tmp_path / f"{seed}.json", tmp_path / f"out{seed}", seed) for seed in (1, 2)]
    for run in runs:
        finish(run)
    first, second = ((tmp_path / f"{seed}.json").read_bytes() for seed in (1, 2))
    assert first == second
    assert (tmp_path / "out1" / "agents.log").read_bytes() == (tmp_path / "out2" / "agents.log").read_bytes()
    result = msgspec.json.decode(first)
    assert result["problems"] == []
    assert result["migrations"]["total"] >= 1
    assert str(tmp_path) not in first.decode()


def test_another_seed_gives_another_run(tmp_path):
    runs = [start(tmp_path / f"{seed}.json", tmp_path / f"out{seed}", 0, "--seed", str(seed), "--duration", "10") for seed in (7, 8)]
    results = []
    for seed, run in zip((7, 8), runs, strict=True):
        run.communicate(timeout=600)
        results.append(msgspec.json.decode((tmp_path / f"{seed}.json").read_bytes()))
    assert results[0]["coordinates"] != results[1]["coordinates"]
    assert results[0]["skipped"] == ["4 statements and events after the end at 10 s"]


@pytest.mark.soak
def test_a_scenario_moves_operators_and_loses_nothing(tmp_path):
    """What the same scenario does in network namespaces, where it runs as root in every run."""
    result = tmp_path / "wan.json"
    command = [sys.executable, "-m", "sbon.cli", "testbed", "run", str(SCENARIOS / "wan.toml"), "--json", str(result), "-q"]
    subprocess.run(command, check=True, capture_output=True, timeout=600)

    told = [event["what"] for event in msgspec.json.decode(result.read_bytes())["events"]]
    assert [what for what in told if what.startswith("migrated 2 of 2 operators of counts") or what.startswith("migrated 1 of 2")]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["nowhere.toml"], 1, "cannot read the scenario nowhere.toml"),
        ([str(SCENARIOS / "ocean.toml"), "--nodes", "99"], 2, "nodes = 99"),
        ([str(SCENARIOS / "ocean.toml"), "--backend", "moon"], 2, "moon"),
        ([str(SCENARIOS / "ocean.toml"), "--duration", "0"], 2, "--duration 0, expected seconds above 0"),
    ],
)
def test_mistakes_are_one_line(tmp_path, arguments, code, words):
    done = subprocess.run(
        [sys.executable, "-m", "sbon.cli", "testbed", "run", *arguments], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == code
    assert words in done.stderr
    assert done.stderr.strip().count("\n") == 0
