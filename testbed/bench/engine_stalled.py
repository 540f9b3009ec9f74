"""`sbon bench engine --stalled S`: memory of an agent with a source at full speed and a sink whose far end reads nothing."""

import socket
import time
from collections.abc import Callable
from typing import Any

from sbon.cli.output import count, number, print_table
from sbon.cli.tables import Column
from sbon_testbed.bench.agent_process import one_agent
from sbon_testbed.bench.workloads import EVENT_ROWS_PER_S
from sbon_testbed.ranges import check_seconds

SECONDS_MIN = 2.0
FULL_S = 1.0
"""Buffers count as full once the source has given no row for this many seconds."""

SQL = """
CREATE SOURCE flood (ts TIMESTAMP, key BIGINT, value DOUBLE, WATERMARK FOR ts AS ts)
  WITH (connector = 'datagen', nodes = 'bench', rows_per_second = 'max', event_rows_per_second = {event_rows_per_s}, fields.key.max = 999);
CREATE SINK wall FROM (SELECT ts, key, value FROM flood WHERE value > 0.5)
  WITH (connector = 'tcp', mode = 'connect', host = '127.0.0.1', port = '{port}');
"""


def measure(seconds: float, progress: Callable[[str], None] = lambda what: None) -> dict[str, Any]:
    """Measures resident memory every second after all buffers are full.

    Raises
    ------
    UsageError
        The time is too short.
    SbonError
        The agent does not start, or an operator fails.
    """
    check_seconds("--stalled", seconds, SECONDS_MIN)
    with socket.create_server(("127.0.0.1", 0)) as server, one_agent() as agent:
        agent.submit(SQL.format(port=server.getsockname()[1], event_rows_per_s=EVENT_ROWS_PER_S))
        accepted, _ = server.accept()
        with accepted:
            progress("filling the buffers")
            still_since, rows = time.monotonic(), -1

            def full() -> bool:
                nonlocal still_since, rows
                made = agent.rows_made()
                if made != rows:
                    still_since, rows = time.monotonic(), made
                return made > 0 and time.monotonic() - still_since >= FULL_S

            agent.wait_until(full, "the source stops behind the stalled sink")
            progress(f"watching for {seconds:g} s")
            used, began = agent.cpu_s(), time.monotonic()
            memory = [agent.memory_mb()]
            while time.monotonic() - began < seconds:
                time.sleep(min(1.0, seconds))
                memory.append(agent.memory_mb())
            used, took_s = agent.cpu_s() - used, time.monotonic() - began
            return {
                "stalled": {
                    "seconds": round(took_s, 1),
                    "rss_first_mb": round(memory[0], 1),
                    "rss_last_mb": round(memory[-1], 1),
                    "rss_max_mb": round(max(memory), 1),
                    "rows_taken": agent.rows_made(),
                    "cores_used": round(used / took_s, 3),
                }
            }


def show(result: dict[str, Any]) -> None:
    """Prints the result as a table."""
    one = result["stalled"]
    columns = tuple(Column(title, right=True) for title in ("seconds", "first MB", "last MB", "most MB", "rows taken", "cores used"))
    memory = [number(one[key]) for key in ("rss_first_mb", "rss_last_mb", "rss_max_mb")]
    print_table(columns, [[number(one["seconds"]), *memory, count(one["rows_taken"]), number(one["cores_used"], 3)]])
