"""Collects telemetry from a broker into the same tables that agents write, for `sbon collect`: rows go into a spool as they arrive, and
into Parquet files periodically.

A batch that arrives twice, because an acknowledgement was lost, counts once: rows of one run of an agent arrive in the order of their
numbers (`sbon_agent.telemetry.broker`), so rows whose numbers are not above the last are repetitions. The last numbers survive a restart,
even after a crash.
"""

import asyncio
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from sbon.errors import SbonError
from sbon.telemetry.rows import VERSION
from sbon.types import AGENT_NAME, NodeId
from sbon_agent.mqtt import Pauses, quiet_logger
from sbon_agent.telemetry.broker import Access, Batch, Broker, client_options
from sbon_agent.telemetry.spool import FOLDER, Spool, adopt, closed_pieces, encode_line, read_piece
from sbon_agent.telemetry.writer import Outcome, convert

HOUR_US = 3_600_000_000
PIECE_BYTES_MAX = 8 * 2**20
SPOOL_BYTES_MAX = 2**40
"""No limit in practice: the collector writes its pieces itself, so none waits for long."""
RUNS_MAX = 100_000
"""Most runs of agents whose last number is remembered; runs silent for longest are forgotten."""
QUEUE_MAX = 10_000
"""Most received messages that are not in the spool yet."""
_START = re.compile(r"[0-9a-f]{1,16}")
_STATE = "collected.json"

Progress = Callable[[str], None]


