"""The report of whole and damaged logs, and of parts of logs."""

import re
import shutil
import signal
import subprocess
import sys
from datetime import UTC, datetime

import numpy as np
import polars as pl
import psutil
import pytest

from sbon.analysis.hindsight import FlowLink, Moment, delay_ms, least_usage_bytes, usage_bytes
from sbon.analysis.workbench import moment_width_s
from sbon.cli.__main__ import run
from sbon.telemetry.frames import METADATA
from sbon_testbed.telemetry.generator import generate
from tests.examples import seeds
from tests.processes import runs, wait_until


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    """Returns a log of four agents over six minutes."""
    log = tmp_path_factory.mktemp("short")
    generate(log, agents=4, hours=0.1, queries=2, probe_interval_s=5, seed=2)
    return log


def test_report_needs_nothing_but_itself(analysed):
    assert not re.findall(r'(?:src|href)="(?!data:|#)[^"]*"', analysed.html)
    assert "<script" not in analysed.html
    assert "url(" not in analysed.html
    assert analysed.html.count("data:image/svg+xml;base64,") >= 10


def test_every_plot_has_a_text_with_numbers(analysed):
    cards = re.findall(r'<div class="card">\n<h3>(.*?)</h3>\n<img[^>]*>\n(.*?)</div>', analysed.html, flags=re.S)

    assert len(cards) >= 10
    assert [title for title, text in cards if not re.search(r"<p>.*\d", text) and "Nobody" not in text] == []


def test_file_damaged_inside_is_named_and_the_rest_analysed(short, analyse, tmp_path):
    log = tmp_path / "a log"  # Spark escapes a blank in paths
    shutil.copytree(short, log)
    probes = sorted(log.glob("telemetry/kind=probes/*/*/*.parquet"))
    data = bytearray(probes[0].read_bytes())
    lost = pl.scan_parquet(probes[0]).select(pl.len()).collect().item()
    end = -8 - int.from_bytes(data[-8:-4], "little")  # the footer, which locates the columns, stays intact
    data[4:end] = bytes(255 - byte for byte in data[4:end])
    probes[0].write_bytes(bytes(data))
    # A second copy of another agent's rows must count once.
    shutil.copy(probes[1], probes[1].with_name("copy.parquet"))
    twice = pl.scan_parquet(probes[1]).select(pl.len()).collect().item()

    found = analyse(log, tmp_path / "out")

    named = [problem for problem in found.numbers["problems"] if problem["where"] == str(probes[0])]
    assert "damaged" in named[0]["what"]
    assert str(probes[0]) in found.html
    assert found.numbers["log"]["rows_twice_min"] == twice
    everything = pl.concat([pl.read_parquet(path, columns=["agent"]) for path in short.glob("telemetry/kind=probes/*/*/*.parquet")])
    assert found.numbers["coordinates"]["probes"] == everything.height - lost


