"""Connector `file` (source): rows of a CSV, NDJSON or Parquet file, plain or gzipped (`.gz`; not Parquet).

Options
-------
path : of the file, a regular one. Relative ones start in the agent's data directory, or, where another agent's statement asks for the file,
    in the folder `files` there; that may read what the setting `connectors.file.allow` says
format : `csv`, `ndjson` or `parquet`; default: by the name (`.csv`, `.tsv`, `.ndjson`, `.jsonl`, `.json`, `.parquet`)
replay : `fast` (default) as fast as the overlay takes the rows, or `event_time` at the pace of their event times
speed : with `event_time`, how many times faster; default 1
header : CSV: `true` (default) if the first record names the fields; without, they are the columns in order
separator : CSV: one character, default `,` (tab for `.tsv`)
time_format, time_unit : see `time_format.TimeFormat`
check_every : behind FOR SYSTEM_TIME AS OF (`file_table`), how often the file is looked at for changes; default 10 s
batch_rows_max : rows of a batch, default 65536; fewer where they would take longer than the engine's quantum

Of a Parquet file that is read `fast`, only the columns are read that the query needs, and no row group that the query's conditions leave
out by its statistics (`parquet_pruning`).

The file is read in chunks of some MiB, one ahead, on an executor thread. Columns are found by name; a column that the file lacks is an
error, fields that are no column are ignored. Rows that cannot be read are left out and counted.
"""

from __future__ import annotations

import gzip
import os
import threading
import zlib
from collections.abc import Callable, Generator
from pathlib import Path
from typing import IO, cast

import polars as pl

from sbon.errors import ConnectorError
from sbon.misfits import Misfits
from sbon.query.plan import SourceParams
from sbon.reach import Reach
from sbon_agent.connectors.base import BATCH_ROWS, BATCH_ROWS_MAX, ConnectorContext, Polled
from sbon_agent.connectors.csv_rows import CsvRows, first_record_end, header_names
from sbon_agent.connectors.json_rows import JsonRows
from sbon_agent.connectors.opening import open_to_read, path_of
from sbon_agent.connectors.options import Options
from sbon_agent.connectors.parquet_footer import row_groups
from sbon_agent.connectors.parquet_pruning import ChunkPlan, Pruning
from sbon_agent.connectors.parquet_rows import ParquetRows, needed_columns
from sbon_agent.connectors.time_format import TimeFormat
from sbon_agent.connectors.watermark import Watermark

CHUNK_BYTES = 4 << 20
"""Read at once."""
RECORD_BYTES_MAX = 16 << 20
"""Longest record; beyond it the file is not what it is said to be."""
PARQUET_BYTES = 16 << 20
PARQUET_ROWS_MIN, PARQUET_ROWS_MAX = 16_384, 524_288
"""Rows of a Parquet file read at once: about `PARQUET_BYTES` in memory."""
CHECK_EVERY_S_MIN, CHECK_EVERY_S_MAX = 0.1, 86_400.0
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

_FORMATS = {
    ".csv": "csv",
    ".tsv": "csv",
    ".ndjson": "ndjson",
    ".jsonl": "ndjson",
    ".json": "ndjson",
    ".parquet": "parquet",
}