class Collection:
    """Rows of any number of agents on their way into one `telemetry` folder. A folder has one collector.

    Parameters
    ----------
    directory : folder of the tables

    Raises
    ------
    OSError
        The folder cannot be written.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.counters = {"messages": 0, "records": 0, "repeated": 0, "missing": 0, "messages_refused": 0, "other_versions": 0}
        self.counters["messages_overflowed"] = 0
        self.agents: set[NodeId] = set()
        self._decode = msgspec.msgpack.Decoder(Batch).decode
        self._spools: dict[str, Spool] = {}
        # Numbers of new pieces must not repeat those of an earlier collector for the same runs, whose files would be replaced.
        self._first_piece = time.time_ns()
        (directory / FOLDER).mkdir(parents=True, exist_ok=True)
        self._last: dict[str, int] = self._remembered()
        self.write()

    def take(self, payload: bytes, topic_agent: str) -> None:
        """Takes one message.

        Raises
        ------
        OSError
            The spool cannot be written.
        """
        self.counters["messages"] += 1
        try:
            batch = self._decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._refuse(payload)
            return
        if batch.version != VERSION:
            self.counters["other_versions"] += 1
            return
        if batch.agent != topic_agent or not AGENT_NAME.fullmatch(batch.agent) or not _START.fullmatch(batch.start):
            self.counters["messages_refused"] += 1
            return
        run = f"{batch.agent}/{batch.start}"
        last = self._last.pop(run, 0)
        fresh: list[tuple[int, bytes]] = []
        for line in batch.lines:
            if line.sequence <= last:
                self.counters["repeated"] += 1
                continue
            self.counters["missing"] += line.sequence - last - 1
            last = line.sequence
            fresh.append((line.time_us // HOUR_US, encode_line(line.time_us, line.sequence, line.row)))
        self._last[run] = last
        self.agents.add(batch.agent)
        if fresh:
            self._spool(run, batch).append(fresh)
            self.counters["records"] += len(fresh)

    def close_pieces(self) -> None:
        """Closes the open pieces for the next `write`, and saves the last numbers.

        Raises
        ------
        OSError
            A file cannot be written.
        """
        for spool in self._spools.values():
            spool.close()
        while len(self._last) > RUNS_MAX:
            del self._last[next(iter(self._last))]
        quiet = [run for run in self._spools if run not in self._last]
        for run in quiet:
            del self._spools[run]
        path = self.directory / FOLDER / _STATE
        fresh = path.with_suffix(".tmp")
        fresh.write_bytes(msgspec.json.encode(self._last))
        fresh.replace(path)

    def write(self) -> Outcome:
        """Turns closed pieces into Parquet files; may run on a thread of its own while rows are taken.

        Raises
        ------
        OSError
            A file cannot be written.
        """
        return convert(self.directory)

    def _spool(self, run: str, batch: Batch) -> Spool:
        if run not in self._spools:
            self._spools[run] = Spool(self.directory, batch.agent, batch.start, PIECE_BYTES_MAX, SPOOL_BYTES_MAX, self._first_piece)
        return self._spools[run]

    def _refuse(self, payload: bytes) -> None:
        """Counts a message that is no batch of this version, as one of another version or as refused."""
        try:
            version = msgspec.msgpack.decode(payload)[0]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError, IndexError, KeyError):
            version = None
        self.counters["other_versions" if isinstance(version, int) and version != VERSION else "messages_refused"] += 1

    def _remembered(self) -> dict[str, int]:
        """Returns the last number of each run: as saved, or higher if the spool has later rows after a crash."""
        try:
            last = msgspec.json.decode((self.directory / FOLDER / _STATE).read_bytes(), type=dict[str, int])
        except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError):
            last = {}
        adopt(self.directory)
        for path in closed_pieces(self.directory):
            piece = read_piece(path)
            if piece is not None and piece.lines:
                run = f"{piece.header.agent}/{piece.header.start}"
                last[run] = max(last.get(run, 0), *(line.sequence for line in piece.lines))
        return last


async def collect(
    broker: Broker, let_in: Access, directory: Path, interval_s: float, client: str, ending: asyncio.Event, progress: Progress
) -> Collection:
    """Takes telemetry until `ending` is set; then all received rows are in the tables.

    Parameters
    ----------
    interval_s : seconds between writes of Parquet files
    client : name under which the broker keeps messages while the collector is away

    Raises
    ------
    SbonError
        A file cannot be written; rows that have not been taken wait at the broker.
    ConfigError
        The options for the broker are wrong.
    """
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    options = client_options(broker, let_in)
    taking: asyncio.Task[None] | None = None
    try:
        collection = Collection(directory)
        taking = asyncio.create_task(_take(broker, options, client, collection, progress))
        while not ending.is_set():
            ended = asyncio.create_task(ending.wait())
            await asyncio.wait({ended, taking}, timeout=interval_s, return_when=asyncio.FIRST_COMPLETED)
            ended.cancel()
            if taking.done():
                taking.result()
            collection.close_pieces()
            await written(collection, ending)
            progress(f"{collection.counters['records']:,} records of {len(collection.agents)} agents")
        taking.cancel()
        await asyncio.wait({taking})
        collection.close_pieces()
        await written(collection, ending)
    except OSError as problem:
        reason = problem.strerror or str(problem)
        raise SbonError(f"cannot write below {directory}: {reason}; rows that were not taken wait at the broker") from problem
    finally:
        if taking is not None:
            taking.cancel()
    return collection


async def written(collection: Collection, ending: asyncio.Event) -> None:
    """Writes closed pieces on a thread. An interrupt sets `ending`, and the write is repeated; a second interrupt goes to the caller.

    The repetition is needed because polars aborts its work at an interrupt, on whichever thread it runs, even if the event loop has handled
    the interrupt.
    """
    try:
        await asyncio.to_thread(collection.write)
    except KeyboardInterrupt:
        ending.set()
        await asyncio.to_thread(collection.write)


class _Inbox(asyncio.Queue[Any]):
    """Bounded queue of received messages."""

    def __init__(self, counters: dict[str, int]) -> None:
        super().__init__(QUEUE_MAX)
        self._counters = counters

    def put_nowait(self, item: Any) -> None:
        """Adds a message, or counts it as dropped if the queue is full."""
        if self.full():
            self._counters["messages_overflowed"] += 1
        else:
            super().put_nowait(item)


async def _take(broker: Broker, options: dict[str, object], client: str, collection: Collection, progress: Progress) -> None:
    import aiomqtt

    start = len(broker.topic(""))
    inbox = _Inbox(collection.counters)

    def take_all() -> None:
        while not inbox.empty():
            message = inbox.get_nowait()
            if isinstance(message.payload, bytes):
                collection.take(message.payload, str(message.topic)[start:])

    pauses, down = Pauses(), False
    while True:
        try:
            async with aiomqtt.Client(
                **options,  # type: ignore[arg-type]
                identifier=client,
                clean_session=False,
                # Our own queue, so that received and acknowledged messages outlive the connection.
                queue_type=lambda maxsize=0: inbox,  # type: ignore[arg-type]
                logger=quiet_logger(),
            ) as connected:
                await connected.subscribe(broker.topic("+"), qos=1)
                progress(f"connected to {broker}")
                down = False
                pauses.reset()
                async for message in connected.messages:
                    if isinstance(message.payload, bytes):
                        collection.take(message.payload, str(message.topic)[start:])
        except asyncio.CancelledError:
            take_all()
            raise
        except (aiomqtt.MqttError, ValueError) as problem:
            take_all()
            if not down:
                down = True
                progress(f"{broker} cannot be reached, trying again: {problem}")
            await asyncio.sleep(pauses.next())
