"""Telemetry on a real disk: writers are killed, disks are full, agents crash. Readers never see a partial file."""

import json
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from sbon.telemetry.rows import Load, Probe
from sbon_agent.telemetry.spool import Spool, encode_line
from sbon_agent.telemetry.writer import convert_all
from tests.processes import Process, wait_until

HOUR_US = 3_600_000_000
SEVEN_US = 1_795_244_400_000_000
ROWS = 400


def filled(directory: Path) -> Path:
    """Makes a spool with closed pieces of two kinds and several hours; every second row is a probe."""
    spool = Spool(directory, "a", "00c0ffee", 2**12, 2**30)
    for number in range(1, ROWS + 1):
        time_us = SEVEN_US + number * HOUR_US // 100
        row = Probe("n", float(number), 1.0) if number % 2 else Load(0.5, 0.1, 1.0, 2, 3, 0)
        spool.append([(time_us // HOUR_US, encode_line(time_us, number, row))])
    spool.close()
    return directory


def sequences(directory: Path) -> list[int]:
    """Returns the sequence numbers of all rows in all files; raises for an incomplete file."""
    found = [pl.read_parquet(path, hive_partitioning=False) for path in directory.rglob("*.parquet")]
    return sorted(number for frame in found for number in frame["sequence"].to_list())


def writer(directory: Path, before: str = "") -> subprocess.CompletedProcess[str]:
    imports = "import os, resource, signal, sys\nimport sbon_agent.telemetry.writer as writer"
    program = f"{imports}\n{before}\nsys.exit(writer.main(sys.argv[1:]))"
    return subprocess.run([sys.executable, "-c", program, str(directory)], capture_output=True, text=True, timeout=300, check=False)


KILL_AT = """
calls = 0
def killing(work):
    def step(*arguments, **options):
        global calls
        calls += 1
        if calls == {call}:
            os.kill(os.getpid(), signal.SIGKILL)
        return work(*arguments, **options)
    return step
"""


@pytest.mark.parametrize(
    ("step", "call"),
    [
        ("writer.write_all = killing(writer.write_all)", 2),  # nothing of the second file exists
        ("writer.os.fsync = killing(writer.os.fsync)", 3),  # the third file is complete, under its temporary name
        ("writer.Path.unlink = killing(writer.Path.unlink)", 2),  # all files of the second piece exist, and so does the piece
    ],
)
def test_a_writer_that_is_killed_leaves_no_half_file_and_loses_nothing(tmp_path, step, call):
    directory = filled(tmp_path)

    killed = writer(directory, KILL_AT.format(call=call) + step)
    seen = sequences(directory)
    again = writer(directory)

    assert killed.returncode == -9
    assert 0 < len(seen) < ROWS
    assert again.returncode == 0, again.stderr
    assert sequences(directory) == list(range(1, ROWS + 1))
    assert [path.name for path in directory.rglob("*") if path.is_file() and path.suffix != ".parquet"] == [".lock"]


def test_a_full_disk_leaves_no_half_file_and_the_rows_in_the_spool(tmp_path):
    directory = filled(tmp_path)
    size = 3000  # size of a file; the piece's files are larger

    refused = writer(directory, f"resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))")
    assert refused.returncode == 1
    assert refused.stderr.startswith("cannot write telemetry: ")
    assert len(refused.stderr.splitlines()) == 1
    seen = sequences(directory)
    assert not list(directory.rglob("*.tmp"))

    assert writer(directory).returncode == 0
    assert len(seen) < ROWS
    assert sequences(directory) == list(range(1, ROWS + 1))


def test_two_writers_at_once_do_not_meet(tmp_path):
    directory = filled(tmp_path)
    command = [sys.executable, "-m", "sbon_agent.telemetry.writer", "--running", str(directory)]

    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    said = [json.loads(process.communicate(timeout=300)[0]) for process in both]

    assert [process.returncode for process in both] == [0, 0]
    assert sum(outcome["rows"] for outcome in said) == ROWS
    assert sequences(directory) == list(range(1, ROWS + 1))


def test_a_line_that_a_full_disk_has_cut_off_costs_no_other(tmp_path):
    program = """
import resource, sys
from pathlib import Path
from sbon_agent.telemetry.spool import Spool, encode_line
from sbon.telemetry.rows import Probe
spool = Spool(Path(sys.argv[1]), "a", "00c0ffee", 2**20, 2**30)
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
refused = 0
for number in range(1, 41):
    if number == 31:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    try:
        spool.append([(1, encode_line(3_600_000_000 + number, number, Probe("n", 1.0, 1.0)))])
    except OSError:
        refused += 1
spool.close()
print(refused)
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=300, check=True)
    outcome = convert_all([tmp_path])

    refused = int(done.stdout)
    assert 0 < refused < 30
    assert outcome.lines_damaged == 1
    assert sequences(tmp_path) == [*range(1, 31 - refused), *range(31, 41)]


def settings(directory: Path, text: str) -> str:
    config = directory / "agent.toml"
    config.write_text(text)
    return str(config)


def kinds(directory: Path) -> set[str]:
    return {path.parts[-4].partition("=")[2] for path in directory.glob("kind=*/date=*/hour=*/*.parquet")}


@pytest.fixture
def start(tmp_path):
    processes: list[Process] = []

    def run(name: str, *options: str) -> Process:
        processes.append(Process(tmp_path, name, "--bind", "127.0.0.1:0", *options))
        return processes[-1]

    yield run
    for process in processes:
        if process.process.poll() is None:
            process.process.kill()
        process.process.communicate()


def test_an_agent_writes_large_pieces_while_it_runs_and_the_rest_at_its_end(start, tmp_path):
    config = settings(tmp_path, "[telemetry]\nflush_interval_s = 0.05\npiece_bytes_max = 1024\n[engine]\nsample_interval_s = 0.02\n")
    agent = start("a", "--config", config).wait_until_ready()
    telemetry = agent.directory / "telemetry"

    wait_until(lambda: agent.ask("status")["counters"]["telemetry_files"] >= 2)
    counters = agent.ask("status")["counters"]
    assert agent.end() == 0

    assert counters["telemetry_writer_failures"] == counters["telemetry_lines_damaged"] == 0
    found = sequences(telemetry)
    assert found == list(range(1, len(found) + 1))
    assert len(found) > counters["telemetry_rows_written"]
    assert kinds(telemetry) == {"agents", "coordinates", "load"}
    assert [path.name for path in (telemetry / "spool").iterdir()] == [".lock"]


def test_what_a_crash_leaves_is_written_at_the_next_start(start, tmp_path):
    config = settings(tmp_path, "[telemetry]\nflush_interval_s = 0.05\n[engine]\nsample_interval_s = 0.02\n")
    first = start("a", "--config", config).wait_until_ready()
    telemetry = first.directory / "telemetry"
    wait_until(lambda: sum(len(path.read_bytes()) for path in telemetry.glob("spool/*.open")) > 1000)
    first.process.kill()
    first.process.wait()
    left = {path.name for path in telemetry.glob("spool/*.open")}
    assert left

    second = start("a", "--config", config).wait_until_ready()
    wait_until(lambda: "load" in kinds(telemetry) and not left & {path.name for path in telemetry.glob("spool/*")})

    files = sorted(telemetry.glob("kind=load/*/*/*.parquet"))
    rows = pl.read_parquet(files[0], hive_partitioning=False)
    assert second.ask("status")["counters"]["telemetry_lines_damaged"] <= 1  # the line that was being written
    assert rows.height > 0
    assert rows["start"].n_unique() == 1
    assert second.end() == 0
    both = pl.concat([pl.read_parquet(path, hive_partitioning=False) for path in telemetry.glob("kind=agents/*/*/*.parquet")])
    assert sorted(both["event"]) == ["started", "started", "stopped"]
    assert both["start"].n_unique() == 2


def test_a_writer_that_fails_is_counted_said_once_and_no_matter_to_the_agent(start, tmp_path):
    config = settings(tmp_path, "[telemetry]\nflush_interval_s = 0.05\npiece_bytes_max = 1024\n[engine]\nsample_interval_s = 0.02\n")
    obstacle = tmp_path / "a" / "telemetry" / "kind=load"
    obstacle.parent.mkdir(parents=True)
    obstacle.write_text("a file where a folder should be")
    agent = start("a", "--config", config).wait_until_ready()

    wait_until(lambda: agent.ask("status")["counters"]["telemetry_writer_failures"] >= 2)
    counters = agent.ask("status")["counters"]

    assert counters["telemetry_records_dropped"] == counters["callbacks_failed"] == 0
    assert agent.events().count("telemetry.writer_failed") == 1
    obstacle.unlink()
    wait_until(lambda: "telemetry.writer_resumed" in agent.events())
    assert agent.end() == 0
    found = sequences(agent.directory / "telemetry")
    assert found == list(range(1, len(found) + 1))
