"""`sbon bench input` on real agents, with few rows."""

import json
import os
import signal
import socket
import subprocess
import sys

import psutil
import pytest

import sbon_testbed.bench.input as bench
from sbon.cli.__main__ import run
from sbon.errors import ConfigError, SbonError
from sbon_testbed.bench.broker import broker, mosquitto
from sbon_testbed.bench.input_limits import cat, polars_thread
from sbon_testbed.bench.rows import FORMS, write_workload
from sbon_testbed.bench.runs import Cost
from sbon_testbed.bench.sender import BODY_BYTES, bodies
from sbon_testbed.bench.supply import sending
from tests.examples import seeds


@pytest.fixture(autouse=True)
def _few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "CHECKED_ROWS", 210_000)


def test_one_part_is_measured_beside_its_limits_and_written_to_a_file(tmp_path, capsys):
    path = tmp_path / "input.json"
    arguments = ["--source", "csv-iso", "--workload", "W2", "--sink", "csv", "--rows", "20000"]

    assert run(["bench", "input", *arguments, "--json", str(path)]) == 0

    result = json.loads(path.read_text())
    (one,) = result["figures"]
    assert (one["source"], one["workload"], one["sink"]) == ("csv-iso", "W2", "csv")
    assert one["answers_equal"] is True
    assert one["rows"] == 20_000
    assert one["bytes"] > 20_000 * 30
    assert all(one[key] > 0 for key in ("rows_per_s", "rows_per_cpu_s", "polars_rows_per_s", "polars_rows_per_cpu_s", "cat_rows_per_s"))
    out, err = capsys.readouterr()
    assert "right" in out
    assert "csv-iso, W2, csv: 20,000 rows, 1 run" in err


@pytest.mark.parametrize(("source", "sink"), seeds([("http", "ndjson"), ("fresh", "discard")], [("mqtt", "parquet")]))
def test_rows_that_are_posted_published_or_made_come_out_right(source, sink):
    if source == "mqtt" and mosquitto() is None:
        pytest.skip("no mosquitto on this machine")

    (one,) = bench.measure([source], ["W2"], [sink], rows=20_000)["figures"]

    assert one["answers_equal"] is True
    assert one["rows_per_s"] > 0
    assert ("cat_rows_per_s" in one) == (source != "fresh")


def test_wrong_answers_are_told_and_fail(monkeypatch, capsys):
    monkeypatch.setattr(bench, "answers_equal", lambda *_: False)

    assert run(["bench", "input", "--source", "parquet", "--workload", "W1", "--sink", "discard", "--rows", "1000"]) == 1

    assert "WRONG" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"sources": ["pool"]}, "--source pool, expected one of fresh, csv, csv-iso, ndjson, parquet, tcp, http, mqtt"),
        ({"workloads": ["W4"]}, "--workload W4, expected one of W1, W2, W3"),
        ({"sinks": ["tcp"]}, "--sink tcp, expected one of discard, parquet, csv, ndjson"),
        ({"rows": 10}, "--rows 10, expected 1000 to"),
        ({"runs": 0}, "--runs 0, expected at least 1"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments, told):
    with pytest.raises(ConfigError, match=told):
        bench.measure(**arguments)


def test_a_machine_without_a_broker_leaves_mqtt_out_or_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "mosquitto", lambda: None)
    monkeypatch.setattr("sbon_testbed.bench.broker.mosquitto", lambda: None)
    asked: list[str] = []
    monkeypatch.setattr(bench, "_measured", lambda kind, *_: asked.append(kind) or [])
    told: list[str] = []
    bench.measure(progress=told.append)
    assert "mqtt" not in asked
    assert told == ["mqtt is left out: there is no mosquitto on this machine"]
    with pytest.raises(SbonError, match="install it, or leave out the source mqtt"), broker(tmp_path / "broker"):
        pass


@pytest.mark.parametrize("form", list(FORMS))
def test_the_limits_are_those_of_the_same_rows(form, tmp_path):
    [[path]] = write_workload(tmp_path, "W1", form, 3_000)
    assert polars_thread(form, [path], 3_000).wall_s > 0
    assert cat([path]).wall_s > 0
    with pytest.raises(SbonError, match=f"polars has read 3000 rows from {path.name} and the other files, expected 2999"):
        polars_thread(form, [path], 2_999)
    with pytest.raises(SbonError, match="cat ended with 1"):
        cat([tmp_path / "missing"])


def test_what_is_beside_polars_is_taken_run_by_run():
    costs = [Cost(100, 1.0, 2.0), Cost(100, 1.0, 4.0), Cost(100, 1.0, 3.0)]
    limits = [(bench.Limit(1.0, 1.0), bench.Limit(0.1, 0.1)), (bench.Limit(2.0, 2.0), bench.Limit(0.2, 0.1)), (bench.Limit(1.0, 1.0),) * 2]
    assert bench._beside(costs, limits) == {
        "polars_rows_per_s": 100,
        "polars_rows_per_cpu_s": 100,
        "cat_rows_per_s": 500,
        "cpu_by_polars": 2.0,
    }


def test_bodies_are_all_lines_whole_and_no_larger_than_a_source_takes(tmp_path):
    path = tmp_path / "rows.ndjson"
    path.write_bytes(b"".join(b'{"n": %d}\n' % number for number in range(100_000)))
    found = list(bodies(path))
    assert b"".join(found) == path.read_bytes()
    assert len(found) > 1
    assert all(body.endswith(b"\n") and len(body) <= BODY_BYTES + 100 for body in found)


def test_a_sender_ends_with_its_run(tmp_path):
    path = tmp_path / "rows.ndjson"
    path.touch()
    with socket.create_server(("127.0.0.1", 0)) as server:
        with sending([["tcp", str(server.getsockname()[1]), str(path), "0"]]) as senders:
            senders.check()
            (process,) = senders._processes
        assert process.returncode == -signal.SIGKILL


def test_a_sender_that_has_failed_is_told(tmp_path):
    with pytest.raises(SbonError, match="ended at its start, with status 1"), sending([["http", "none", str(tmp_path / "rows"), "0"]]):
        pass


def test_ctrl_c_leaves_neither_files_nor_processes(tmp_path):
    command = [sys.executable, "-P", "-m", "sbon.cli", "bench", "input", "--source", "csv", "--workload", "W1", "--rows", "1000000"]
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "1,000,000 rows, 1 run" in line:
                break
        children = psutil.Process(process.pid).children(recursive=True)
        assert children
        assert list(tmp_path.iterdir())
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    assert process.returncode == 130, error
    assert "Traceback" not in error
    assert not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children)
    assert list(tmp_path.iterdir()) == []
