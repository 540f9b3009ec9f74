"""Measures the cost of telemetry: processor time of recording, spooling and writing tables, for each second that an agent runs.

An overlay runs in the virtual world with the agents' code and the default settings of telemetry. So rows and their rates are those of real
agents, and the processor time is that of this machine.
"""

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sbon.cli.output import count, number, print_table
from sbon.cli.tables import Column
from sbon.errors import UsageError
from sbon.telemetry.recording import Recording
from sbon.telemetry.rows import Probe
from sbon_agent.measuring import Measuring
from sbon_agent.telemetry.log import DIRECTORY_NAME, Telemetry
from sbon_agent.telemetry.spool import Spool, adopt, encode_line
from sbon_testbed.leftovers import run_directory
from sbon_testbed.ranges import SECONDS_MAX
from sbon_testbed.simulator.harness import World
from sbon_testbed.topology import CitiesConfig, build

COUNTED = {
    Measuring: ("_log",),
    Recording: ("placement", "review", "multicast", "migration", "probe", "member", "query", "agent", "delivered", "look_at_sinks"),
    Spool: ("append", "close"),
    Telemetry: ("record", "flush"),
}
"""Methods that an agent calls only for telemetry."""
TARGET_SHARE = 0.02
SETTLE_S = 20.0
AGENTS_MAX = 200
QUERY = """
SELECT window_start, node, AVG(rtt_ms) AS rtt_ms, COUNT(*) AS probes
FROM TUMBLE(sys.probes, ts, INTERVAL '5 seconds') GROUP BY window_start, node"""


def measure(
    agents: int = 16, queries: int = 4, seconds: float = 120.0, seed: int = 1, progress: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """Returns the figures that `sbon bench telemetry --json` prints.

    Raises
    ------
    UsageError
        An argument is out of range.
    """
    if not 2 <= agents <= AGENTS_MAX or not 0 <= queries <= 100 or not 10 <= seconds <= SECONDS_MAX:
        given = f"--agents {agents} --queries {queries} --seconds {seconds:g}"
        raise UsageError(f"{given}, expected 2 to {AGENTS_MAX} agents, up to 100 queries and 10 to {SECONDS_MAX:.0f} s")
    with run_directory() as directory:
        world = World(build(CitiesConfig(), agents, seed), seed=seed, data_dir=directory)
        for name in range(agents):
            world.start(name)
        progress("agents find each other")
        world.run(SETTLE_S)
        for query in range(queries):
            world.submit(QUERY, at=query % agents)
        world.run(SETTLE_S)
        before = _recorded(world)
        progress(f"{seconds:g} virtual seconds")
        with _timed() as spent:
            world.run(seconds)
        records = _recorded(world) - before
        operators = sum(len(world.ask(node, "operators")) for node in range(agents)) / agents
        world.close()
        progress("writing tables")
        writer_s, rows = _write(sorted(directory.glob(f"*/{DIRECTORY_NAME}")))
    per_agent_s = agents * seconds
    rows_per_s = records / per_agent_s
    recording = spent() / per_agent_s
    # Each hour a new process writes the tables: count the time to start it, and the time for an hour's rows.
    writing = (writer_s["start"] + writer_s["rows"] / rows * rows_per_s * 3600) / 3600
    return {
        "agents": agents,
        "operators_per_agent": operators,
        "records_per_s": rows_per_s,
        "record_us": 1e6 * recording / rows_per_s,
        "writer_start_s": writer_s["start"],
        "writer_us_per_row": 1e6 * writer_s["rows"] / rows,
        "recording_share": recording,
        "writing_share": writing,
        "share": recording + writing,
        "target_share": TARGET_SHARE,
    }


def show(result: dict[str, Any]) -> None:
    """Shows the result as a table."""
    lines = [
        ("agents", count(result["agents"])),
        ("operators on each", number(result["operators_per_agent"], 3)),
        ("rows/s of each", number(result["records_per_s"], 3)),
        ("recording and spooling, us a row", number(result["record_us"], 3)),
        ("writer: start, s", number(result["writer_start_s"], 2)),
        ("writer: us a row", number(result["writer_us_per_row"], 3)),
        ("of one core", f"{result['share']:.3%}"),
        ("should be at most", f"{result['target_share']:.0%}"),
    ]
    print_table([Column("what"), Column("figure", right=True)], lines)


def _recorded(world: World) -> int:
    return sum(world.ask(node, "status")["counters"]["telemetry_records"] for node in range(len(world.topology.nodes)))


@contextmanager
def _timed() -> Iterator[Callable[[], float]]:
    """Yields a function that returns the processor seconds spent in the methods of `COUNTED`; nested calls count once."""
    spent, depth = 0.0, 0

    def timed(work: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **options: Any) -> Any:
            nonlocal spent, depth
            if depth:
                return work(*arguments, **options)
            depth += 1
            began = time.process_time()
            try:
                return work(*arguments, **options)
            finally:
                spent += time.process_time() - began
                depth -= 1

        return step

    originals = {(owner, name): getattr(owner, name) for owner, names in COUNTED.items() for name in names}
    try:
        for (owner, name), work in originals.items():
            setattr(owner, name, timed(work))
        yield lambda: spent
    finally:
        for (owner, name), work in originals.items():
            setattr(owner, name, work)


def _write(directories: list[Path]) -> tuple[dict[str, float], int]:
    """Returns the processor seconds of a writer for a single row and those that all rows take beyond that, and the number of rows."""
    single = directories[0].parent / "single"
    spool = Spool(single, "single", "1", 2**20, 2**20)
    spool.append([(0, encode_line(0, 1, Probe("peer", 1.0, 1.0)))])
    spool.close()
    start_s, _ = _writer([single])
    for directory in directories:
        adopt(directory)
    all_s, rows = _writer(directories)
    return {"start": start_s, "rows": max(0.0, all_s - start_s)}, rows


def _writer(directories: list[Path]) -> tuple[float, int]:
    import msgspec

    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "sbon_agent.telemetry.writer", *map(str, directories)]
    done = subprocess.run(command, capture_output=True, check=True, env=os.environ | {"POLARS_MAX_THREADS": "1"})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    rows = msgspec.json.decode(done.stdout)["rows"]
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, rows