class FileSource:
    """Reads one chunk ahead and gives it out in batches."""

    def __init__(self, params: SourceParams, context: ConnectorContext) -> None:
        options = Options(f"source {params.name}", params.connector, params.options)
        self._what = f"source {params.name}"
        path = path_of(self._what, options.required("path", "readings.csv"), context.reach)
        self._time_column = params.time_column
        self._replays = options.choice("replay", ("fast", "event_time"), "fast") == "event_time"
        if self._replays and params.time_column is None:
            raise options.refuse("replay", "event_time", "fast: the source has no event time (WATERMARK FOR)")
        self._speed = options.number("speed", 1.0, 1e-6, 1e9)
        self.batch_rows_max = options.integer("batch_rows_max", BATCH_ROWS, 1, 1_000_000)
        self.batch_rows = BATCH_ROWS_MAX
        self.check_every_s = options.duration_us("check_every", 10_000_000) / 1e6
        """How often a table is looked at; a stream is read once."""
        if not CHECK_EVERY_S_MIN <= self.check_every_s <= CHECK_EVERY_S_MAX:
            raise options.refuse("check_every", options.text("check_every", ""), "a span from '100 ms' to '1 day'")
        suffixes = [suffix.lower() for suffix in path.suffixes]
        zipped = suffixes[-1:] == [".gz"]
        suffix = (suffixes[:-1] if zipped else suffixes)[-1:]
        known = options.choice("format", ("csv", "ndjson", "parquet"), _FORMATS.get(suffix[0] if suffix else "", "unknown"))
        if known == "unknown":
            raise ConnectorError(f"{self._what}: the format of {path.name} is not clear from its name: write format = 'csv'", option="path")
        header = options.flag("header", True)
        separator = options.text("separator", "\t" if suffix == [".tsv"] else ",")
        if len(separator) != 1 or not separator.isascii():
            raise options.refuse("separator", separator, "one character")
        times = TimeFormat.read(options)
        options.finish()
        self.misfits = Misfits()
        self.reader = FileReader(self._what, path, context.reach, zipped, known, params, header, separator, times, self.misfits)
        self._host = context.host
        self._watermark = Watermark(params)
        self._ready: Callable[[], None] | None = None
        self._chunk: pl.DataFrame | None = None
        self._next: pl.DataFrame | None = None
        self._left_out_us: int | None = None
        """Newest event time of what was left out before `_next`."""
        self._reading = self._ended = self._stopped = False
        self._error: ConnectorError | None = None
        self._began: tuple[float, int] | None = None

    @property
    def dropped_rows(self) -> int:
        """Rows that could not be read."""
        return self.misfits.rows

    def open(self) -> None:
        """Open the file. One that cannot be opened at all is refused now, when somebody still listens."""
        self.reader.open()

    def start(self, ready: Callable[[], None]) -> None:
        """Read the first chunk."""
        self._ready = ready
        self._read_ahead()

    def poll(self, now: float, wall: float) -> Polled:
        """The next rows that are here and due."""
        if self._chunk is None and self._left_out_us is not None:
            left_out_us, self._left_out_us = self._left_out_us, None
            return Polled(None, self._watermark.seen(left_out_us), now)
        if self._chunk is None:
            self._chunk, self._next = self._next, None
        if self._chunk is None:
            if self._error is not None:
                raise self._error
            if self._ended:
                return Polled(None, self._watermark.end(), None, True)
            self._read_ahead()
            return Polled(None, self._watermark.us, None)
        self._read_ahead()
        count, due_at = self._due(self._chunk.head(min(self.batch_rows, self.batch_rows_max)), now)
        if count == 0:
            return Polled(None, self._watermark.us, due_at)
        frame = self._chunk.head(count)
        self._chunk = self._chunk.slice(count) if count < self._chunk.height else None
        newest = frame[self._time_column].to_physical().max() if self._time_column is not None else None
        return Polled(frame, self._watermark.seen(newest if isinstance(newest, int) else None), due_at)

    def stop(self) -> None:
        """Close the file, as soon as no read is under way."""
        self._stopped = True
        if not self._reading:
            self.reader.close()

    def _due(self, rows: pl.DataFrame, now: float) -> tuple[int, float]:
        """How many of these rows may go now, and when to ask again."""
        if not self._replays or self._time_column is None:
            return rows.height, now
        times = rows[self._time_column].to_physical()
        if self._began is None:
            first = times.drop_nulls().head(1)
            if first.is_empty():
                return rows.height, now
            self._began = now, int(first[0])
        began, origin = self._began
        limit = origin + (now - began) * 1e6 * self._speed
        late = (times > limit).arg_max() if bool((times > limit).any()) else None
        if late is None:
            return rows.height, now
        # A row without a time goes with the one before it.
        return late, began + (int(times[late]) - origin) / (1e6 * self._speed)

    def _read_ahead(self) -> None:
        if self._reading or self._ended or self._stopped or self._next is not None or self._error is not None:
            return
        self._reading = True
        self._host.execute(self.reader.read, self._have_read, rows=BATCH_ROWS)

    def _have_read(self, result: pl.DataFrame | BaseException | None) -> None:
        self._reading = False
        if self._stopped:
            self.reader.close()
            return
        if isinstance(result, ConnectorError):
            self._error = result
        elif isinstance(result, BaseException):
            self._error = ConnectorError(f"{self._what}: {self.reader.path}: {type(result).__name__}: {result}")
        elif result is None:
            self._ended = True
            self.reader.close()
        else:
            self._next, self._left_out_us = result, self.reader.left_out_us
        if self._ready is not None:
            self._ready()


