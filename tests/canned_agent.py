"""An agent that has only a control socket with canned answers, for tests of the socket and of the command line."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sbon.control import ControlReply, ControlRequest, refusal
from sbon.errors import LinkError, QueryError, SbonError
from sbon_agent.asyncio_host import new_event_loop
from sbon_agent.control import ControlConfig, ControlServer

STATUS = {
    "name": "ams1",
    "address": "127.0.0.1:7946",
    "status": "alive",
    "incarnation": 3,
    "uptime_s": 7384.0,
    "version": "0.1.0",
    "labels": {"region": "eu", "site": "ams"},
    "members": {"alive": 15, "failed": 1, "left": 0, "suspect": 0},
    "coordinate": {"vector": [1.0, -2.5, 30.0], "height_ms": 4.0, "error": 0.08, "load_ms": 12.0},
    "median_relative_error": 0.061,
    "operators": 2,
    "queries": 1,
    "counters": {"datagrams_refused": 4, "rows_late": 0},
    "data_dir": "/var/lib/sbon",
}
MEMBERS = [
    {
        "name": "tokyo-1",
        "address": "127.0.0.1:7948",
        "status": "failed",
        "incarnation": 1,
        "labels": {"region": "asia"},
        "coordinate": None,
        "estimated_rtt_ms": None,
        "measured_rtt_ms": None,
    },
    {
        "name": "paris-2",
        "address": "127.0.0.1:7947",
        "status": "alive",
        "incarnation": 2,
        "labels": {"region": "eu"},
        "coordinate": {"vector": [0.0, 0.0, 0.0], "height_ms": 1.0, "error": 0.1, "load_ms": 3.5},
        "estimated_rtt_ms": 9.1,
        "measured_rtt_ms": 9.5,
    },
]
OPERATORS = [
    {
        "id": "q1.2",
        "queries": ["q1"],
        "kind": "window",
        "text": "window 10 s by region: count(*)",
        "node": "ams1",
        "state": "running",
        "pinned": False,
        "rows_in": 1000,
        "rows_out": 10,
        "rows_per_s_in": 100.0,
        "rows_per_s_out": 1.0,
        "bytes_per_s_out": 1250.0,
        "selectivity": 0.01,
        "queue_batches": 0,
        "late_rows": 2,
        "state_rows": 40,
        "state_bytes": 4_000,
        "migrations": 1,
    }
]
QUERIES = [
    {
        "id": "q1",
        "name": "load_by_region",
        "state": "degraded",
        "reason": "tokyo-1 failed and took a source with it",
        "owner": "ams1",
        "sql": "SELECT ...",
        "sink_node": "ams1",
        "operators": [
            {"id": "q1.0", "kind": "source", "node": "tokyo-1", "pinned": True, "reused": False, "lost": True},
            {"id": "q1.2", "kind": "window", "node": "paris-2", "pinned": False, "reused": False, "lost": False},
        ],
        "rows_out": 10,
        "late_rows": 2,
        "network_usage": 12_500.0,
        "started_wall_s": 1_795_000_000.0,
    }
]
NAMES = [
    {"name": "busy", "kind": "view", "owner": "ams1", "query": None},
    {"name": "readings", "kind": "source", "owner": "ams1", "query": None},
    {"name": "sys.load", "kind": "system stream", "owner": None, "query": None},
    {"name": "written", "kind": "sink", "owner": "paris-2", "query": "q9"},
]
PLAN = {
    "query": "q2",
    "operators": [
        {"id": "q2.0", "kind": "source", "text": "sys.load", "node": "paris-2", "pinned": True, "reuse": None, "candidates": []},
        {
            "id": "q2.1",
            "kind": "window",
            "text": "window 10 s: avg(cpu)",
            "node": "paris-2",
            "pinned": False,
            "reuse": None,
            "candidates": [
                {"node": "paris-2", "network_usage": 100.0, "load_ms": 3.5},
                {"node": "ams1", "network_usage": 250.0, "load_ms": 12.0},
            ],
        },
    ],
    "links": [
        {
            "id": "q2.0>q2.1:0",
            "source": "q2.0",
            "target": "q2.1",
            "rate_rows_per_s": 1.0,
            "rate_bytes_per_s": 60.0,
            "latency_ms": 0.0,
            "latency_measured": True,
        }
    ],
    "network_usage": {"here": 100.0, "producer": 100.0, "consumer": 250.0},
}


class FakeAgent:
    """Gives prepared answers; records requests and cancellations."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.asked: list[ControlRequest] = []
        self.cancelled: list[int] = []
        self.streams: dict[int, Callable[[ControlReply], None]] = {}
        self.answers: dict[str, Any] = {
            "status": STATUS,
            "members": MEMBERS,
            "operators": OPERATORS,
            "queries": QUERIES,
            "names": NAMES,
            "explain": PLAN,
        }
        self.tail_rows: list[list[Any]] = [["eu", 0.5, None], ["asia", 123456.789, True]]

    def control(self, request: ControlRequest, reply: Callable[[ControlReply], None]) -> Callable[[], None]:
        self.asked.append(request)
        arguments = request.arguments
        given = self.answers.get(request.command)
        if isinstance(given, SbonError):
            reply(refusal(request.id, given))
        elif request.command in ("rtt", "submit", "drop") and given is not None:
            reply(ControlReply(request.id, final=True, result=given))
        elif request.command == "rtt":
            measured = 9.5 if "b" not in arguments else None
            reply(
                ControlReply(
                    request.id,
                    final=True,
                    result={
                        "a": arguments["a"],
                        "b": arguments.get("b", "ams1"),
                        "estimated_rtt_ms": 9.1,
                        "measured_rtt_ms": measured,
                        "error_estimate": 0.1,
                    },
                )
            )
        elif request.command in ("submit", "explain") and "regoin" in arguments["sql"]:
            lines = arguments["sql"].splitlines()
            line = next(i for i, text in enumerate(lines, 1) if "regoin" in text)
            column = lines[line - 1].index("regoin") + 1
            problem = QueryError("no column regoin", line=line, column=column, hint="did you mean region?")
            reply(refusal(request.id, problem))
        elif request.command == "submit":
            placed = [{"id": "q2.1", "kind": "window", "node": "paris-2", "reused": False}]
            statement = {"statement": "query", "name": "busy", "query": "q2", "operators": placed, "message": "query q2 is running"}
            reply(ControlReply(request.id, final=True, result=[statement]))
        elif request.command == "tail":
            self.streams[request.id] = reply
            if self.tail_rows:
                reply(ControlReply(request.id, final=False, result={"columns": ["region", "cpu", "alert"], "rows": self.tail_rows}))
            if "limit" in arguments:
                reply(ControlReply(request.id, final=True))
        elif request.command == "drop":
            reply(ControlReply(request.id, final=True, result={"dropped": [arguments["query"]]}))
        elif request.command == "refuse":
            raise LinkError("not now")
        elif request.command == "break":
            raise ZeroDivisionError("a bug")
        elif request.command != "silence":
            reply(ControlReply(request.id, final=True, result=self.answers[request.command]))
        return lambda: self.cancelled.append(request.id)


@contextlib.contextmanager
def serving(directory: Path, agent: FakeAgent, config: ControlConfig | None = None) -> Iterator[ControlServer]:
    """Serves the fake agent's control socket on a thread of its own until the block ends."""
    loop = agent.loop = new_event_loop()
    server = ControlServer(directory, agent, config or ControlConfig())
    loop.run_until_complete(server.start())
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(server.close(), loop).result(timeout=60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(timeout=60)
        loop.close()
