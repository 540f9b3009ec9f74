"""A file as a lookup table: read whole, sent as a version (`sbon.query.table_versions`), and read again when it has changed.

Its options are those of `file_source`. The file is checked every `check_every`: another inode, size or modification time is a change. A
changed file is read when a second check 1 s later finds no further change, and its rows count only if it has not changed during the
reading: a file that is being rewritten in place is left alone until its writer is done. A version is taken whole or not at all: if a file
is gone, has a row that cannot be read, or is too large, the previous version stays in force, and `remark` says why. Without a previous
version the source fails. Rows with NULL in a NOT NULL column are left out and counted, as for any source.
"""

from __future__ import annotations

from collections.abc import Callable

import polars as pl

from sbon.connectors.interface import BATCH_ROWS_MAX, Polled, SourceConnector
from sbon.connectors.required import RequiredColumns
from sbon.connectors.table_file import Seen, Stamps, Versions
from sbon.errors import ConnectorError
from sbon.misfits import Misfits
from sbon.operators.frames import empty
from sbon.query.params.source import SourceParams
from sbon.query.table_versions import BYTES_MAX, ROWS_MAX
from sbon.watermarks import WATERMARK_MIN
from sbon_agent.connectors.base import ConnectorContext
from sbon_agent.connectors.file_source import FileSource

_Look = pl.DataFrame | Seen
"""Result of a look at the file: the rows of a new version, or why there is none."""


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
    """Source that gives one version after another, in batches."""

    def __init__(self, params: SourceParams, context: ConnectorContext) -> None:
        self._params, self._context = params, context
        options = self._source()
        self.batch_rows = BATCH_ROWS_MAX
        self.misfits = Misfits()
        self.dropped_rows = 0
        self._stamps = Stamps()
        self._versions = Versions(params.columns, options.batch_rows_max, options.check_every_s)
        self._stopped = False
        self._ready: Callable[[], None] | None = None

    @property
    def remark(self) -> str:
        """Returns why the version in force is not the file's; empty if it is."""
        return self._versions.remark

    def open(self) -> None:
        """Refuses a file that cannot be opened when the query starts, so that its author is told."""
        reader = self._source().reader
        reader.open()
        reader.close()

    def start(self, ready: Callable[[], None]) -> None:
        """Does nothing yet: the file is read at the first poll."""
        self._ready = ready

    def poll(self, now: float, wall: float) -> Polled:
        """Returns more of a version, or starts a look at the file if one is due."""
        if self._versions.begins_look(now, wall):
            self._context.host.execute(self._look, self._have_looked, rows=0)
        return self._versions.give(now, self.batch_rows)

    def stop(self) -> None:
        """Stops; a look that is under way closes the file itself."""
        self._stopped = True
        self._versions.stop()

    def _source(self) -> FileSource:
        return FileSource(self._params, self._context)

    def _look(self) -> _Look:
        """Looks at the file, and reads it if it has changed; on an executor thread."""
        source = self._source()
        source.reader.open()
        try:
            stamp = source.reader.stamp()
            seen = self._stamps.compare(stamp)
            if seen is not Seen.TO_READ:
                return seen
            try:
                found: pl.DataFrame | ConnectorError = self._read(source)
            except ConnectorError as problem:
                found = problem
            refused = str(found) if isinstance(found, ConnectorError) else ""
            if not self._stamps.have_read(stamp, source.reader.stamp(), refused):
                return Seen.CHANGING
            if isinstance(found, ConnectorError):
                raise found
            return found
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
        match found:
            case ConnectorError():
                self._versions.failed(found)
            case BaseException():
                self._versions.failed(ConnectorError(f"table {self._params.name}: {type(found).__name__}: {found}"))
            case pl.DataFrame():
                self._versions.found(found)
            case Seen.CHANGING:
                self._versions.changing()
            case _:
                self._versions.looked(self._stamps.refused)
        if self._ready is not None and not self._stopped:
            self._ready()
