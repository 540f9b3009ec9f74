"""The sink for a CSV or NDJSON file; see `sbon_agent.connectors.file_sink`."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import IO

import numpy as np
import polars as pl

from sbon.connectors.rows_in_file import ROWS_MAX, RowsInFile, hashes_of, lines_of
from sbon.errors import ConnectorError
from sbon.formats.formatting import LineFormat
from sbon.operators.values import Values
from sbon.reach import Reach
from sbon_agent.connectors.opening import Folder, resolved, told
from sbon_agent.connectors.written_rows import FULL, WrittenRows, unfinished

READ_BYTES = 2**20
"""Bytes read at a time when the rows of a file are counted."""


class LineSink(WrittenRows):
    """Sink for CSV or NDJSON. A write that fails half-way is undone, so that the file always ends in a whole line."""

    def __init__(self, what: str, path: Path, reach: Reach, lines: LineFormat, mode: str) -> None:
        super().__init__(what, path, reach, f".{path.name}.origins")
        self._lines, self._mode = lines, mode
        self._name, self._is_quoted = path.name, lines.kind == "csv"
        self._file: IO[bytes] | None = None
        self._ahead = b""
        """Header that has not been written yet."""
        self._torn_from: int | None = None
        """Offset of a partial batch that could not be undone yet."""
        self._has_rows = False

    @property
    def unmatched_rows(self) -> int:
        """The rows that `match_rows` has found and that have not come again, once the sink has ended; 0 before."""
        return self._found.left if self._file is None else 0

    def open(self) -> None:
        """Opens or creates the file."""
        folder: Folder | None = None
        try:
            with told(self._what, self._path, "cannot be written"):
                real = resolved(self._what, self._path, self._reach)
                folder = Folder(real.parent, make=True)
                if self._mode == "replace":
                    folder.expect_replaceable(real.name)
                    file = folder.create(unfinished(real.name))
                else:
                    if self._mode == "resume":
                        folder.expect_replaceable(real.name)
                        with contextlib.suppress(FileNotFoundError):  # the file is in its place already, or the query never began
                            folder.replace(real.name, by=unfinished(real.name))
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
                        raise self._broken(error) from error
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

    def begin_here(self) -> None:
        """Counts the query's rows from the end of the file on."""
        with self._lock:
            if self._folder is not None and self._file is not None and not self._ahead:
                self._begun_at, self.rows_by_origin = os.fstat(self._file.fileno()).st_size, None
                self._origins.restart(self._folder)

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
                raise self._broken(error) from error
            self._close_file()

    def close(self) -> None:
        """Puts the file in its place and closes it."""
        with self._lock:
            self._closed = True
            try:
                self._put_in_place()
            except OSError as error:
                raise self._broken(error) from error
            finally:
                self._let_go()

    def abandon(self) -> None:
        """Closes the file without putting it in its place, because the sink has failed or its query has not begun. Written rows stay."""
        with self._lock:
            self._closed = True
            try:
                if self._mode == "replace" and self._folder is not None and not self._has_rows:
                    self._folder.remove(unfinished(self._name))
            finally:
                self._let_go()

    @property
    def remains(self) -> str:
        """Describes what a failed sink has left on disk; empty if its rows are in the file itself."""
        if self._mode != "replace" or self._file is None:
            return ""
        unchanged = f"{self._path} is as it was"
        return f"{unchanged}, rows written so far are in {self._path.parent / unfinished(self._name)}" if self._has_rows else unchanged

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
                raise self._broken(error) from error
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
            self._folder.replace(self._name, by=unfinished(self._name))

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
