"""Connector `file` (sink): writes answers to a CSV or NDJSON file, or to a folder of Parquet files. Every write is flushed.

Options
-------
path : path of a regular file, or of the folder; missing folders are made. Relative paths start in the agent's data directory. Those in
    statements of other agents start in its folder `files`; such statements may write where the setting `connectors.file.allow` permits
format : `csv`, `ndjson` or `parquet`; default: by the file's name
mode : `append` (default) adds rows to the file. `replace` writes them to `.NAME.unfinished`, which replaces the file when the query ends:
    by itself, by DROP SINK, or with its agent. If the sink fails or its query cannot begin, the file stays as it was; rows that a failed
    sink has written stay in `.NAME.unfinished`, and the sink's reason says so. For Parquet, `replace` deletes the parts in the folder when
    the query begins. `resume` puts the `.NAME.unfinished` of an interrupted `replace` in place of the file and adds rows to it; a restarted
    agent uses `resume` instead of `replace`
rows_per_file : rows of a full Parquet part (`part-000000.parquet`, ... in the folder `path`). Each batch rewrites the part that is being
    filled, so that no row is in memory only; more rows make fewer files and costlier batches. By default a part is full at 20000 rows or
    more, and holds the whole batch that fills it. Full parts are compressed by zstd, others by lz4.

While the disk is full, the sink undoes a partly written batch, and the query waits until there is room.
"""

from __future__ import annotations

import contextlib
import errno
import io
import itertools
import os
import re
import threading
from collections.abc import Collection, Iterable
from functools import partial
from pathlib import Path
from typing import IO

import numpy as np
import polars as pl

from sbon.connectors.interface import Congested, SinkConnector
from sbon.connectors.rows_in_file import ROWS_MAX, Hashes, RowsInFile, hashes_of, lines_of
from sbon.errors import ConnectorError
from sbon.formats.formatting import LineFormat
from sbon.formats.parquet_structs import StructColumns
from sbon.operators.frames import empty
from sbon.operators.values import Values
from sbon.options import Options
from sbon.query.params.source import SinkParams
from sbon.reach import Reach
from sbon.schema import Schema
from sbon_agent.connectors.base import ConnectorContext
from sbon_agent.connectors.opening import Folder, path_of, resolved, told
from sbon_agent.connectors.origin_log import Key, OriginLog

FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a disk that may have room again later."""
FULL_RETRY_S = 1.0
"""Seconds until the next attempt at a full disk."""
"""Form in which polars reports an error of the operating system."""

PART_ROWS = 20_000
"""Number of rows at which a part is full, unless the option `rows_per_file` says otherwise."""
READ_BYTES = 2**20
"""Bytes read at a time when the rows of a file are counted."""
ZSTD_LEVEL = 1
"""Compression level of full parts: a fifth faster than the default of polars, with files at most a tenth larger."""
QUANTA = 4
"""Quanta of waiting rows that are written at once, some MiB: each write has a fixed cost of about half a millisecond."""

_FORMATS = {".csv": "csv", ".ndjson": "ndjson", ".jsonl": "ndjson", ".json": "ndjson", ".parquet": "parquet"}


def build_file_sink(params: SinkParams, schema: Schema, context: ConnectorContext) -> SinkConnector:
    """Makes a sink of the format that options and path ask for."""
    path, kind, mode, rows_per_file = file_sink_options(params, context)
    what = f"sink {params.name}"
    if kind == "parquet":
        return ParquetSink(what, path, context.reach, schema, mode == "replace", rows_per_file)
    return LineSink(what, path, context.reach, LineFormat(kind, schema), mode)


def check_file_sink(params: SinkParams, schema: Schema, context: ConnectorContext) -> None:
    """Refuses options as `build_file_sink` would, without accessing any file."""
    file_sink_options(params, context)


def file_sink_options(params: SinkParams, context: ConnectorContext) -> tuple[Path, str, str, int | None]:
    """Reads path, format, mode and rows per file (None if not given).

    Raises
    ------
    ConnectorError
        An option is missing, unknown or out of range.
    """
    what = f"sink {params.name}"
    options = Options(what, params.connector, params.options)
    path = path_of(what, options.required("path", "answers.csv"), context.reach)
    kind = options.choice("format", ("csv", "ndjson", "parquet"), _FORMATS.get(path.suffix.lower(), "unknown"))
    if kind == "unknown":
        raise ConnectorError(f"{what}: the format of {path.name} is not clear from its name: write format = 'csv'", option="path")
    mode = options.choice("mode", ("append", "replace", "resume"), "append")
    rows_per_file = None
    if kind == "parquet" and options.optional("rows_per_file") is not None:
        rows_per_file = options.integer("rows_per_file", PART_ROWS, 1, 10_000_000)
    options.finish()
    return path, kind, mode, rows_per_file


def _broken(what: str, path: Path, error: OSError) -> ConnectorError:
    """Returns the error for a failed write: Congested if the disk may have room later."""
    message = f"{what}: {path} cannot be written: {error.strerror or error}"
    return Congested(message, FULL_RETRY_S) if error.errno in FULL else ConnectorError(message, option="path")


def _unfinished(name: str) -> str:
    """Returns the name of the file that will replace `name`."""
    return f".{name}.unfinished"


class LineSink:
    """Sink for CSV or NDJSON. A write that fails half-way is undone, so that the file always ends in a whole line."""

    quanta = QUANTA

    def __init__(self, what: str, path: Path, reach: Reach, lines: LineFormat, mode: str) -> None:
        self.dropped_rows = 0
        self._what, self._path, self._reach, self._lines, self._mode = what, path, reach, lines, mode
        self._name, self._is_quoted = path.name, lines.kind == "csv"
        self._lock = threading.Lock()
        """Held by `open`, `write`, `finish` and `close`, one at a time."""
        self._folder: Folder | None = None
        self._file: IO[bytes] | None = None
        self._ahead = b""
        """Header that has not been written yet."""
        self._torn_from: int | None = None
        """Offset of a partial batch that could not be undone yet."""
        self._has_rows = False
        self._closed = False
        self._origins = OriginLog(f".{path.name}.origins")
        self._next_of: Key | None = None
        """Input and origin of the next rows; None if the sink has one input, whose rows have no origin."""
        self._begun_at: int | None = None
        """Size of the file, in bytes, before the first row; None until it is open."""
        self._found = RowsInFile([])
        """Rows of the file that are left out when they come again."""
        self.rows_by_origin: dict[Key, int] | None = None
        """After `rows_since`: these rows by input and origin; None if that is not known."""

    @property
    def begun_at(self) -> int | None:
        """Byte where the query's rows begin; None until the file is open, and while rows that `match_rows` has found may come again."""
        return None if self._found.left else self._begun_at

    @property
    def has_unmatched(self) -> bool:
        """True if the sink has ended, and rows that `match_rows` has found have not come again."""
        return self._file is None and self._found.left > 0

    def open(self) -> None:
        """Opens or creates the file."""
        folder: Folder | None = None
        try:
            with told(self._what, self._path, "cannot be written"):
                real = resolved(self._what, self._path, self._reach)
                folder = Folder(real.parent, make=True)
                if self._mode == "replace":
                    folder.expect_replaceable(real.name)
                    file = folder.create(_unfinished(real.name))
                else:
                    if self._mode == "resume":
                        folder.expect_replaceable(real.name)
                        with contextlib.suppress(FileNotFoundError):  # the file is in its place already, or the query never began
                            folder.replace(real.name, by=_unfinished(real.name))
                    file = folder.open(real.name, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        except BaseException:
            if folder is not None:
                folder.close()
            raise
        with self._lock:
            if self._closed:
                file.close()
                folder.close()
                return
            self._folder, self._file, self._name = folder, file, real.name
            if os.fstat(file.fileno()).st_size == 0:
                self._ahead = self._lines.header
                try:
                    self._append(b"")
                except OSError as error:
                    if error.errno not in FULL:
                        raise _broken(self._what, self._path, error) from error
            if not self._ahead:
                self._begun_at = os.fstat(file.fileno()).st_size

    def rows_since(self, begun_at: int) -> int:
        """Returns the number of rows after byte `begun_at`; removes an incomplete last row, which a crash may leave."""
        with self._lock:
            if self._folder is None or self._file is None:
                return 0
            with told(self._what, self._path, "cannot be read"), self._folder.open(self._name, os.O_RDONLY) as file:
                file.seek(begun_at)
                rows, whole = whole_rows(iter(partial(file.read, READ_BYTES), b""), quoted=self._is_quoted)
                if begun_at + whole < os.fstat(file.fileno()).st_size:
                    self._file.truncate(begun_at + whole)
                self.rows_by_origin = self._origins.resume(self._folder, rows)
            self._begun_at = begun_at
            return rows

    def match_rows(self) -> bool:
        """Leaves out the rows that `rows_since` has counted when they come again, in whatever order. Returns False if they are too many."""
        with self._lock:
            if self._folder is None or self._begun_at is None:
                return False
            found, rows = [], 0
            with told(self._what, self._path, "cannot be read"), self._folder.open(self._name, os.O_RDONLY) as file:
                file.seek(self._begun_at)
                for lines in lines_of(iter(partial(file.read, READ_BYTES), b""), quoted=self._is_quoted):
                    rows += len(lines)
                    if rows > ROWS_MAX:
                        return False
                    found.append(hashes_of(lines))
            self._found = RowsInFile(found)
            return True

    def begin_inputs(self, links: Collection[int]) -> None:
        """Counts no row of these inputs that is in the file."""
        with self._lock:
            if self._folder is not None and links:
                self.rows_by_origin = self._origins.set_aside(self._folder, links)

    def begin_here(self) -> None:
        """Counts the query's rows from the end of the file on."""
        with self._lock:
            if self._folder is not None and self._file is not None and not self._ahead:
                self._begun_at, self.rows_by_origin = os.fstat(self._file.fileno()).st_size, None
                self._origins.restart(self._folder)

    def keep(self) -> None:
        """Makes `close` keep the log of origins, because the sink continues after its agent's restart."""
        self._origins.is_kept = True

    def next_of(self, link: int, origin: int) -> None:
        """Sets the input and the origin of the next rows."""
        self._next_of = link, origin

    def write(self, frame: pl.DataFrame) -> None:
        """Appends rows."""
        self._write(self._lines.lines(frame), frame.height)

    def write_values(self, values: Values) -> None:
        """Appends a few rows."""
        self._write(self._lines.lines_of_values(values), values.rows)

    def finish(self) -> None:
        """Puts the file in its place, after the last row."""
        with self._lock:
            try:
                self._append(b"")
                self._put_in_place()
            except OSError as error:
                raise _broken(self._what, self._path, error) from error
            self._close_file()

    def close(self) -> None:
        """Puts the file in its place and closes it."""
        with self._lock:
            self._closed = True
            try:
                self._put_in_place()
            except OSError as error:
                raise _broken(self._what, self._path, error) from error
            finally:
                self._let_go()

    def abandon(self) -> None:
        """Closes the file without putting it in its place, because the sink has failed or its query has not begun. Written rows stay."""
        with self._lock:
            self._closed = True
            try:
                if self._mode == "replace" and self._folder is not None and not self._has_rows:
                    self._folder.remove(_unfinished(self._name))
            finally:
                self._let_go()

    @property
    def remains(self) -> str:
        """Describes what a failed sink has left on disk; empty if its rows are in the file itself."""
        if self._mode != "replace" or self._file is None:
            return ""
        unchanged = f"{self._path} is as it was"
        return f"{unchanged}, rows written so far are in {self._path.parent / _unfinished(self._name)}" if self._has_rows else unchanged

    def _write(self, data: bytes, rows: int) -> None:
        with self._lock:
            if self._file is None or self._folder is None:
                raise ConnectorError(f"{self._what}: {self._path} is closed")
            known = None
            if self._found.left:
                [lines] = lines_of([data], quoted=self._is_quoted)
                hashes = hashes_of(lines)
                is_new = self._found.new(hashes)
                data, rows, known = b"".join(itertools.compress(lines, is_new)), int(is_new.sum()), hashes[~is_new]
            try:
                if self._next_of is not None:
                    self._origins.note(self._folder, self._next_of, rows)
                self._append(data)
            except OSError as error:
                if known is not None:
                    self._found.put_back(known)
                raise _broken(self._what, self._path, error) from error
            if self._next_of is not None:
                self._origins.written(self._next_of, rows)
            self._has_rows = True

    def _append(self, data: bytes) -> None:
        """Appends all of the data, or nothing."""
        if self._file is None:
            return
        if self._torn_from is not None:
            self._file.truncate(self._torn_from)
            self._torn_from = None
        start = os.fstat(self._file.fileno()).st_size
        rest = memoryview(self._ahead + data)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError:
            self._torn_from = start
            self._file.truncate(start)
            self._torn_from = None
            raise
        self._ahead = b""

    def _put_in_place(self) -> None:
        if self._file is None or self._folder is None:
            return
        os.fsync(self._file.fileno())
        if self._mode == "replace":
            self._folder.replace(self._name, by=_unfinished(self._name))

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _let_go(self) -> None:
        self._close_file()
        folder, self._folder = self._folder, None
        self._origins.close(folder)
        if folder is not None:
            folder.close()


def whole_rows(pieces: Iterable[bytes], *, quoted: bool) -> tuple[int, int]:
    """Counts the whole lines of a text, and its bytes up to the end of the last of them.

    Parameters
    ----------
    quoted : a line break between quotation marks is part of a value (CSV)

    Examples
    --------
    >>> whole_rows([b'a,"x', b'\\ny"\\nb,', b'z'], quoted=True)
    (1, 8)
    """
    rows = whole = done = quotes = 0
    for piece in pieces:
        octets = np.frombuffer(piece, np.uint8)
        ends = octets == ord("\n")
        if quoted:
            marks = np.cumsum(octets == ord('"')) + quotes
            ends &= marks % 2 == 0
            quotes = int(marks[-1]) % 2
        found = np.flatnonzero(ends)
        if found.size:
            rows, whole = rows + found.size, done + int(found[-1]) + 1
        done += octets.size
    return rows, whole


class ParquetSink:
    """Sink for a folder of parts. The part being filled is replaced as a whole, so that readers never see half of it.

    Parameters
    ----------
    rows_per_file : number of rows of a full part; None: a part is full at `PART_ROWS` or more
    """

    quanta = QUANTA

    def __init__(self, what: str, path: Path, reach: Reach, schema: Schema, replaces: bool, rows_per_file: int | None) -> None:
        self.dropped_rows = 0
        self._what, self._path, self._reach, self._replaces, self._rows_per_file = what, path, reach, replaces, rows_per_file
        self._structs = StructColumns(schema)
        self._part = self._structs.of(empty(schema))
        self._number = 0
        self._lock = threading.Lock()
        self._folder: Folder | None = None
        self._closed = False
        self._origins = OriginLog(".origins")
        self._next_of: Key | None = None
        self.rows_by_origin: dict[Key, int] | None = None
        """After `rows_since`: these rows by input and origin; None if that is not known."""
        self._begun_at: int | None = None
        """Number of the first part; None until the folder is open."""
        self._found = RowsInFile([])
        """Rows of the parts that are left out when they come again."""

    @property
    def begun_at(self) -> int | None:
        """Number of the query's first part; None until the folder is open, and while rows that `match_rows` has found may come again."""
        return None if self._found.left else self._begun_at

    @property
    def has_unmatched(self) -> bool:
        """True if the sink has ended, and rows that `match_rows` has found have not come again."""
        return self._closed and self._found.left > 0

    def open(self) -> None:
        """Opens or creates the folder."""
        with told(self._what, self._path, "cannot be written"):
            folder = Folder(resolved(self._what, self._path, self._reach), make=True)
            try:
                parts = [name for name in folder.names() if re.fullmatch(r"part-\d{6,}\.parquet", name)]
                if self._replaces:
                    for part in parts:
                        folder.remove(part)
                    parts = []
            except BaseException:
                folder.close()
                raise
        with self._lock:
            if self._closed:
                folder.close()
                return
            self._folder = folder
            self._number = max((int(part.removeprefix("part-").removesuffix(".parquet")) for part in parts), default=-1) + 1
            self._begun_at = self._number

    def rows_since(self, begun_at: int) -> int:
        """Returns the number of rows in the parts from number `begun_at` on; every part is complete."""
        with self._lock, told(self._what, self._path, "cannot be read"):
            self._begun_at, rows = begun_at, 0
            for number in range(begun_at, self._number):
                with contextlib.suppress(FileNotFoundError):
                    rows += pl.scan_parquet(self._path_of(number)).select(pl.len()).collect().item()
            if self._folder is not None:
                self.rows_by_origin = self._origins.resume(self._folder, rows)
            return rows

    def match_rows(self) -> bool:
        """Leaves out the rows that `rows_since` has counted when they come again, in whatever order. Returns False if they are too many."""
        with self._lock, told(self._what, self._path, "cannot be read"):
            if self._begun_at is None:
                return False
            found, rows = [], 0
            for number in range(self._begun_at, self._number):
                with contextlib.suppress(FileNotFoundError):
                    part = pl.read_parquet(self._path_of(number))
                    rows += part.height
                    if rows > ROWS_MAX:
                        return False
                    found.append(_hashes_of_rows(part))
            self._found = RowsInFile(found)
            return True

    def begin_inputs(self, links: Collection[int]) -> None:
        """Counts no row of these inputs that is in the file."""
        with self._lock:
            if self._folder is not None and links:
                self.rows_by_origin = self._origins.set_aside(self._folder, links)

    def begin_here(self) -> None:
        """Counts the query's rows from the next part on."""
        with self._lock:
            if self._folder is not None:
                self._begun_at, self.rows_by_origin = self._number, None
                self._origins.restart(self._folder)

    def keep(self) -> None:
        """Makes `close` keep the log of origins, because the sink continues after its agent's restart."""
        self._origins.is_kept = True

    def next_of(self, link: int, origin: int) -> None:
        """Sets the input and the origin of the next rows."""
        self._next_of = link, origin

    def write(self, frame: pl.DataFrame) -> None:
        """Adds rows."""
        with self._lock:
            if self._folder is None:
                raise ConnectorError(f"{self._what}: {self._path} is closed")
            new, known = self._structs.of(frame), None
            if self._found.left:
                hashes = _hashes_of_rows(new)
                is_new = self._found.new(hashes)
                new, known = new.filter(pl.Series(is_new)), hashes[~is_new]
            try:
                self._add(self._folder, new)
            except OSError as error:
                if known is not None:
                    self._found.put_back(known)
                raise _broken(self._what, self._path, error) from error

    def _add(self, folder: Folder, new: pl.DataFrame) -> None:
        """Adds rows to the part that is being filled, and to new parts."""
        if self._next_of is not None:
            self._origins.note(folder, self._next_of, new.height)
        part, rows, number = self._part, pl.concat([self._part, new]), self._number
        while not rows.is_empty():
            most = self._rows_per_file or max(PART_ROWS, rows.height)
            part, rows = rows.head(most), rows.slice(most)
            is_full = part.height >= (self._rows_per_file or PART_ROWS)
            self._replace(folder, part, number, is_full)
            if is_full:
                part, number = part.clear(), number + 1
        self._part, self._number = part.rechunk(), number
        if self._next_of is not None:
            self._origins.written(self._next_of, new.height)

    def _path_of(self, number: int) -> Path:
        return self._path / f"part-{number:06}.parquet"

    def close(self) -> None:
        """Closes the folder; every write was complete."""
        with self._lock:
            self._closed = True
            folder, self._folder = self._folder, None
            self._origins.close(folder)
        if folder is not None:
            folder.close()

    def _replace(self, folder: Folder, rows: pl.DataFrame, number: int, is_full: bool) -> None:
        name = f"part-{number:06}.parquet"
        unfinished = _unfinished(name)
        # Made in memory: when the disk is full, polars does not always say so.
        part = io.BytesIO()
        # lz4 is cheap for a part that the next batch rewrites; zstd is small for a part that stays.
        rows.write_parquet(part, compression="zstd" if is_full else "lz4", compression_level=ZSTD_LEVEL if is_full else None)
        data = part.getbuffer()
        try:
            with folder.create(unfinished) as file:
                while data:
                    data = data[file.write(data) :]
            folder.replace(name, by=unfinished)
        except OSError:
            folder.remove(unfinished)
            raise


def _hashes_of_rows(frame: pl.DataFrame) -> Hashes:
    return frame.hash_rows().to_numpy().view(np.int64) if frame.width else np.zeros(frame.height, np.int64)
