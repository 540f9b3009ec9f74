"""A file as a lookup table: read whole, sent as a version (`sbon.query.table_versions`), and read again when it has changed.

Its options are those of `file_source`. The file is checked every `check_every`: another inode, size or modification time is a change. A
changed file is read once a second check 1 s later finds it the same as the first, and counts only if it is still the same after it
has been read; a file that is being rewritten in place is thus left alone until its writer is done. A version is taken whole or not at all:
if a file is gone, has a row that cannot be read, or is too large, the previous version stays in force, and `remark` says why. Without a
previous version the source fails. Rows with NULL in a NOT NULL column are left out and counted, as for any source.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple

import polars as pl

from sbon.connectors.interface import BATCH_ROWS_MAX, Polled, SourceConnector
from sbon.connectors.required import RequiredColumns
from sbon.errors import ConnectorError
from sbon.misfits import Misfits
from sbon.operators.frames import empty
from sbon.query.plan import WATERMARK_END, WATERMARK_MIN, SourceParams
from sbon.query.table_versions import BYTES_MAX, ROWS_MAX, sent_columns
from sbon_agent.connectors.base import ConnectorContext
from sbon_agent.connectors.file_source import FileSource

SETTLE_S = 1.0
"""Seconds between two checks of a file that has changed."""


class _Look(NamedTuple):
    """Result of a check of the file."""

    rows: pl.DataFrame | None
    """Rows of a new version; None if there is none."""
    settled: bool = True
    """False if the file is changing: check again soon."""


class _Frames:
    """A source that gives the rows of one reading of the file, on an executor thread."""

    dropped_rows = 0

    def __init__(self, source: FileSource) -> None:
        self.misfits = source.misfits
        self._reader = source.reader

    def start(self, ready: Callable[[], None]) -> None:
        """Does nothing."""

    def poll(self, now: float, wall: float) -> Polled:
        """Returns the next rows."""
        frame = self._reader.read()
        return Polled(frame, WATERMARK_MIN, now, finished=frame is None)

    def stop(self) -> None:
        """Does nothing: the reader is closed by its owner."""


class FileTable:
    """Source that gives one version after another, in batches.

    Its watermark holds everything back until the first version has left, and nothing after that.
    """

    def __init__(self, params: SourceParams, context: ConnectorContext) -> None:
        self._params, self._context = params, context
        options = self._source()
        self.batch_rows = BATCH_ROWS_MAX
        self._batch_rows_max, self._check_every_s = options.batch_rows_max, options.check_every_s
        self.remark = ""
        self.misfits = Misfits()
        self.dropped_rows = 0
        self._known: tuple[int, ...] | None = None
        """Stamp of the file that was read last, whether it was taken or refused."""
        self._changing: tuple[int, ...] | None = None
        """Stamp at the last check, if it was new."""
        self._refused = ""
        """Reason why the file that was read last was not taken; empty if it was."""
        self._watermark_us = WATERMARK_MIN
        self._version = 0
        self._read_at = ""
        self._rest: pl.DataFrame | None = None
        """Part of a version that has not been given yet."""
        self._looking = self._stopped = False
        self._asked_at = self._look_at = float("-inf")
        self._wall = 0.0
        self._failed: ConnectorError | None = None
        self._ready: Callable[[], None] | None = None

    def open(self) -> None:
        """Refuses a file that cannot be opened when the query starts, so that its author is told."""
        reader = self._source().reader
        reader.open()
        reader.close()

    def start(self, ready: Callable[[], None]) -> None:
        """Does nothing yet: the file is read at the first poll."""
        self._ready = ready

    def poll(self, now: float, wall: float) -> Polled:
        """Returns more of a version, or starts a check of the file if one is due."""
        if self._rest is None and not self._looking and now >= self._look_at and self._failed is None:
            self._looking, self._asked_at, self._wall = True, now, wall
            self._context.host.execute(self._look, self._have_looked, rows=0)
        if self._failed is not None:
            raise self._failed
        if self._rest is None:
            return Polled(None, self._watermark_us, None if self._looking else self._look_at)
        count = min(self.batch_rows, self._batch_rows_max)
        frame, rest = self._rest.head(count), self._rest.slice(count)
        self._rest = None if rest.is_empty() else rest
        if self._rest is None:
            self._watermark_us = WATERMARK_END
        return Polled(frame, self._watermark_us, now)

    def stop(self) -> None:
        """Stops; a check that is running closes the file itself."""
        self._stopped = True
        self._rest = None

    def _source(self) -> FileSource:
        return FileSource(self._params, self._context)

    def _look(self) -> _Look:
        """Checks the file, and reads it if it has changed; on an executor thread."""
        source = self._source()
        source.reader.open()
        try:
            stamp = source.reader.stamp()
            if stamp == self._known:
                self._changing = None
                return _Look(None)
            if self._known is not None and stamp != self._changing:
                self._changing = stamp
                return _Look(None, settled=False)
            try:
                rows, problem = self._read(source), None
            except ConnectorError as error:
                rows, problem = None, error
            if source.reader.stamp() != stamp:
                return _Look(None, settled=False)
            self._known, self._changing = stamp, None
            self._refused = "" if problem is None else str(problem)
            if problem is not None:
                raise problem
            return _Look(rows)
        finally:
            source.reader.close()

    def _read(self, source: FileSource) -> pl.DataFrame:
        """Reads all rows of the file."""
        what = f"table {self._params.name}: {source.reader.path}"
        given: SourceConnector = _Frames(source)
        if self._params.not_null:
            given = RequiredColumns(given, self._params)
        frames, rows, size = [empty(self._params.columns)], 0, 0.0
        while not (polled := given.poll(0.0, 0.0)).finished:
            if polled.frame is not None:
                frames.append(polled.frame)
                rows += polled.frame.height
                size += polled.frame.estimated_size()
            if rows > ROWS_MAX or size > BYTES_MAX:
                raise ConnectorError(f"{what} is too large: more than {ROWS_MAX:,} rows or {BYTES_MAX >> 20} MiB in memory", option="path")
        if source.misfits.rows:
            first = source.misfits.told(1)[0]
            raise ConnectorError(f"{what} has {source.misfits.rows} rows that cannot be read: {first.text}: {first.line}", option="path")
        if isinstance(given, RequiredColumns) and given.misfits is not None:
            for kind in given.misfits.told():
                self.misfits.add(kind.column, kind.cause, rows=kind.rows, text=kind.text, line=kind.line)
            self.dropped_rows = self.misfits.rows
        return pl.concat(frames, rechunk=True)

    def _have_looked(self, found: _Look | BaseException) -> None:
        self._looking = False
        self._look_at = self._asked_at + self._check_every_s
        if isinstance(found, BaseException):
            if not isinstance(found, ConnectorError):
                found = ConnectorError(f"table {self._params.name}: {type(found).__name__}: {found}")
            if not self._version:
                self._failed = found
            self._tell(str(found))
        elif found.rows is not None:
            self._begin(found.rows)
            self._tell("")
        elif found.settled:
            self._tell(self._refused)
        else:
            self._look_at = self._asked_at + min(SETTLE_S, self._check_every_s)
        if self._ready is not None and not self._stopped:
            self._ready()

    def _begin(self, rows: pl.DataFrame) -> None:
        """Prepares a new version to be given."""
        if self._stopped:
            return
        self._version = max(self._version + 1, round(self._wall * 1e6))
        self._read_at = datetime.fromtimestamp(self._wall, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        version, count = (field.name for field in sent_columns(self._params.columns)[-2:])
        numbers = pl.lit(self._version, pl.Int64).alias(version), pl.lit(rows.height, pl.Int64).alias(count)
        self._rest = (rows if rows.height else rows.clear(1)).with_columns_seq(*numbers).rechunk()

    def _tell(self, problem: str) -> None:
        """Notes in `remark` why the version in force is not that of the file; empty if it is."""
        self.remark = f"{problem}; the rows read at {self._read_at} count until then" if problem else ""
