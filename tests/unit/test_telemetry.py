"""Measurements on disk: bounded, off the agent's thread, and never the agent's problem."""

import json
from collections.abc import Callable
from datetime import UTC, datetime

import numpy as np
import pytest

from agent.telemetry import Telemetry, TelemetryConfig, prune

SEVEN = datetime(2026, 11, 21, 7, 59, 58, tzinfo=UTC).timestamp()


class Bench:
    """Just enough of a host: time stands still until told, work waits until run."""

    def __init__(self) -> None:
        self.time = 0.0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.work: list[Callable[[], None]] = []

    def now(self) -> float:
        return self.time

    def wall(self) -> float:
        return SEVEN + self.time

    def call_at(self, when, callback):
        entry = (when, callback)
        self.timers.append(entry)

        class Timer:
            def cancel(timer) -> None:  # noqa: N805
                if entry in self.timers:
                    self.timers.remove(entry)

        return Timer()

    def execute(self, work, done, *, rows):
        def step() -> None:
            try:
                outcome = work()
            except OSError as problem:
                outcome = problem
            done(outcome)

        self.work.append(step)

    def pass_time(self, seconds: float) -> None:
        self.time += seconds
        due = [entry for entry in self.timers if entry[0] <= self.time]
        self.timers = [entry for entry in self.timers if entry[0] > self.time]
        for _, callback in due:
            callback()

    def finish_work(self) -> None:
        steps, self.work = self.work, []
        for step in steps:
            step()


def lines(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_records_go_to_a_file_of_their_kind_and_hour(tmp_path):
    bench = Bench()
    telemetry = Telemetry(TelemetryConfig(flush_interval_s=5), tmp_path, bench)

    telemetry.record("probe", peer="n7", rtt_ms=31.25)
    bench.pass_time(5)
    telemetry.record("probe", peer="n8", rtt_ms=np.float64(1.5))
    bench.finish_work()
    bench.pass_time(5)
    bench.finish_work()

    assert lines(tmp_path / "probe" / "2026-11-21T07.ndjson") == [{"time_s": SEVEN, "peer": "n7", "rtt_ms": 31.25}]
    assert lines(tmp_path / "probe" / "2026-11-21T08.ndjson") == [{"time_s": SEVEN + 5, "peer": "n8", "rtt_ms": 1.5}]
    assert bench.timers == []


def test_full_buffer_drops_and_counts(tmp_path):
    bench = Bench()
    telemetry = Telemetry(TelemetryConfig(buffer_records_max=3), tmp_path, bench)

    for i in range(5):
        telemetry.record("rate", i=i)

    assert telemetry.counters == {"records": 3, "records_dropped": 2, "write_failures": 0}


def test_disk_that_refuses_is_counted_said_once_and_tried_again(tmp_path, capsys):
    bench = Bench()
    directory = tmp_path / "telemetry"
    directory.write_text("a file where a folder should be")
    telemetry = Telemetry(TelemetryConfig(), directory, bench)

    for _ in range(3):
        telemetry.record("rate", rows_per_s=1.0)
        telemetry.flush()
        bench.finish_work()
    assert telemetry.counters == {"records": 3, "records_dropped": 3, "write_failures": 3}

    directory.unlink()
    telemetry.record("rate", rows_per_s=2.0)
    telemetry.flush()
    bench.finish_work()

    assert [line["rows_per_s"] for line in lines(directory / "rate" / "2026-11-21T07.ndjson")] == [2.0]
    said = "".join(capsys.readouterr())
    assert said.count("telemetry.write_failed") == 1
    assert said.count("telemetry.resumed") == 1


def test_close_writes_what_waits_and_takes_no_more(tmp_path):
    bench = Bench()
    telemetry = Telemetry(TelemetryConfig(), tmp_path, bench)

    telemetry.record("migration", operator="q.2")
    telemetry.close()
    telemetry.record("migration", operator="q.3")

    assert [line["operator"] for line in lines(tmp_path / "migration" / "2026-11-21T07.ndjson")] == ["q.2"]
    assert bench.timers == []


@pytest.mark.parametrize("config", [TelemetryConfig(enabled=False), TelemetryConfig()])
def test_without_a_directory_or_switched_off_nothing_is_kept(tmp_path, config):
    bench = Bench()
    telemetry = Telemetry(config, tmp_path if not config.enabled else None, bench)

    telemetry.record("rate", rows_per_s=1.0)
    telemetry.close()

    assert (list(tmp_path.iterdir()), bench.timers, telemetry.counters["records"]) == ([], [], 0)


def test_kind_that_would_leave_the_folder_is_a_bug_and_said_so(tmp_path):
    with pytest.raises(ValueError, match="kind of record"):
        Telemetry(TelemetryConfig(), tmp_path, Bench()).record("../etc", x=1)


def test_old_hours_go_first_by_age_then_by_size_and_strangers_stay(tmp_path):
    (tmp_path / "rate").mkdir()
    sizes = {"2026-11-19T06": 10, "2026-11-21T05": 1000, "2026-11-21T06": 1000, "2026-11-21T07": 5000}
    for hour, size in sizes.items():
        (tmp_path / "rate" / f"{hour}.ndjson").write_bytes(b"x" * size)
    (tmp_path / "rate" / "notes.ndjson").write_bytes(b"mine")

    gone = prune(tmp_path, keep_hours=24, total_bytes_max=6000, wall_s=SEVEN)

    assert [path.stem for path in gone] == ["2026-11-19T06", "2026-11-21T05"]
    assert sorted(path.name for path in (tmp_path / "rate").iterdir()) == [
        "2026-11-21T06.ndjson",
        "2026-11-21T07.ndjson",
        "notes.ndjson",
    ]
