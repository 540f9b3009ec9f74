"""`sbon bench recovery`: how soon correct rows come again after hosts of running queries are killed.

Eight real agents run in separate processes on loopback, with the latencies of cities. Five queries count the rows of short windows;
sources, windows and sinks are on different hosts, and one agent owns all queries. Then hosts are killed by SIGKILL, one at a time, at
random moments: the host of a source, of a window or of a sink, or the owner of the queries. About half of them are started again before
they can be declared failed, the others long after.

A row is correct if it counts as many rows as the sources give in a window. The measured time is

    for movable operators  from the kill to the next correct row of a window that began after it
    for pinned operators   from the restart of the host to the next such row
    for the owner          the longest silence between correct rows, from the kill until all its queries are shown as running again

    The restart includes the start of the process, `start_s`. Windows from the time in which a source was away rightly count fewer rows.
"""

import csv
import itertools
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sbon.cli.output import count, number, print_table
from sbon.cli.tables import Column
from sbon.config import Layer
from sbon.control import SOCKET_NAME
from sbon.errors import SbonError, UsageError
from sbon.types import NodeId
from sbon_testbed.bench.percentiles import p99
from sbon_testbed.leftovers import run_directory
from sbon_testbed.processes.local import LocalWorld
from sbon_testbed.simulator.network import NetworkConfig
from sbon_testbed.topology import CitiesConfig, build

AGENTS = 8
HOME, PRODUCERS, MIDDLES, SINKS = 0, (1, 2), (3, 4), (5, 6)
"""Numbers of the agents by their first role; the last agent has no role."""
FED_BY: tuple[tuple[int, ...], ...] = ((1,), (2,), (1,), (2,), (1, 2))
"""Agents of the sources, for each query."""
ROLES = ("producer", "intermediate", "sink", "owner")
WINDOW_S, PER_WINDOW = 0.25, 10
SOON_S, LATE_S = (0.2, 3.0), (6.0, 9.0)
"""Seconds from a kill to the restart: before the host can be declared failed, or after."""
FRESH_S = 2.0
"""Greatest age of the newest correct row of each query before the next kill."""
TIMEOUT_S = 90.0
SETTINGS: Layer = {"optimiser": {"enabled": False}, "log": {"level": "warning"}}
SQL = """
CREATE SOURCE s{query} (ts TIMESTAMP, number BIGINT, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = '{sources}',
  rows_per_second = {rate}, fields.number.kind = 'sequence');
CREATE SINK k{query} AS SELECT window_start, COUNT(*) AS n FROM TUMBLE(s{query}, ts, INTERVAL '{window_ms} milliseconds')
  GROUP BY window_start WITH (connector = 'file', path = 'k{query}.csv', node = '{sink}');
"""
_LOOK_S = 0.02


class Time(NamedTuple):
    """A time during which one query had no correct row."""

    kind: str
    """The query's part on the killed host: movable, pinned or owner."""
    role: str
    seconds: float


class Follower:
    """Follows the rows that a sink writes to its file."""

    def __init__(self, path: Path, rows_of_window: int) -> None:
        self.path = path
        self.expected = rows_of_window
        self.correct: list[tuple[float, float]] = []
        """Wall-clock times at which a correct row was seen, and at which its window began."""
        self.fewer = self.repeated = 0
        self._windows: set[str] = set()
        self._position = 0
        self._rest = ""

    def look(self) -> None:
        """Reads the new rows."""
        try:
            with self.path.open(encoding="utf-8") as file:
                file.seek(self._position)
                text = file.read()
                self._position = file.tell()
        except FileNotFoundError:
            return
        now = time.time()
        *lines, self._rest = (self._rest + text).split("\n")
        for start, rows in csv.reader(lines):
            if start == "window_start":
                continue
            self.repeated += start in self._windows
            self._windows.add(start)
            if int(rows) == self.expected:
                self.correct.append((now, datetime.fromisoformat(start).replace(tzinfo=UTC).timestamp()))
            else:
                self.fewer += 1

    def next_after(self, seen_s: float, began_s: float) -> float | None:
        """Returns when the first correct row came of those seen after `seen_s` whose window began after `began_s`; None: not yet."""
        return next((seen for seen, began in self.correct if seen >= seen_s and began >= began_s), None)

    def longest_silence_s(self, from_s: float, to_s: float) -> float:
        """Returns the longest time without a correct row from `from_s` to `to_s`."""
        seen = [from_s, *(seen for seen, _ in self.correct if from_s < seen < to_s), to_s]
        return max(after - before for before, after in itertools.pairwise(seen))


