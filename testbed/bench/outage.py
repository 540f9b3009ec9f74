"""`sbon bench outage`: what happens to rows while the far end of a link is stopped.

Two real agents in separate processes are connected by sealed TCP on loopback. Rows flow from one to the other at a steady rate. Then
SIGSTOP stops the process at the far end: it answers no packet, and resets no connection. Later it continues. Rows that cannot be delivered
wait on the sender's disk.
"""

import signal
import time
from collections.abc import Callable
from typing import Any

import psutil

from sbon.cli.output import count, number, print_table
from sbon.cli.tables import Column
from sbon.errors import SbonError, UsageError
from sbon_testbed.bench.agents import BenchAgent, agents
from sbon_testbed.ranges import check_seconds

SECONDS_MIN = 2.0
RATE_MAX = 10_000_000
BEFORE_S, AFTER_S = 3.0, 2.0
"""Seconds for which rows flow before the far end is stopped, and after it continues."""
CATCH_UP_TIMEOUT_S = 600.0
ROW_BYTES = 40
"""Generous estimate of the disk that a row needs, with its share of batch heads, in bytes; for the disk budget."""
_LOOK_S = 0.1

SETTINGS = """
telemetry = {{ parquet = false }}
optimiser = {{ enabled = false }}
log = {{ level = "warning" }}
links = {{ spill_bytes = {spill_bytes} }}
"""
SQL = """
CREATE SOURCE steady (number BIGINT, key BIGINT, value DOUBLE) WITH (connector = 'datagen', nodes = 'near', rows_per_second = {rate},
  rows = {rows}, fields.number.kind = 'sequence', pool_rows = 1048576);
CREATE SINK arrived FROM (SELECT number, key, value FROM steady) WITH (connector = 'discard', node = 'far');
"""


def measure(seconds: float, rate: int, progress: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    """Measures the rows lost, the sender's memory and disk, and the time to catch up.

    Raises
    ------
    UsageError
        The time is too short, or the rate is out of range.
    SbonError
        An agent does not start, or rows are missing after ten minutes.
    """
    check_seconds("--seconds", seconds, SECONDS_MIN)
    if not 1 <= rate <= RATE_MAX:
        raise UsageError(f"--rate {rate}, expected 1 to {RATE_MAX}")
    rows = round(rate * (BEFORE_S + seconds + AFTER_S))
    progress("rows begin to flow")
    with agents(("near", "far"), SETTINGS.format(spill_bytes=max(2**24, 2 * rows * ROW_BYTES))) as pair:
        near, far = pair["near"], pair["far"]
        near.client.ask("submit", sql=SQL.format(rate=rate, rows=rows))
        _wait(lambda: _arrived(far) >= rate * BEFORE_S, "rows arrive")
        memory, used = [_memory_mb(near)], near.cpu_s()
        far.process.send_signal(signal.SIGSTOP)
        try:
            progress(f"the far end is stopped for {seconds:g} s")
            began, spilled, blocked = time.monotonic(), 0, 0
            while time.monotonic() - began < seconds:
                time.sleep(min(1.0, seconds / 4))
                memory.append(_memory_mb(near))
                spilled = max(spilled, near.client.ask("status")["spill"]["used_bytes"])
                blocked += any(operator["state"] == "blocked" for operator in near.client.ask("operators"))
        finally:
            far.process.send_signal(signal.SIGCONT)
        progress("the far end continues")
        began = time.monotonic()
        _wait(lambda: near.client.ask("status")["spill"]["used_bytes"] == 0, "the disk drains")
        caught_up_s = time.monotonic() - began
        _wait(lambda: _arrived(far) >= rows, "all rows arrive")
        return {
            "outage": {
                "seconds": seconds,
                "rows": rows,
                "rows_lost": rows - _arrived(far),
                "spilled_mib": round(spilled / 2**20, 1),
                "samples_blocked": blocked,
                "catch_up_s": round(caught_up_s, 2),
                "rss_before_mb": round(memory[0], 1),
                "rss_max_mb": round(max(memory), 1),
                "cores": round((near.cpu_s() - used) / (seconds + caught_up_s), 3),
            }
        }


def show(result: dict[str, Any], *, wide: bool = False) -> None:
    """Prints the result as a table."""
    one = result["outage"]
    titles = ("outage s", "rows", "lost", "MiB on disk", "caught up in s", "MB at most")
    cells = [number(one["seconds"]), count(one["rows"]), count(one["rows_lost"]), number(one["spilled_mib"]), number(one["catch_up_s"], 2)]
    cells += [number(one["rss_max_mb"]), number(one["rss_before_mb"]), number(one["cores"], 2)]
    columns = [Column(title, right=True) for title in titles]
    columns += [Column(title, right=True, wide=True) for title in ("MB before", "CPU cores")]
    print_table(columns, [cells], wide=wide)


def _arrived(agent: BenchAgent) -> int:
    return sum(operator["rows_in"] for operator in agent.client.ask("operators") if operator["kind"] == "sink")


def _memory_mb(agent: BenchAgent) -> float:
    return float(psutil.Process(agent.process.pid).memory_info().rss) / 1e6


def _wait(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + CATCH_UP_TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline:
            raise SbonError(f"waited {CATCH_UP_TIMEOUT_S:g} s in vain until {what}")
        time.sleep(_LOOK_S)
