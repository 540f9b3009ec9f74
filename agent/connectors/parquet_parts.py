"""The sink for a folder of Parquet files; see `sbon_agent.connectors.file_sink`."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import numpy as np
import polars as pl

from sbon.connectors.rows_in_file import ROWS_MAX, Hashes, RowsInFile
from sbon.errors import ConnectorError
from sbon.formats.parquet_structs import StructColumns
from sbon.operators.frames import empty
from sbon.reach import Reach
from sbon.schema import Schema
from sbon_agent.connectors.opening import Folder, resolved, told
from sbon_agent.connectors.written_rows import WrittenRows, unfinished

PART_ROWS = 20_000
"""Number of rows at which a part is full, unless the option `rows_per_file` says otherwise."""
ZSTD_LEVEL = 1
"""Compression level of full parts: a fifth faster than the default of polars, with files at most a tenth larger."""


class ParquetSink(WrittenRows):
    """Sink for a folder of parts. The part being filled is replaced as a whole, so that readers never see half of it.

    Parameters
    ----------
    rows_per_file : number of rows of a full part; None: a part is full at `PART_ROWS` or more
    """

    def __init__(self, what: str, path: Path, reach: Reach, schema: Schema, replaces: bool, rows_per_file: int | None) -> None:
        super().__init__(what, path, reach, ".origins")
        self._replaces, self._rows_per_file = replaces, rows_per_file
        self._structs = StructColumns(schema)
        self._part = self._structs.of(empty(schema))
        self._number = 0

    @property
    def unmatched_rows(self) -> int:
        """The rows that `match_rows` has found and that have not come again, once the sink has ended; 0 before."""
        return self._found.left if self._closed else 0

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

    def begin_here(self) -> None:
        """Counts the query's rows from the next part on."""
        with self._lock:
            if self._folder is not None:
                self._begun_at, self.rows_by_origin = self._number, None
                self._origins.restart(self._folder)

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
                raise self._broken(error) from error

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
        new = unfinished(name)
        # Made in memory: when the disk is full, polars does not always say so.
        part = io.BytesIO()
        # lz4 is cheap for a part that the next batch rewrites; zstd is small for a part that stays.
        rows.write_parquet(part, compression="zstd" if is_full else "lz4", compression_level=ZSTD_LEVEL if is_full else None)
        data = part.getbuffer()
        try:
            with folder.create(new) as file:
                while data:
                    data = data[file.write(data) :]
            folder.replace(name, by=new)
        except OSError:
            folder.remove(new)
            raise


def _hashes_of_rows(frame: pl.DataFrame) -> Hashes:
    return frame.hash_rows().to_numpy().view(np.int64) if frame.width else np.zeros(frame.height, np.int64)