class Overlay:
    """The agents, and the files of their queries."""

    def __init__(self, world: LocalWorld, progress: Callable[[str], None]) -> None:
        self.world = world
        self.progress = progress
        sinks = [SINKS[query % len(SINKS)] for query in range(len(FED_BY))]
        self.followers = [
            Follower(world.agent_directory(sink) / "files" / f"k{query}.csv", PER_WINDOW * len(FED_BY[query]))
            for query, sink in enumerate(sinks)
        ]
        self._sinks = sinks
        self.starts_s: list[float] = []
        """Seconds that each restarted process took to serve its control socket."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="rows", daemon=True)

    def begin(self) -> None:
        """Starts the agents and the queries."""
        world, nodes = self.world, self.world.topology.nodes
        self._thread.start()
        for agent in range(AGENTS):
            world.start(agent)
        for agent in range(AGENTS):
            world.wait_started(agent)
        self.wait(lambda: all(self._sees_all(agent) for agent in range(AGENTS)), "the agents find each other")
        for query, sources in enumerate(FED_BY):
            told = {"sources": ",".join(nodes[one] for one in sources), "sink": nodes[self._sinks[query]]}
            world.ask(HOME, "submit", sql=SQL.format(query=query, rate=PER_WINDOW / WINDOW_S, window_ms=round(WINDOW_S * 1000), **told))

    def number(self, host: NodeId) -> int:
        """Returns the number of an agent."""
        return self.world.topology.nodes.index(host)

    def rows(self) -> list[dict[str, Any]]:
        """Returns the queries' rows as the first agent that answers knows them, in the order of the queries."""
        for agent in range(AGENTS):
            with suppress(SbonError):
                if self.world.alive(agent):
                    found = {row["name"]: row for row in self.world.ask(agent, "queries")}
                    return [found[f"k{query}"] for query in range(len(FED_BY)) if f"k{query}" in found]
        raise SbonError("no agent answers")

    def wait(self, condition: Callable[[], Any], what: str) -> None:
        """Waits until a condition holds; `what` names it in the error.

        Raises
        ------
        SbonError
            The condition does not hold within `TIMEOUT_S`.
        """
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            if time.monotonic() > deadline:
                states = "; ".join(f"{row['name']} is {row['state']}: {row['reason']}" for row in self.rows())
                raise SbonError(f"not within {TIMEOUT_S:g} s: {what}; {states}")
            time.sleep(_LOOK_S)

    def close(self) -> None:
        """Stops following the files, and ends the agents."""
        self._ended.set()
        self._thread.join()
        self.world.close()

    def _follow(self) -> None:
        while not self._ended.wait(_LOOK_S):
            for follower in self.followers:
                follower.look()

    def settle(self) -> None:
        """Waits until all queries run, tries to move their windows to the `MIDDLES`, and waits until all queries give correct rows."""
        self.wait(lambda: all(self._sees_all(agent) for agent in range(AGENTS)), "all agents are alive to each other")
        self.wait(self.runs, "all queries run")
        for query, row in enumerate(self.rows()):
            for operator in row["operators"]:
                there = self.world.topology.nodes[MIDDLES[query % len(MIDDLES)]]
                if not operator["pinned"] and operator["node"] not in [self.world.topology.nodes[middle] for middle in MIDDLES]:
                    with suppress(SbonError):  # if it does not move, it may be killed together with other operators on its host
                        self.world.ask(operator["node"], "migrate", operator=operator["id"], node=there)
        self.wait(self._is_fresh, "all queries give correct rows")

    def runs(self) -> bool:
        rows = self.rows()
        return len(rows) == len(FED_BY) and all(row["state"] == "running" for row in rows)

    def _is_fresh(self) -> bool:
        newest = [follower.correct[-1][1] if follower.correct else 0.0 for follower in self.followers]
        return min(newest) > time.time() - FRESH_S

    def _sees_all(self, agent: int) -> bool:
        return [member["status"] for member in self.world.ask(agent, "members")] == ["alive"] * AGENTS


