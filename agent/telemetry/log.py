"""Records the agent's measurements: typed rows (`sbon.telemetry.rows`) go to the spool and to listeners (a broker).

Telemetry must not harm the agent. Rows wait in a bounded buffer, an executor thread appends them to the spool, and rows that the disk
refuses are counted and dropped. A separate process turns the spool into Parquet files (`sbon_agent.telemetry.writer`); the daemon starts it
when a piece is ready (`sbon_agent.telemetry.process`).
"""

from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import msgspec

from sbon.errors import ConfigError
from sbon.ports import Timer
from sbon.telemetry.rows import Row
from sbon.types import NodeId
from sbon_agent.host import Host
from sbon_agent.logs import structlog
from sbon_agent.telemetry.broker import parse_broker
from sbon_agent.telemetry.spool import Spool, adopt, encode_line

DIRECTORY_NAME = "telemetry"
HOUR_US = 3_600_000_000
SPOOL_SHARE = 4
"""The spool may take 1/SPOOL_SHARE of the telemetry's bytes, if no writer empties it."""

Listener = Callable[[int, int, Row], None]
"""Called with every row, its wall-clock time in microseconds and its number; must not block."""


class TelemetryConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Telemetry that the agent keeps, under `telemetry` in the data directory. TOML table [telemetry]."""

    enabled: bool = True
    """Keeps measurements. False: nothing is written or published, and nothing can be analysed later."""
    flush_interval_s: float = 5.0
    """Longest time that records wait in memory before they are written. Shorter: a crash loses fewer records, more small writes."""
    buffer_records_max: int = 20_000
    """Most records waiting in memory; more are dropped and counted. A record takes some hundred bytes."""
    parquet: bool = True
    """Starts a process of the lowest priority that turns records into Parquet files each hour and at the end (about a second of one core).
    False: records wait in the spool for `python -m sbon_agent.telemetry.writer`."""
    piece_bytes_max: int = 8 * 2**20
    """Bytes of records at which they are turned into Parquet files before their hour is over. More: fewer and larger files, a writer that
    needs more memory."""
    keep_hours: float = 168.0
    """Age in hours at which records are deleted. Longer: more history, more disk."""
    total_bytes_max: int = 512 * 2**20
    """Bytes above which the oldest hours are deleted. The current hour always stays, so a burst may exceed the limit."""
    latency_window_s: float = 10.0
    """Time over which latencies at sinks are summarised. Shorter: finer, more rows."""
    mqtt: str = ""
    """Broker to which records are published as well, as mqtt://[USER@]HOST[:PORT]/PREFIX, or mqtts:// for TLS; empty for none. `sbon
    collect` receives them."""
    mqtt_password_file: str = ""
    """File with the password for USER, readable by the agent only; empty takes the environment variable SBON_MQTT_PASSWORD."""
    mqtt_ca_file: str = ""
    """File with the certificates to trust; empty takes the system's."""
    mqtt_buffer_records_max: int = 20_000
    """Most records waiting for the broker; further ones displace the oldest, which count as dropped. More: no loss during longer absences
    of the broker."""

    def __post_init__(self) -> None:
        if not 0.05 <= self.flush_interval_s <= 3600:
            raise ValueError(f"flush_interval_s = {self.flush_interval_s}, expected 0.05 to 3600")
        for name in ("buffer_records_max", "mqtt_buffer_records_max"):
            if not 1 <= getattr(self, name) <= 10_000_000:
                raise ValueError(f"{name} = {getattr(self, name)}, expected 1 to 10000000")
        if not 2**10 <= self.piece_bytes_max <= 2**30:
            raise ValueError(f"piece_bytes_max = {self.piece_bytes_max}, expected 1024 to 1073741824")
        if not 1 <= self.keep_hours <= 1e9:
            raise ValueError(f"keep_hours = {self.keep_hours}, expected at least 1")
        if self.total_bytes_max < 2**20:
            raise ValueError(f"total_bytes_max = {self.total_bytes_max}, expected at least 1048576")
        if self.mqtt:
            try:
                parse_broker(self.mqtt)
            except ConfigError as problem:
                raise ValueError(f"mqtt: {problem}") from problem
        if not 1 <= self.latency_window_s <= 3600:
            raise ValueError(f"latency_window_s = {self.latency_window_s}, expected 1 to 3600")


class Telemetry:
    """Takes rows on the agent's thread and writes them on an executor thread, one flush at a time.

    Parameters
    ----------
    directory : folder of the spool and the tables; None keeps nothing on disk
    agent : name of the agent
    """

    def __init__(self, config: TelemetryConfig, directory: Path | None, host: Host, agent: NodeId) -> None:
        self.config = config
        self.directory = directory if config.enabled else None
        self.agent = agent
        self.start = ""
        """Distinguishes this run of the agent from others; empty until it has begun."""
        self.counters = {"records": 0, "records_dropped": 0, "write_failures": 0, "pieces_closed": 0, "pieces_deleted": 0}
        self.on_piece: Callable[[], None] = lambda: None
        """Called when a piece of the spool is ready for the writer."""
        self.left_over = 0
        """Number of pieces that an earlier run has left."""
        self._host = host
        self._log = structlog.get_logger("telemetry")
        self._listeners: list[Listener] = []
        self._waiting: list[tuple[int, bytes]] = []
        self._under_way: list[list[tuple[int, bytes]]] = []
        self._sequence = 0
        self._writing = False
        self._failing = False
        self._closed = False
        self._timer: Timer | None = None
        self._spool: Spool | None = None

    def listen(self, listener: Listener) -> None:
        """Registers a listener for every row from now on."""
        if self.config.enabled:
            self._listeners.append(listener)

    def begin(self, start: str) -> None:
        """Begins a run of the agent. Closes pieces that an earlier run has left, for the writer."""
        self.start = start
        if self.directory is None:
            return
        config = self.config
        self._spool = Spool(self.directory, self.agent, start, config.piece_bytes_max, config.total_bytes_max // SPOOL_SHARE)
        try:
            self.left_over = adopt(self.directory)
        except OSError as problem:
            self._failed(problem, 0)

    def record(self, row: Row) -> None:
        """Keeps one measurement with the wall-clock time; never blocks, and raises nothing."""
        if self._closed or (self._spool is None and not self._listeners):
            return
        self._sequence += 1  # dropped rows get numbers, too, so that a reader sees that some are missing
        time_us = int(self._host.wall() * 1e6)
        for listener in self._listeners:
            listener(time_us, self._sequence, row)
        if self._spool is None:
            self.counters["records"] += 1
            return
        if len(self._waiting) >= self.config.buffer_records_max:
            self.counters["records_dropped"] += 1
            return
        self._waiting.append((time_us // HOUR_US, encode_line(time_us, self._sequence, row)))
        self.counters["records"] += 1
        if self._timer is None and not self._writing:
            self._timer = self._host.call_at(self._host.now() + self.config.flush_interval_s, self.flush)

    def flush(self) -> None:
        """Gives waiting rows to an executor thread. While a write is in progress, rows wait for the next flush."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        spool = self._spool
        if spool is None or self._writing or not self._waiting:
            return
        records, self._waiting = self._waiting, []
        self._writing = True
        under_way = self._under_way = [records]
        self._host.execute(lambda: spool.append(_taken(under_way)), self._written(len(records)), rows=0)

    def close(self) -> None:
        """Writes waiting rows on this thread, and closes the spool; further rows are ignored."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._closed or self._spool is None:
            self._closed = True
            return
        self._closed = True
        records, self._waiting = self._waiting, []
        count = len(records) + sum(map(len, self._under_way))
        try:
            # Rows given to a thread that has not started to write them would be lost with the thread.
            self._spool.append(chain(_taken(self._under_way), records))
            self._spool.close()
        except OSError as problem:
            self._failed(problem, count)
        self._count_pieces()

    def _written(self, count: int) -> Callable[[BaseException | None], None]:
        def done(outcome: BaseException | None) -> None:
            self._writing = False
            if outcome is None:
                if self._failing:
                    self._failing = False
                    self._log.info("telemetry.resumed", **self.counters)
            elif isinstance(outcome, OSError):
                self._failed(outcome, count)
            else:
                raise outcome
            self._count_pieces()
            if self._waiting and not self._closed and self._timer is None:
                self._timer = self._host.call_at(self._host.now() + self.config.flush_interval_s, self.flush)

        return done

    def _count_pieces(self) -> None:
        assert self._spool is not None
        fresh = self._spool.pieces_closed > self.counters["pieces_closed"]
        self.counters["pieces_closed"] = self._spool.pieces_closed
        self.counters["pieces_deleted"] = self._spool.pieces_deleted
        if fresh:
            self.on_piece()

    def _failed(self, problem: OSError, count: int) -> None:
        """Counts lost rows; warns once until writing works again."""
        self.counters["write_failures"] += 1
        self.counters["records_dropped"] += count
        if not self._failing:
            self._failing = True
            self._log.warning("telemetry.write_failed", reason=str(problem), directory=str(self.directory), records_lost=count)


def _taken(under_way: list[list[tuple[int, bytes]]]) -> Iterator[tuple[int, bytes]]:
    """Yields the lines of a flush, to its first caller only. The spool calls it under its lock."""
    if under_way:
        yield from under_way.pop()
