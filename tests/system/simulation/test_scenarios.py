"""Whole scenarios with real agents in virtual time: they meet their expectations, and the seed determines the whole run."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from sbon.cli.__main__ import run
from tests.examples import seeds

SCENARIOS = Path(__file__).resolve().parents[3] / "testbed" / "scenarios"


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


@pytest.mark.parametrize("more", seeds([["--duration", "40"]], [[]]), ids=["without the crash", "all of it"])
def test_a_scenario_goes_as_it_expects(tmp_path, more):
    finish(start(tmp_path / "it.json", tmp_path / "out", 1, *more))
    said = (tmp_path / "it.json").read_bytes()
    result = msgspec.json.decode(said)
    assert result["problems"] == []
    assert result["migrations"]["total"] >= 1
    assert str(tmp_path) not in said.decode()


def test_the_same_seed_writes_the_same_bytes_and_another_seed_gives_another_run(tmp_path):
    """Different hash seeds: nothing may depend on the order of a set. The agents' logs, with their virtual times, must agree too."""
    chosen = {"one": 7, "again": 7, "other": 8}
    runs = [
        start(tmp_path / f"{name}.json", tmp_path / f"out-{name}", number, "--seed", str(seed), "--duration", "5")
        for number, (name, seed) in enumerate(chosen.items())
    ]
    for process in runs:
        process.communicate(timeout=600)
    one, again, other = ((tmp_path / f"{name}.json").read_bytes() for name in chosen)
    assert one == again
    assert (tmp_path / "out-one" / "agents.log").read_bytes() == (tmp_path / "out-again" / "agents.log").read_bytes()
    results = [msgspec.json.decode(said) for said in (one, other)]
    assert results[0]["coordinates"] != results[1]["coordinates"]
    assert results[0]["skipped"] == ["4 statements and events after the end at 5 s"]


@pytest.mark.soak
def test_a_scenario_moves_operators_and_loses_nothing(tmp_path):
    """The same scenario also runs in network namespaces, in runs as root."""
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
def test_mistakes_are_one_line(tmp_path, monkeypatch, capsys, arguments, code, words):
    monkeypatch.chdir(tmp_path)
    assert run(["testbed", "run", *arguments]) == code
    told = capsys.readouterr().err
    assert words in told
    assert told.strip().count("\n") == 0
