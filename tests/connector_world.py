"""A host for tests of connectors: tests set its clock, and its executor runs work immediately."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl

from sbon.query.params.source import Reads, SinkParams, SourceParams
from sbon.reach import Reach
from sbon.schema import ColumnType, Field, Schema
from sbon_agent.connectors import ConnectorContext, Polled, SinkConnector, SourceConnector, SystemStreams, build_sink, build_source

WALL = 1_600_000_000.0
DEADLINE_S = 60.0
"""Limit of waits that take a moment on an idle machine."""


class InlineHost:
    """The part of `sbon_agent.host.Host` that connectors use."""

    def __init__(self, loop: Any = None) -> None:
        self.rng = np.random.default_rng(0)
        self.loop = loop
        self.workers = 2

    def now(self) -> float:
        """Returns monotonic seconds."""
        return time.monotonic()

    def call_at(self, when: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        """Calls `callback` on the loop's thread."""
        handle: asyncio.TimerHandle = self.loop.call_later(when - time.monotonic(), callback)
        return handle

    def random_bytes(self, count: int) -> bytes:
        """Returns bytes from a seeded generator."""
        return bytes(self.rng.bytes(count))

    def execute(self, work: Callable[[], Any], done: Callable[[Any], None], *, rows: int) -> None:
        """Runs the work immediately."""
        try:
            result = work()
        except Exception as error:
            done(error)
        else:
            done(result)


def context(data_dir: Path | str = "/nowhere", loop: Any = None, **labels: str) -> ConnectorContext:
    """Returns the context that connectors are given."""
    host: Any = InlineHost(loop)
    reach = Reach("n1", str(data_dir))
    return ConnectorContext(host=host, node="n1", labels=labels, data_dir=str(data_dir), reach=reach, system=SystemStreams())


def opened(connector: Any) -> Any:
    """Opens a connector, as the engine does before it starts a source or writes into a sink."""
    if hasattr(connector, "open"):
        connector.open()
    return connector


def columns(**types: str) -> Schema:
    """Returns a schema from names and types: `columns(ts="time", x="float")`."""
    return tuple(Field(name, ColumnType(kind)) for name, kind in types.items())


def source(
    connector: str,
    schema: Schema,
    where: ConnectorContext | None = None,
    *,
    name: str = "s",
    time: str | None = None,
    delay_us: int = 0,
    idle_us: int = 0,
    reads: Reads | None = None,
    not_null: tuple[str, ...] = (),
    **options: object,
) -> SourceConnector:
    """Returns an opened source; `fields__x__kind` stands for the option `fields.x.kind`."""
    given = tuple(sorted((key.replace("__", "."), str(value)) for key, value in options.items()))
    params = SourceParams(name, connector, given, schema, time, delay_us, idle_us, not_null, reads=reads)
    made: SourceConnector = opened(build_source(params, where or context()))
    return made


def sink(connector: str, schema: Schema, where: ConnectorContext | None = None, **options: object) -> SinkConnector:
    """Returns an opened sink."""
    params = SinkParams("out", connector, tuple(sorted((key, str(value)) for key, value in options.items())))
    made: SinkConnector = opened(build_sink(params, schema, where or context()))
    return made


async def until(condition: Callable[[], Any]) -> Any:
    """Waits until a condition is true; returns its value."""
    deadline = time.monotonic() + DEADLINE_S
    while not (value := condition()):
        assert time.monotonic() < deadline, "the condition has not come true in time"
        await asyncio.sleep(0.005)
    return value


def drain(connector: SourceConnector, now: float = 0.0, wall: float = WALL, rounds: int = 10_000) -> tuple[pl.DataFrame, list[Polled]]:
    """Polls until the source ends or has to wait; returns all its rows, and all answers."""
    waiting = SimpleNamespace(ready=False)
    connector.start(lambda: setattr(waiting, "ready", True))
    answers: list[Polled] = []
    for _ in range(rounds):
        waiting.ready = False
        polled = connector.poll(now, wall)
        answers.append(polled)
        if polled.finished or (polled.next_poll is None and not waiting.ready) or (polled.next_poll is not None and polled.next_poll > now):
            break
    frames = [polled.frame for polled in answers if polled.frame is not None]
    return pl.concat(frames) if frames else pl.DataFrame(), answers
