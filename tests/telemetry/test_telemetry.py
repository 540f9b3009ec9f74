"""Records of agents on their way to the spool: bounded, counted, never in the way."""

from collections.abc import Callable
from datetime import UTC, datetime

import numpy as np
import pytest

from sbon.telemetry.layout import CLOSED, OPEN
from sbon.telemetry.rows import Load, MulticastChange, Probe
from sbon_agent.telemetry.log import Telemetry, TelemetryConfig
from sbon_agent.telemetry.spool import Line, spooled

SEVEN = datetime(2026, 11, 21, 7, 59, 58, tzinfo=UTC).timestamp()


class Bench:
    """A minimal host: time stands still and work waits until the test says otherwise."""

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


PROBE = Probe("n7", 31.25, 30.0)


def begun(config: TelemetryConfig, directory, bench: Bench) -> Telemetry:
    telemetry = Telemetry(config, directory, bench, "a")
    telemetry.begin("00c0ffee")
    return telemetry


def names(directory) -> list[str]:
    return sorted(path.name for path in (directory / "spool").iterdir())


def test_records_wait_in_pieces_of_an_hour(tmp_path):
    bench = Bench()
    telemetry = begun(TelemetryConfig(flush_interval_s=5), tmp_path, bench)
    ready = []
    telemetry.on_piece = lambda: ready.append(names(tmp_path))

    telemetry.record(PROBE)
    bench.pass_time(5)
    telemetry.record(Probe("n8", float(np.float64(1.5)), 1.0))
    bench.finish_work()
    bench.pass_time(5)
    bench.finish_work()

    assert names(tmp_path) == [f"a-00c0ffee-000001{CLOSED}", f"a-00c0ffee-000002{OPEN}"]
    assert ready == [names(tmp_path)]
    assert sorted(spooled(tmp_path), key=lambda line: line.sequence) == [
        Line(int(SEVEN * 1e6), 1, PROBE),
        Line(int((SEVEN + 5) * 1e6), 2, Probe("n8", 1.5, 1.0)),
    ]
    assert bench.timers == []


def test_a_large_piece_is_closed_before_its_hour_is_over(tmp_path):
    bench = Bench()
    telemetry = begun(TelemetryConfig(piece_bytes_max=1024), tmp_path, bench)

    for number in range(60):
        telemetry.record(PROBE)
        if number % 20 == 19:
            telemetry.flush()
            bench.finish_work()

    assert telemetry.counters["pieces_closed"] == len(names(tmp_path)) == 3
    assert [line.sequence for line in spooled(tmp_path)] == list(range(1, 61))


def test_pieces_that_no_writer_takes_are_bounded(tmp_path):
    bench = Bench()
    telemetry = begun(TelemetryConfig(piece_bytes_max=100_000, total_bytes_max=2**20), tmp_path, bench)

    for _ in range(12):
        for _ in range(2_500):
            telemetry.record(PROBE)
        telemetry.flush()
        bench.finish_work()

    assert telemetry.counters["pieces_closed"] == 12
    assert telemetry.counters["pieces_deleted"] >= 9
    assert sum(path.stat().st_size for path in (tmp_path / "spool").iterdir()) <= 2**18
    assert max(line.sequence for line in spooled(tmp_path)) == 30_000


def test_full_buffer_drops_and_counts_and_leaves_a_gap_in_the_numbers(tmp_path):
    bench = Bench()
    telemetry = begun(TelemetryConfig(buffer_records_max=3), tmp_path, bench)

    for _ in range(5):
        telemetry.record(PROBE)
    telemetry.flush()
    bench.finish_work()
    telemetry.record(PROBE)
    telemetry.close()

    assert (telemetry.counters["records"], telemetry.counters["records_dropped"]) == (4, 2)
    assert [line.sequence for line in spooled(tmp_path)] == [1, 2, 3, 6]


def test_disk_that_refuses_is_counted_said_once_and_tried_again(tmp_path, capsys):
    bench = Bench()
    directory = tmp_path / "telemetry"
    directory.write_text("a file where a folder should be")
    telemetry = begun(TelemetryConfig(), directory, bench)

    for _ in range(3):
        telemetry.record(PROBE)
        telemetry.flush()
        bench.finish_work()
    assert telemetry.counters["records_dropped"] == telemetry.counters["write_failures"] == 3

    directory.unlink()
    telemetry.record(PROBE)
    telemetry.flush()
    bench.finish_work()

    assert [line.sequence for line in spooled(directory)] == [4]
    said = "".join(capsys.readouterr())
    assert said.count("telemetry.write_failed") == 1
    assert said.count("telemetry.resumed") == 1


def test_close_writes_what_waits_and_takes_no_more(tmp_path):
    bench = Bench()
    telemetry = begun(TelemetryConfig(), tmp_path, bench)

    telemetry.record(PROBE)
    telemetry.close()
    telemetry.record(PROBE)
    telemetry.close()

    assert names(tmp_path) == [f"a-00c0ffee-000001{CLOSED}"]
    assert [line.row for line in spooled(tmp_path)] == [PROBE]
    assert bench.timers == []


@pytest.mark.parametrize("begun_in_time", [False, True])
def test_close_writes_what_a_thread_has_not_come_to(tmp_path, begun_in_time):
    """Threads of a closing host forget work that they have not begun; a thread that begins late finds the work done."""
    bench = Bench()
    telemetry = begun(TelemetryConfig(flush_interval_s=5), tmp_path, bench)
    telemetry.record(Probe("n7", 1.0, 1.0))
    bench.pass_time(1)
    telemetry.flush()
    telemetry.record(Probe("n7", 2.0, 1.0))
    if begun_in_time:
        bench.finish_work()

    telemetry.close()
    bench.finish_work()

    assert [line.sequence for line in spooled(tmp_path)] == [1, 2]
    assert [name.rpartition(".")[2] for name in names(tmp_path)] == [CLOSED.strip(".")]
    assert telemetry.counters["records"] == 2
    assert telemetry.counters["records_dropped"] == 0


@pytest.mark.parametrize("config", [TelemetryConfig(enabled=False), TelemetryConfig()])
def test_without_a_directory_or_switched_off_nothing_is_kept(tmp_path, config):
    bench = Bench()
    telemetry = begun(config, tmp_path if not config.enabled else None, bench)

    telemetry.record(PROBE)
    telemetry.close()

    assert (list(tmp_path.iterdir()), bench.timers, telemetry.counters["records"]) == ([], [], 0)


def test_listeners_get_every_row_even_those_that_the_spool_drops(tmp_path):
    bench = Bench()
    telemetry = begun(TelemetryConfig(buffer_records_max=1), tmp_path, bench)
    heard = []
    telemetry.listen(lambda time_us, sequence, row: heard.append((time_us, sequence, row)))

    rows = [PROBE, Load(0.5, 0.25, 1.0, 2, 254, 0), MulticastChange("made", "q.1", "q.1*", "b", "")]
    for row in rows:
        telemetry.record(row)

    assert heard == [(int(SEVEN * 1e6), number, row) for number, row in enumerate(rows, 1)]


def test_what_a_crash_has_left_is_for_the_writer(tmp_path):
    bench = Bench()
    telemetry = begun(TelemetryConfig(), tmp_path, bench)
    telemetry.record(PROBE)
    telemetry.flush()
    bench.finish_work()

    again = Telemetry(TelemetryConfig(), tmp_path, bench, "a")
    again.begin("0badcafe")

    assert again.left_over == 1
    assert names(tmp_path) == [f"a-00c0ffee-000001{CLOSED}"]
