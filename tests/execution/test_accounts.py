"""Processor time of operators: by the clocks of their thread and of polars' threads; in the virtual world by batches and rows."""

import pytest

import sbon_agent.cpu_meter
from sbon.execution.accounts import Accounts
from sbon.execution.port_costs import PortCosts
from sbon_agent.cpu_meter import CpuMeter
from tests.worlds import settled_world

BATCH_NS, ROW_NS = 100_000, 20
"""Default costs of the virtual processor."""

SQL = """
CREATE SOURCE s (ts TIMESTAMP, key BIGINT, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', rows_per_second = 1000, rows = 3000,
    fields.key.min = 0, fields.key.max = 3);
CREATE SINK out FROM (SELECT ts, key FROM s WHERE key = 0) WITH (connector = 'discard');
"""


def operators_of_a_run(seed: int) -> dict[str, dict]:
    world = settled_world(1, seed=seed)

    def told() -> dict[str, dict]:
        return {operator["kind"]: operator for operator in world.ask(0, "operators")}

    world.submit(SQL)
    world.run_until(lambda: told()["sink"]["state"] == "finished", 60)
    operators = told()
    world.close()
    return operators


def test_the_virtual_world_charges_batches_and_rows():
    told = operators_of_a_run(1)
    filtered = told["map"]
    assert filtered["rows_in"] == 3000
    assert filtered["quanta"] > 5
    # A watermark alone counts as one row.
    extra = filtered["cpu_ns"] - filtered["quanta"] * BATCH_NS - 3000 * ROW_NS
    assert 0 <= extra <= filtered["quanta"] * ROW_NS
    assert filtered["cpu_ns_per_row"] > ROW_NS
    assert filtered["longest_quantum_ms"] >= BATCH_NS / 1e6
    assert filtered["selectivity"] == filtered["rows_out"] / 3000
    assert (told["source"]["selectivity"], told["source"]["cpu_ns"], told["sink"]["queue_rows"]) == (None, 0, 0)


def test_the_law_of_a_port_is_what_the_virtual_world_charges():
    told = operators_of_a_run(1)
    (law,) = told["map"]["costs"]
    mean_ns = BATCH_NS + ROW_NS * law["rows_per_batch"]

    assert (law["port"], law["source"]) == (0, "measured")
    assert law["batches"] == pytest.approx(told["map"]["quanta"], rel=0.05)  # the first batches count a little less
    assert law["batch_ns"] == pytest.approx(mean_ns, rel=0.02)
    assert law["batch_ns_low"] <= mean_ns * 1.001
    assert law["batch_ns_high"] >= mean_ns * 0.999
    assert law["rows_per_batch"] == pytest.approx(3000 / told["map"]["quanta"])
    assert law["selectivity_low"] <= told["map"]["selectivity"] <= law["selectivity_high"]
    assert [operator["costs"][0]["port"] for operator in told.values()] == [0] * len(told)


def test_work_on_answers_counts_with_the_next_batch():
    costs = PortCosts()
    for _ in range(200):
        costs.took(1, 1_000, 10, 100_000)
        costs.continued(40, 300_000)
    (known,) = costs.known(now=0.0)

    assert known.port == 1
    assert known.batch_ns == pytest.approx(400_000, rel=0.02)
    assert known.selectivity == pytest.approx(0.05, rel=0.02)


def test_what_is_recent_forgets_what_rows_cost_before():
    accounts = Accounts()
    assert accounts.cpu_ns_per_row is None
    accounts.quantum(100, 100_000, 0.001)
    accounts.sample()
    accounts.quantum(100, 1_000, 0.0001)
    accounts.sample()
    accounts.sample()  # without new quanta nothing is forgotten
    accounts.quantum(100, 1_000, 0.0001)
    assert accounts.cpu_ns_per_row == 10
    assert (accounts.quanta, accounts.rows, accounts.cpu_ns, accounts.longest_s) == (3, 300, 102_000, 0.001)


class Clocks:
    """Clocks of this thread, of the wall and of two helper threads, in nanoseconds."""

    def __init__(self) -> None:
        self.own = self.wall = 0
        self.helpers = {8: 0, 9: 0}

    def thread_time_ns(self) -> int:
        return self.own

    def perf_counter_ns(self) -> int:
        return self.wall

    def monotonic(self) -> float:
        return 0.0

    def clock_gettime_ns(self, clock: int) -> int:
        return self.helpers[clock]


@pytest.fixture
def clocks(monkeypatch) -> Clocks:
    clocks = Clocks()
    monkeypatch.setattr(sbon_agent.cpu_meter, "time", clocks)
    monkeypatch.setattr(sbon_agent.cpu_meter, "_helpers", lambda: (8, 9))
    return clocks


def test_work_of_polars_on_other_threads_counts(clocks):
    meter = CpuMeter().begin()
    clocks.own, clocks.helpers[8], clocks.helpers[9], clocks.wall = 100, 300, 50, 1000
    assert meter.lap(1) == 450
    clocks.own += 10
    clocks.wall += 1000
    assert meter.lap(1) == 10


def test_askers_share_the_helpers_and_pay_no_more_than_the_time(clocks):
    meters = CpuMeter()
    one, other = meters.begin(), meters.begin()
    clocks.helpers[8], clocks.wall = 600, 1000
    assert (one.lap(1), other.lap(1)) == (300, 300)
    other.end()
    clocks.own, clocks.helpers[8], clocks.wall = 900, 1600, 2000
    assert one.lap(1) == 1000


def test_a_real_thread_is_measured():
    meter = CpuMeter().begin()
    sum(range(100_000))
    assert meter.lap(1) > 0
    meter.end()