class FileReader:
    """The file itself; used on one executor thread at a time. `close` may come while `open` is still at it."""

    def __init__(
        self,
        what: str,
        path: Path,
        reach: Reach,
        zipped: bool,
        kind: str,
        params: SourceParams,
        header: bool,
        separator: str,
        times: TimeFormat,
        misfits: Misfits,
    ) -> None:
        self.path = path
        self._reach = reach
        self._what = what
        self._zipped = zipped
        self._params = params
        self._schema = params.columns
        self.left_out_us: int | None = None
        """Newest event time of the row groups that were left out just before what was read last."""
        self._header = header
        self._separator = separator
        self._times = times
        self._misfits = misfits
        self._lock = threading.Lock()
        self._file: IO[bytes] | None = None
        self._closed = False
        self._frames = {"csv": self._csv, "ndjson": self._ndjson, "parquet": self._parquet}[kind]()

    def read(self) -> pl.DataFrame | None:
        """The next rows, at least one; None at the end."""
        try:
            while True:
                frame = next(self._frames, None)
                if frame is None or frame.height:
                    return frame
        except (OSError, EOFError, zlib.error) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise ConnectorError(f"{self._what}: {self.path} cannot be read: {reason}") from error
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
            first = str(error).strip().splitlines()
            raise ConnectorError(f"{self._what}: {self.path} cannot be read: {first[0][:200] if first else 'malformed'}") from error

    def open(self) -> None:
        """Raise ConnectorError if the file cannot be opened."""
        file = open_to_read(self._what, self.path, self._reach)
        with self._lock:
            if not self._closed:
                self._file = file
                return
        file.close()

    def stamp(self) -> tuple[int, int, int, int]:
        """Numbers that are others when another file has its place, or somebody has written to it. Of an open file."""
        found = os.fstat(self._opened().fileno())
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

    def close(self) -> None:
        """Let go of the file."""
        self._frames.close()
        with self._lock:
            self._closed = True
            file, self._file = self._file, None
        if file is not None:
            file.close()

    def _opened(self) -> IO[bytes]:
        if self._file is None:
            raise ConnectorError(f"{self._what}: {self.path} is closed")
        return self._file

    def _blocks(self, quoted: bool) -> Generator[bytes, None, None]:
        """Whole records, about `CHUNK_BYTES` at a time. With `quoted`, a line break between quotes ends no record."""
        opened = self._opened()
        file = cast("IO[bytes]", gzip.open(opened, "rb")) if self._zipped else opened  # noqa: SIM115 - `close` does it
        held = b""
        while True:
            data = file.read(CHUNK_BYTES)
            if not data:
                if held.strip():
                    yield held
                return
            held += data
            end = _last_record_end(held, quoted)
            if end:
                yield held[:end]
                held = held[end:]
            elif len(held) > RECORD_BYTES_MAX:
                raise ConnectorError(
                    f"{self._what}: {self.path} has a record of more than {RECORD_BYTES_MAX} bytes, expected lines (is a quote unclosed?)"
                )

    def _csv(self) -> Generator[pl.DataFrame, None, None]:
        rows: CsvRows | None = None
        for block in self._blocks(quoted=True):
            data = block.removeprefix(_BYTE_ORDER_MARK) if rows is None else block
            if rows is None:
                names = [field.name for field in self._schema]
                if self._header:
                    end = first_record_end(data)
                    names, data = self._header_of(data[:end]), data[end:]
                rows = CsvRows(self._schema, names, self._separator, self._times, self._misfits)
            if data and not data.isspace():
                yield rows.read(data)

    def _header_of(self, record: bytes) -> list[str]:
        names = header_names(record, self._separator)
        self._need(names)
        return names

    def _need(self, names: list[str]) -> None:
        missing = [field.name for field in self._schema if field.name not in names]
        if missing:
            raise ConnectorError(f"{self._what}: {self.path} has no column {missing[0]}, it has {', '.join(names)[:300]}")

    def _ndjson(self) -> Generator[pl.DataFrame, None, None]:
        rows = JsonRows(self._schema, self._times, self._misfits)
        for number, block in enumerate(self._blocks(quoted=False)):
            yield rows.read_block(block if number else block.removeprefix(_BYTE_ORDER_MARK))

    def _parquet(self) -> Generator[pl.DataFrame, None, None]:
        # By its descriptor: the name may lead elsewhere by now. A path as polars understands it could also be a pattern.
        lazy = pl.scan_parquet(f"/proc/self/fd/{self._opened().fileno()}", glob=False)
        found = lazy.collect_schema()
        self._need(found.names())
        names = needed_columns(self._params, found)
        rows = ParquetRows(f"{self._what}: {self.path}", self._schema, found, self._times, self._misfits, names)
        groups = row_groups(self._opened()) or []
        plan = ChunkPlan(groups, Pruning(self._params, found))
        offset, count = 0, PARQUET_ROWS_MIN
        self.left_out_us = None
        while True:
            offset, left_out_us = plan.begin(offset)
            self.left_out_us = max((us for us in (self.left_out_us, left_out_us) if us is not None), default=None)
            frame = lazy.slice(offset, plan.end(offset, count) - offset).select(names).collect()
            if frame.is_empty():
                return
            offset += frame.height
            row_bytes = frame.estimated_size() / frame.height
            count = max(PARQUET_ROWS_MIN, min(PARQUET_ROWS_MAX, int(PARQUET_BYTES // max(1.0, row_bytes))))
            read = rows.read(frame)
            if read.height:
                yield read
                self.left_out_us = None


def _last_record_end(data: bytes, quoted: bool) -> int:
    """Where the last whole record ends; 0 where none does."""
    end = data.rfind(b"\n") + 1
    quotes = data.count(b'"', 0, end) if quoted else 0
    while end and quotes % 2:
        before = data.rfind(b"\n", 0, end - 1) + 1
        quotes -= data.count(b'"', before, end)
        end = before
    return end
