"""`sbon bench peers` without Flink: refusals, the rows that Flink computes, its answers, and the figures."""

import sys
from pathlib import Path

import duckdb
import polars as pl
import pytest

from sbon.cli.__main__ import run
from sbon.errors import ConfigError, SbonError
from sbon_testbed.bench import flink_job
from sbon_testbed.bench.flink import answers, computed, flink
from sbon_testbed.bench.peers import ATTEMPTS, Took, _difference, _figures, measure, show
from sbon_testbed.bench.supply import Supply
from sbon_testbed.bench.workloads import expected


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the bench believe that the machine has Java."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("", "--flink is not given, expected a Python that has Flink: python3.11 -m venv flink && flink/bin/pip install apache-flink"),
        (f"--flink {sys.executable}", "has no Flink (ModuleNotFoundError: No module named 'pyflink'): python3.11 -m venv flink"),
        ("--flink /nowhere/python", "--flink /nowhere/python has no Flink (No such file or directory): python3.11 -m venv"),
        ("--workload W4", "--workload W4, expected one of W1, W2, W3"),
        ("--source parquet", "--source parquet, expected one of csv, generated"),
        ("--rows 1", "--rows 1, expected 1000 to"),
        ("--runs 0", "--runs 0, expected at least 1"),
    ],
)
@pytest.mark.usefixtures("java")
def test_what_is_missing_is_one_line_that_says_what_to_do(arguments: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "peers", *arguments.split()]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert told in line


def test_a_machine_without_java_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match="there is no Java on this machine, which Flink needs"):
        measure(sys.executable)


@pytest.mark.usefixtures("java")
def test_a_job_that_fails_is_told_with_its_reason(tmp_path: Path) -> None:
    """The Python has a package pyflink that contains only a version."""
    (tmp_path / "pyflink").mkdir()
    (tmp_path / "pyflink" / "__init__.py").touch()
    (tmp_path / "pyflink" / "version.py").write_text("__version__ = '0.0'\n")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    with flink(str(python), tmp_path) as peer:
        assert peer.version == "0.0"
        assert peer.cpu_s() > 0
        with pytest.raises(SbonError, match=r"Flink: ModuleNotFoundError: No module named 'pyflink\.common'"):
            peer.run("W1", rows=1_000)
        peer._process.kill()
        with pytest.raises(SbonError, match="Flink has ended: it wrote nothing"):
            peer.run("W1", rows=1_000)


def test_rows_are_those_that_the_sql_of_the_job_computes() -> None:
    for work, sources in flink_job.SOURCES.items():
        for source, rows in zip(sources, computed(work, 20_001), strict=True):
            factor, added, modulo = flink_job.KEYS[source]
            found = duckdb.execute(
                f"SELECT {flink_job.START_MS} + i // {flink_job.ROWS_PER_MS} AS ms, (i * {factor} + {added}) % {modulo} AS key, "
                f"(i * {flink_job.VALUE_FACTOR}) % {flink_job.VALUES} / {flink_job.VALUES} AS value FROM range(20001) r(i) ORDER BY i"
            ).fetchall()
            assert rows.select(pl.col("ts").dt.timestamp("ms"), "key", "value").rows() == found
    assert expected("W1", computed("W1", 200_000)).height == pytest.approx(25_000, rel=0.02)


def test_answers_of_flink_are_read_from_the_files_of_its_sink(tmp_path: Path) -> None:
    (tmp_path / "part-0").write_text("2023-11-14 22:13:21,7,2,1.5E-4,0.25\n")
    (tmp_path / "part-1").write_text("2023-11-14 22:13:21.5,8,1,0.5,0.5\n")
    (tmp_path / ".part-0.crc").write_bytes(b"\x00\xff")
    (tmp_path / "part-2").touch()
    schema = expected("W2", computed("W2", 1_000)).schema
    assert answers(tmp_path, schema).rows() == [
        (pl.Series(["2023-11-14 22:13:21"]).str.to_datetime()[0], 7, 2, 1.5e-4, 0.25),
        (pl.Series(["2023-11-14 22:13:21.5"]).str.to_datetime()[0], 8, 1, 0.5, 0.5),
    ]
    assert answers(tmp_path / "none", schema).is_empty()


def test_ratios_are_taken_run_by_run(capsys: pytest.CaptureFixture[str]) -> None:
    """In the second run the machine is half as fast, so both engines take twice as long."""
    ours = [Took(100, 1.0, 1.5), Took(100, 2.0, 3.0), Took(100, 1.0, 1.5)]
    theirs = [Took(50, 1.5, 3.0), Took(50, 3.0, 6.0), Took(50, 1.5, 3.0)]
    figures = _figures({"sbon": ours, "flink": theirs})
    assert figures == {
        "sbon": {"rows_per_s": 100, "rows_per_cpu_s": 67, "cores_used": 1.5},
        "flink": {"rows_per_s": 33, "rows_per_cpu_s": 17, "cores_used": 2.0},
        "ratio": 3.0,
        "ratio_per_cpu_s": 4.0,
    }
    one = {"workload": "W1", "source": "csv", "rows": 100, **figures, "answers_equal": {"sbon": True, "flink": False}}
    show({"flink": "2.3.0", "runs": 3, "figures": [one]})
    assert "WRONG: flink" in capsys.readouterr().out


def test_a_small_run_that_took_longer_than_the_large_one_is_run_again() -> None:
    few, many = (Supply("fresh", rows, [["a = 'b'"]], [], []) for rows in (10, 100))
    took = iter([Took(10, 3.0, 1.0), Took(100, 2.0, 2.0), Took(10, 1.0, 1.0), Took(100, 4.0, 3.0)])
    assert _difference("sbon", lambda _: next(took), few, many) == Took(90, 3.0, 2.0)
    took = iter([Took(10, 3.0, 1.0), Took(100, 2.0, 2.0)] * ATTEMPTS)
    with pytest.raises(SbonError, match="sbon: 10 rows took longer than 100, 3 times: use more rows"):
        _difference("sbon", lambda _: next(took), few, many)
