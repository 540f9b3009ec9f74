"""The load of the machine's processors, read from faked files of the kernel."""

import os

import pytest

from sbon_agent.cpu_load import CpuLoad, parse_pressure, scheduled_ns, share_of_class, share_of_core

PRESSURE = "some avg10={} avg60=9.00 avg300=1.00 total=123456\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_work_that_waits_counts_beyond_the_processors_use(tmp_path):
    file, clock, used = tmp_path / "cpu", Clock(), iter([100.0, 100.0, 30.0])
    load = CpuLoad(lambda: next(used), file, clock)
    file.write_text(PRESSURE.format("0.00"))
    assert load.read().load == 1.0
    clock.now += 1
    file.write_text(PRESSURE.format("75.00"))
    assert load.read().load == 1.75
    clock.now += 1
    file.write_text(PRESSURE.format("20.00"))
    assert load.read().load == pytest.approx(0.5)


def test_only_cores_that_the_process_may_use_count(tmp_path, monkeypatch):
    monkeypatch.setattr("psutil.cpu_percent", lambda interval, percpu: [20.0, 100.0])
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0})
    assert CpuLoad(pressure_file=tmp_path / "none").read().load == pytest.approx(0.2)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
    assert CpuLoad(pressure_file=tmp_path / "none").read().load == pytest.approx(0.6)


def test_it_is_read_twice_a_second_at_most(tmp_path):
    clock, used = Clock(), iter([10.0, 60.0])
    load = CpuLoad(lambda: next(used), tmp_path / "none", clock)
    assert load.read().load == 0.1
    clock.now += 0.4
    assert load.read().load == 0.1
    clock.now += 0.1
    assert load.read().load == 0.6


@pytest.mark.parametrize(
    "content", [None, "", "nonsense", "some", "some avg10", "some avg10=nan", "some avg10=-3", "some avg10=101", "full avg10=1"]
)
def test_a_kernel_that_tells_no_pressure_gives_the_use_alone(tmp_path, content):
    file, clock = tmp_path / "cpu", Clock()
    if content is not None:
        file.write_text(content)
    load = CpuLoad(lambda: 40.0, file, clock)
    assert load.read().load == 0.4
    clock.now += 1
    assert load.read().load == 0.4


def test_use_beyond_its_bounds_is_cut_off(tmp_path):
    clock, used = Clock(), iter([-1.0, 250.0])
    load = CpuLoad(lambda: next(used), tmp_path / "none", clock)
    assert load.read().load == 0.0
    clock.now += 1
    assert load.read().load == 1.0


def test_only_some_and_the_last_ten_seconds_count():
    assert parse_pressure("full avg10=99.00 avg60=0 avg300=0 total=1\nsome avg10=5.00 avg60=70.0 avg300=80.0 total=9\n") == 0.05


def test_free_cores_are_those_that_other_programs_leave(tmp_path):
    """In the second reading all four cores are used, three of them by this process."""
    clock, used, own = Clock(), iter([100.0, 100.0, 50.0, 25.0]), iter([7.0, 10.0, 12.0, 14.0])
    load = CpuLoad(lambda: next(used), tmp_path / "none", clock, lambda: next(own), cores=4)
    free = []
    for _ in range(4):
        free.append(load.read().free_cores)
        clock.now += 1.0
    assert free == [0.0, 3.0, 4.0, 4.0], "the first reading knows nothing; own use above total use comes from unequal clocks"


def test_the_share_of_a_core_is_what_work_got_of_the_time_in_which_it_was_ready():
    ran = iter(range(0, 40_000_000, 4_000_000))

    def scheduled() -> tuple[int, int]:
        now = next(ran)
        return 7 + now, 5 + 3 * now

    assert share_of_core(scheduled, lambda: None) == 0.25
    assert next(ran) == 24_000_000, "the work ends after 20 ms of processor time"
    assert share_of_core(lambda: None) is None


def test_work_ends_where_the_kernel_counts_nothing():
    used = iter(range(0, 10**9, 4_000_000))
    assert share_of_core(lambda: (0, 0), lambda: None, lambda: next(used)) is None
    assert next(used) <= 60_000_000, "the work ends after twice the time"


def test_real_time_threads_leave_a_part_of_each_core_to_others(tmp_path, monkeypatch):
    files = tmp_path / "runtime", tmp_path / "period"
    assert share_of_class(os.SCHED_RR, files) == 1.0, "a kernel without this limit"
    files[1].write_text("1000000\n")
    for text, share in (("950000\n", 0.95), ("-1\n", 1.0), ("1000000\n", 1.0), ("much\n", 1.0)):
        files[0].write_text(text)
        assert share_of_class(os.SCHED_RR, files) == share_of_class(os.SCHED_FIFO, files) == share
        assert share_of_class(os.SCHED_OTHER, files) == 1.0
    monkeypatch.setattr("sbon_agent.cpu_load.share_of_class", lambda: 0.9)
    ran = iter(range(0, 10**9, 4_000_000))
    assert share_of_core(lambda: (next(ran), 0), lambda: None) == 0.9


def test_the_kernel_tells_how_long_a_thread_has_run():
    before = scheduled_ns()
    share = share_of_core()
    after = scheduled_ns()

    if before is None or after is None:
        pytest.skip("this kernel does not tell")
    assert after[0] - before[0] >= 20_000_000
    assert share is not None
    assert 0 < share <= 1
