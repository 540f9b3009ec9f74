"""Connector `file` (source): rows of a CSV, NDJSON or Parquet file, plain or gzipped (`.gz`; not Parquet).

Options
-------
path : path of a regular file. Relative paths start in the agent's data directory. Those in statements of other agents start in its folder
    `files`; such statements may read what the setting `connectors.file.allow` permits
format : `csv`, `ndjson` or `parquet`; default: by the file's name (`.csv`, `.tsv`, `.ndjson`, `.jsonl`, `.json`, `.parquet`)
replay : `fast` (default) as fast as the overlay takes the rows, or `event_time` at the pace of their event times
speed : with `event_time`, how many times faster; default 1
header : CSV: `true` (default) if the first record names the fields; `false`: the fields are the columns in order
separator : CSV: one character, default `,` (tab for `.tsv`)
time_format, time_unit : see `time_format.TimeFormat`
check_every : lookup tables (`file_table`): pause between two checks whether the file has changed; default 10 s
batch_rows_max : most rows of a batch, default 65536; fewer if they would take longer than the engine's quantum

A Parquet file that is read `fast` gives only the columns that the query needs, and none of the row groups whose statistics contradict the
query's conditions (`parquet_pruning`).

Executor threads read the file in parts of some MiB, one part ahead; several parts are decoded at once if the query takes rows faster than
one thread decodes them. Columns are found by name; a column that the file lacks is an error, other fields are ignored. Rows that cannot be
read are left out and counted.
"""

from __future__ import annotations

from collections.abc import Callable

import polars as pl

from sbon.connectors.interface import BATCH_ROWS, BATCH_ROWS_MAX, Polled
from sbon.connectors.pace import InOrder, Pace, newest_us, times_us
from sbon.connectors.watermark import Watermark
from sbon.errors import ConnectorError
from sbon.formats.time_format import TimeFormat
from sbon.misfits import Misfits
from sbon.options import Options
from sbon.query.params.source import SourceParams
from sbon_agent.connectors.base import ConnectorContext
from sbon_agent.connectors.file_reader import FileReader, Part
from sbon_agent.connectors.opening import path_of
from sbon_agent.positions import FileProgress

PARTS_AHEAD_MAX = 4
"""Most parts that are being decoded or wait, besides the part that is being given out."""
CHECK_EVERY_S_MIN, CHECK_EVERY_S_MAX = 0.1, 86_400.0

_FORMATS = {
    ".csv": "csv",
    ".tsv": "csv",
    ".ndjson": "ndjson",
    ".jsonl": "ndjson",
    ".json": "ndjson",
    ".parquet": "parquet",
}