def test_only_the_time_asked_for_is_analysed_and_kinds_without_rows_are_left_out(short, analyse, tmp_path):
    log = tmp_path / "log"
    shutil.copytree(short, log)
    for kind in ("links", "operators", "latencies", "placements", "queries", "agents", "members", "reviews"):
        shutil.rmtree(log / "telemetry" / f"kind={kind}", ignore_errors=True)
    since, until = datetime(2026, 11, 1, 0, 2, tzinfo=UTC), datetime(2026, 11, 1, 0, 4, tzinfo=UTC)
    for path in log.glob("telemetry/kind=load/*/*/*.parquet"):  # like older agents, which counted waiting work as use
        old = pl.read_parquet(path, hive_partitioning=False).with_columns(cpu=pl.lit(1.06)).drop("cpu_waiting")
        old.write_parquet(path, metadata=METADATA)
    first, *others = sorted(log.glob("telemetry/kind=migrations/*/*/*.parquet"))
    only = pl.read_parquet(first, hive_partitioning=False).filter("committed").head(1)
    only.with_columns(pl.lit(since).cast(only["time"].dtype).alias("time")).write_parquet(first, metadata=METADATA)
    for path in others:
        path.unlink()

    found = analyse(log, tmp_path / "out", since=since, until=until)

    inside = pl.col("time").is_between(since, until, closed="left")
    expected = {
        kind: pl.scan_parquet(log / "telemetry" / f"kind={kind}").filter(inside).select(pl.len()).collect().item()
        for kind in ("probes", "load")
    }
    assert {kind: found.numbers["log"]["rows_by_kind"][kind] for kind in expected} == expected
    assert found.numbers["network_usage"] == found.numbers["latencies"] == {}
    assert "no query ran, or none in these logs" in found.html
    assert (found.numbers["migrations"]["committed"], found.numbers["migrations"]["measured"]) == (1, 0)
    assert (found.numbers["health"]["mean_cpu"], found.numbers["health"]["mean_cpu_waiting"]) == (1.0, None)
    assert "Agents used 100% of their processors" in found.html


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["missing", "--out", "o"], 1, "no directory missing, expected one with telemetry"),
        (["."], 2, "Missing option '--out'"),
        ([".", "--out", "o", "--since", "noon"], 2, "--since noon, expected a date and time"),
        ([".", "--out", "o", "--since", "2026-01-02", "--until", "2026-01-01"], 2, "is not before"),
        ([".", "--out", "o"], 1, "no telemetry to read in ."),
    ],
)
def test_mistakes_are_one_line(arguments, code, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    assert run(["analyze", "--quiet", *arguments]) == code
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("moment", seeds(["starting Spark"], ["what the log holds"]))
def test_ctrl_c_ends_the_analysis_without_a_word_and_leaves_no_process(spark, moment, short, tmp_path):
    command = [sys.executable, "-m", "sbon.cli", "analyze", str(short), "--out", str(tmp_path / "out")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        said = next(line for line in process.stderr if moment in line)
        wait_until(lambda: psutil.Process(process.pid).children(), timeout_s=120)
        runtimes = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
        assert process.wait(120) == 130, said + rest
    assert "Traceback" not in rest
    assert "Error" not in rest
    wait_until(lambda: not any(runs(runtime.pid) for runtime in runtimes))


@pytest.mark.parametrize(("missing", "name"), [("pyspark", "PySpark"), ("py4j", "PySpark"), ("matplotlib", "matplotlib")])
def test_missing_extra_is_one_line_that_says_how_to_get_it(missing, name, short, tmp_path):
    program = f"import sys; sys.modules[{missing!r}] = None; from sbon.cli.__main__ import run; sys.exit(run(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "analyze", str(short), "--out", str(tmp_path / "out"), "--quiet"]

    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

    assert done.stderr == f"sbon: the analysis needs {name}, which is not installed: pip install 'sbon[analysis]'\n"
    assert (done.returncode, done.stdout) == (1, "")


def test_moments_are_at_most_three_hundred_whatever_the_log_s_length():
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    for seconds in (1, 3000, 86400, 86400 * 365, 86400 * 3650):
        width = moment_width_s(begin, datetime.fromtimestamp(begin.timestamp() + seconds, UTC))
        assert seconds <= 300 * width
        assert width == 10 or seconds > 300 * 10


def test_hindsight_knows_the_best_place_and_unknown_latencies():
    inf = float("inf")
    moment = Moment({"a": 0, "b": 1, "c": 2}, np.array([[0.0, 10.0, 50.0], [10.0, 0.0, inf], [50.0, inf, 0.0]]))
    links = [FlowLink("p", "o", 1000.0), FlowLink("o", "k", 100.0)]

    assert usage_bytes(links, {"p": "a", "o": "b", "k": "c"}, moment) == inf
    assert least_usage_bytes(links, {"p": "b", "k": "a"}, moment) == pytest.approx(1.0)  # o at b: only the output of o crosses the network
    assert least_usage_bytes(links, {"p": "b", "k": "c"}, moment) == pytest.approx(15.0)  # b-c is unknown; the best path goes over a
    assert delay_ms(links, {"p": "b", "o": "a", "k": "c"}, moment) == 60.0
