"""The agent's measurements on disk: one NDJSON file per kind and hour, such as `migration/2026-11-21T07.ndjson`.

Measuring must never hurt what is measured. Records wait in a bounded buffer, an executor thread writes them, and what the disk
refuses is counted and forgotten: telemetry degrades, the agent does not.
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from agent.host import Host, Timer
from agent.logs import structlog

KIND = re.compile(r"[a-z][a-z0-9_]{0,63}")
DIRECTORY_NAME = "telemetry"
_FILE_NAME = re.compile(r"(\d{4}-\d{2}-\d{2}T\d{2})\.ndjson")


class TelemetryConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the agent keeps of its measurements, under `telemetry` in the data directory. TOML table [telemetry]."""

    enabled: bool = True
    """Off: nothing is written, and nothing can be analysed later."""
    flush_interval_s: float = 5.0
    """Records wait this long in memory. Shorter: less is lost in a crash, more small writes."""
    buffer_records_max: int = 20_000
    """Records waiting at most; more are dropped and counted. A record takes some hundred bytes."""
    keep_hours: float = 168.0
    """Older hours are deleted. Longer: more history, more disk."""
    total_bytes_max: int = 512 * 2**20
    """Oldest hours are deleted beyond this. At least the current hour stays, so that a burst may exceed it."""

    def __post_init__(self) -> None:
        if not 0.05 <= self.flush_interval_s <= 3600:
            raise ValueError(f"flush_interval_s = {self.flush_interval_s}, expected 0.05 to 3600")
        if not 1 <= self.buffer_records_max <= 10_000_000:
            raise ValueError(f"buffer_records_max = {self.buffer_records_max}, expected 1 to 10000000")
        if self.keep_hours < 1:
            raise ValueError(f"keep_hours = {self.keep_hours}, expected at least 1")
        if self.total_bytes_max < 2**20:
            raise ValueError(f"total_bytes_max = {self.total_bytes_max}, expected at least 1048576")


class Telemetry:
    """Takes records from the agent's thread and writes them on an executor thread, one flush at a time.

    Parameters
    ----------
    directory : where the kinds' folders go; None keeps nothing
    """

    def __init__(self, config: TelemetryConfig, directory: Path | None, host: Host) -> None:
        self._config = config
        self._directory = directory if config.enabled else None
        self._host = host
        self._log = structlog.get_logger("telemetry")
        self._waiting: list[tuple[Path, bytes]] = []
        self._writing = False
        self._failing = False
        self._closed = False
        self._timer: Timer | None = None
        self._encode = msgspec.json.Encoder(enc_hook=_plain).encode
        self.counters = {"records": 0, "records_dropped": 0, "write_failures": 0}

    def record(self, kind: str, **fields: Any) -> None:
        """Keep one measurement with the wall clock's `time_s`; never blocks, never fails for the caller's sake.

        Parameters
        ----------
        kind : names the folder: lower case letters, digits and underscores
        fields : plain values, named with their units
        """
        if self._directory is None or self._closed:
            return
        if len(self._waiting) >= self._config.buffer_records_max:
            self.counters["records_dropped"] += 1
            return
        if not KIND.fullmatch(kind):
            raise ValueError(f"kind of record {kind!r}, expected lower case letters, digits and underscores")
        wall_s = self._host.wall()
        path = self._directory / kind / f"{datetime.fromtimestamp(wall_s, UTC):%Y-%m-%dT%H}.ndjson"
        self._waiting.append((path, self._encode({"time_s": round(wall_s, 6), **fields}) + b"\n"))
        self.counters["records"] += 1
        if self._timer is None and not self._writing:
            self._timer = self._host.call_at(self._host.now() + self._config.flush_interval_s, self.flush)

    def flush(self) -> None:
        """Hand what waits to an executor thread, unless a write is under way; then the next flush takes it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._directory is None or self._writing or not self._waiting:
            return
        records, self._waiting = self._waiting, []
        self._writing = True
        self._host.execute(self._writer(records), self._written(len(records)), rows=0)

    def close(self) -> None:
        """Write what waits, here and now; further records are ignored."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._closed = True
        if self._directory is not None and self._waiting:
            records, self._waiting = self._waiting, []
            try:
                _append(records)
            except OSError as problem:
                self._failed(problem, len(records))

    def _writer(self, records: list[tuple[Path, bytes]]) -> Callable[[], None]:
        directory, wall_s, config = self._directory, self._host.wall(), self._config

        def write() -> None:
            _append(records)
            if directory is not None:
                prune(directory, config.keep_hours, config.total_bytes_max, wall_s)

        return write

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
            if self._waiting and not self._closed and self._timer is None:
                self._timer = self._host.call_at(self._host.now() + self._config.flush_interval_s, self.flush)

        return done

    def _failed(self, problem: OSError, count: int) -> None:
        """Count what was lost; say it once until writing works again."""
        self.counters["write_failures"] += 1
        self.counters["records_dropped"] += count
        if not self._failing:
            self._failing = True
            self._log.warning("telemetry.write_failed", reason=str(problem), directory=str(self._directory), records_lost=count)


def prune(directory: Path, keep_hours: float, total_bytes_max: int, wall_s: float) -> list[Path]:
    """Delete files of hours too old, then the oldest until the rest fits; the current hour stays. Returns what went.

    Only files that look like our own (`kind/2026-11-21T07.ndjson`) are touched.
    """
    current = f"{datetime.fromtimestamp(wall_s, UTC):%Y-%m-%dT%H}"
    oldest = f"{datetime.fromtimestamp(wall_s - keep_hours * 3600, UTC):%Y-%m-%dT%H}"
    files = sorted(
        (found[1], path.parent.name, path, path.stat().st_size)
        for path in directory.glob("*/*.ndjson")
        if (found := _FILE_NAME.fullmatch(path.name)) and KIND.fullmatch(path.parent.name)
    )
    total = sum(size for *_, size in files)
    deleted = []
    for hour, _, path, size in files:
        if hour < oldest or (total > total_bytes_max and hour < current):
            path.unlink(missing_ok=True)
            total -= size
            deleted.append(path)
    return deleted


def _append(records: list[tuple[Path, bytes]]) -> None:
    by_path: dict[Path, list[bytes]] = {}
    for path, line in records:
        by_path.setdefault(path, []).append(line)
    for path, lines in by_path.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(b"".join(lines))


def _plain(value: Any) -> Any:
    """Numbers of numpy and other strangers among the fields, as JSON can hold them."""
    item = getattr(value, "item", None)
    return item() if callable(item) else str(value)