class FileSource:
    """Reads parts of the file ahead and gives them out in batches, in order."""

    def __init__(self, params: SourceParams, context: ConnectorContext) -> None:
        options = Options(f"source {params.name}", params.connector, params.options)
        what = f"source {params.name}"
        path = path_of(what, options.required("path", "readings.csv"), context.reach)
        self._time_column = params.time_column
        replays = options.choice("replay", ("fast", "event_time"), "fast") == "event_time"
        if replays and params.time_column is None:
            raise options.refuse("replay", "event_time", "fast: the source has no event time (WATERMARK FOR)")
        pace = Pace(options.number("speed", 1.0, 1e-6, 1e9))
        self._pace = pace if replays else None
        self.batch_rows_max = options.integer("batch_rows_max", BATCH_ROWS, 1, 1_000_000)
        self.batch_rows = BATCH_ROWS_MAX
        self.check_every_s = options.duration_us("check_every", 10_000_000) / 1e6
        """Seconds between two checks of a lookup table; a stream is read once."""
        if not CHECK_EVERY_S_MIN <= self.check_every_s <= CHECK_EVERY_S_MAX:
            raise options.refuse("check_every", options.text("check_every", ""), "a span from '100 ms' to '1 day'")
        suffixes = [suffix.lower() for suffix in path.suffixes]
        zipped = suffixes[-1:] == [".gz"]
        suffix = (suffixes[:-1] if zipped else suffixes)[-1:]
        known = options.choice("format", ("csv", "ndjson", "parquet"), _FORMATS.get(suffix[0] if suffix else "", "unknown"))
        if known == "unknown":
            raise ConnectorError(f"{what}: the format of {path.name} is not clear from its name: write format = 'csv'", option="path")
        header = options.flag("header", True)
        separator = options.text("separator", "\t" if suffix == [".tsv"] else ",")
        if len(separator) != 1 or not separator.isascii():
            raise options.refuse("separator", separator, "one character")
        times = TimeFormat.read(options)
        options.finish()
        self.misfits = Misfits()
        self.reader = FileReader(what, path, context.reach, zipped, known, params, header, separator, times, self.misfits)
        self.sample = self.reader.sample
        self._host = context.host
        self._watermark = Watermark(params)
        self.places = FileProgress(context, self.reader, self._watermark, self._pace, self.misfits, can_begin_behind=not zipped)
        self._ready: Callable[[], None] | None = None
        self._chunk: pl.DataFrame | None = None
        """Rows of the part that is being given out."""
        self._parts = InOrder[Part]()
        """Parts that are decoded, or being read."""
        self._ahead_max = 1
        self._left_out_us: int | None = None
        """Newest event time of the rows left out before `_chunk`; None once it has been given out."""
        self._given = self._ended = self._stopped = False
        self._error: ConnectorError | None = None

    @property
    def dropped_rows(self) -> int:
        """Rows that could not be read."""
        return self.misfits.rows

    def open(self) -> None:
        """Opens the file before the query runs, so that its author is told if that fails."""
        self.reader.open()
        self.places.open()

    def start(self, ready: Callable[[], None]) -> None:
        """Starts to read the first part."""
        self._ready = ready
        self._read_ahead()

    def resume(self, seconds: float) -> None:
        """Continues a replay that had run for `seconds` before a crash."""
        if self._pace is not None:
            self._pace.resume(seconds)

    def poll(self, now: float, wall: float) -> Polled:
        """Returns the next rows that have been read and are due."""
        if self._chunk is None:
            self._chunk = self._next_rows()
        if self._left_out_us is not None:
            left_out_us, self._left_out_us = self._left_out_us, None
            return Polled(None, self._watermark.seen(left_out_us), now)
        if self._chunk is None:
            if self._error is not None:
                raise self._error
            if self._ended:
                return Polled(None, self._watermark.end(), None, True)
            if self._given:
                # Rows are taken faster than they are decoded.
                self._ahead_max = max(1, min(self._host.workers, PARTS_AHEAD_MAX))
            self._read_ahead()
            return Polled(None, self._watermark.us, None)
        self._given = True
        self._read_ahead()
        count, due_at = self._due(self._chunk.head(min(self.batch_rows, self.batch_rows_max)), now)
        if count == 0:
            return Polled(None, self._watermark.us, due_at)
        frame = self._chunk.head(count)
        self._chunk = self._chunk.slice(count) if count < self._chunk.height else None
        newest = newest_us(times_us(frame[self._time_column])) if self._time_column is not None else None
        return Polled(frame, self._watermark.seen(newest), due_at, place=self.places.behind(count))

    def stop(self) -> None:
        """Closes the file as soon as no read is under way."""
        self._stopped = True
        self._parts.clear()
        self._close_if_done()

    def _due(self, rows: pl.DataFrame, now: float) -> tuple[int, float]:
        """Returns how many of these rows may go now, and when to ask again."""
        if self._pace is None or self._time_column is None:
            return rows.height, now
        return self._pace.due(times_us(rows[self._time_column]), now)

    def _next_rows(self) -> pl.DataFrame | None:
        """Returns the rows of the next part that has any; None if no further part has arrived or the file has ended."""
        while (part := self._parts.take()) is not None:
            skipped = 0 if part.frame is None else self.places.enter(part.begin, part.frame.height)
            part.misfits.move_to(self.misfits)
            self._error, self._ended = part.error, part.frame is None
            self._left_out_us = max((us for us in (self._left_out_us, part.left_out_us) if us is not None), default=None)
            if part.frame is None:
                self._parts.clear()
                self._close_if_done()
            elif part.frame.height > skipped:
                return part.frame.slice(skipped)
        return None

    def _read_ahead(self) -> None:
        while self._parts.under_way + len(self._parts) < self._ahead_max and not (self._ended or self._stopped):
            self._parts.under_way += 1
            self._host.execute(self.reader.read_part, self._have_read, rows=BATCH_ROWS)

    def _have_read(self, result: Part | BaseException) -> None:
        self._parts.under_way -= 1
        if isinstance(result, BaseException):
            error = ConnectorError(f"{self.reader.what}: {self.reader.path}: {type(result).__name__}: {result}")
            result = Part(self._parts.next_number, None, Misfits(), error)
        if self._stopped or self._ended:
            self._close_if_done()
            return
        if self._parts.arrived(result.number, result) and self._ready is not None:
            self._ready()

    def _close_if_done(self) -> None:
        if (self._stopped or self._ended) and not self._parts.under_way:
            self.reader.close()