def measure(kills: int, seed: int, progress: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    """Kills hosts and measures how soon correct rows come again.

    Raises
    ------
    UsageError
        The number of kills is out of range.
    SbonError
        An agent does not start, or a query gives no correct rows for too long.
    """
    if not 1 <= kills <= 10_000:
        raise UsageError(f"--kills {kills}, expected 1 to 10000")
    rng = np.random.default_rng(seed)
    times: list[Time] = []
    with run_directory() as directory:
        world = LocalWorld(build(CitiesConfig(), AGENTS, seed), directory, NetworkConfig(), [SETTINGS] * AGENTS)
        overlay = Overlay(world, progress)
        try:
            overlay.begin()
            for done in range(kills):
                overlay.settle()
                role, soon = ROLES[done % len(ROLES)], bool(rng.integers(2))
                found = kill(overlay, role, soon, rng)
                times += found
                progress(f"{done + 1} of {kills}: {role}, {', '.join(f'{one.kind} {one.seconds:.1f} s' for one in found)}")
        finally:
            overlay.close()
    fewer, repeated = (sum(getattr(follower, what) for follower in overlay.followers) for what in ("fewer", "repeated"))
    return {
        "recovery": {
            "kills": kills,
            "seed": seed,
            **summary(times),
            "start_s": round(float(np.median(overlay.starts_s)), 2),
            "windows_with_fewer_rows": fewer,
            "windows_repeated": repeated,
        }
    }


def kill(overlay: Overlay, role: str, soon: bool, rng: np.random.Generator) -> list[Time]:
    """Kills a random host with this role, starts it again, and returns how long each query that used it gave no correct row."""
    world, rows = overlay.world, overlay.rows()
    hosts = sorted({host for row in rows for host in _hosts(row)[role]})
    host = hosts[int(rng.integers(len(hosts)))]
    kinds = {query: kind for query, row in enumerate(rows) if (kind := _kind(row, host))}
    moment = time.monotonic() + float(rng.uniform(0.0, 2.0))
    overlay.wait(lambda: time.monotonic() >= moment, "the time of the kill")
    world.kill(host)
    killed_s, restart_at = time.time(), time.monotonic() + float(rng.uniform(*(SOON_S if soon else LATE_S)))
    overlay.wait(lambda: time.monotonic() >= restart_at, "the time of the restart")
    world.start(host)
    restarted_s = time.time()
    overlay.wait(lambda: _answers(world.agent_directory(overlay.number(host)) / SOCKET_NAME), "the host is back")
    overlay.starts_s.append(time.time() - restarted_s)
    found = []
    for query, kind in kinds.items():
        follower = overlay.followers[query]
        if kind == "owner":
            overlay.wait(overlay.runs, "its owner is back")
            _next_row(overlay, query, time.time(), time.time())
            found.append(Time(kind, role, follower.longest_silence_s(killed_s, time.time())))
        else:
            begin_s = killed_s if kind == "movable" else restarted_s
            found.append(Time(kind, role, _next_row(overlay, query, begin_s, killed_s) - begin_s))
    return found


def _next_row(overlay: Overlay, query: int, seen_s: float, began_s: float) -> float:
    """Waits for a correct row that is seen after `seen_s` and whose window began after `began_s`; returns when it was seen."""
    follower = overlay.followers[query]
    overlay.wait(lambda: follower.next_after(seen_s, began_s) is not None, f"k{query} gives correct rows again")
    found = follower.next_after(seen_s, began_s)
    assert found is not None
    return found


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


def _hosts(row: dict[str, Any]) -> dict[str, set[NodeId]]:
    def of(*kinds: str) -> set[NodeId]:
        return {operator["node"] for operator in row["operators"] if operator["kind"] in kinds}

    return {"producer": of("source"), "intermediate": of("window"), "sink": of("sink"), "owner": {row["owner"]}}


def _kind(row: dict[str, Any], host: NodeId) -> str:
    """Returns a query's part on a host: pinned if it has a pinned operator there, else movable if any operator, else owner or nothing."""
    pinned = {operator["pinned"] for operator in row["operators"] if operator["node"] == host}
    return "pinned" if True in pinned else "movable" if pinned else "owner" if row["owner"] == host else ""


def summary(times: Sequence[Time]) -> dict[str, Any]:
    """Returns number, median, 99th percentile (None if there are too few) and maximum of the times, by kind."""
    kinds: dict[str, Any] = {}
    for kind in ("movable", "pinned", "owner"):
        seconds = [one.seconds for one in times if one.kind == kind]
        if seconds:
            far = p99(seconds)
            kinds[kind] = {
                "times": len(seconds),
                "median_s": round(float(np.median(seconds)), 2),
                "p99_s": None if far is None else round(far, 2),
                "max_s": round(max(seconds), 2),
            }
    return kinds


def show(result: dict[str, Any], *, wide: bool = False) -> None:
    """Prints the result as a table."""
    one = result["recovery"]
    what = {"movable": "a window, from the kill", "pinned": "a source or sink, from the restart", "owner": "the owner, longest silence"}
    cells = [
        [what[kind], count(one[kind]["times"]), *(number(one[kind][name], 2) for name in ("median_s", "p99_s", "max_s"))]
        for kind in what
        if kind in one
    ]
    columns = [Column("killed"), *(Column(title, right=True) for title in ("times", "median s", "p99 s", "at most s"))]
    print_table(columns, cells, wide=wide)
    print(f"{one['kills']} kills; a process took {one['start_s']:.2f} s to start")
    print(f"{one['windows_with_fewer_rows']} windows had fewer rows (sources were away)")
    print(f"{one['windows_repeated']} windows came twice")
