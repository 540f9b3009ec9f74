"""Reads a file in parts, each a frame of rows: CSV, NDJSON or Parquet. The `file` source and `file_table` use it.

Parts are read one after the other, and numbered; all threads that ask for parts decode them in parallel. Each part counts the rows that it
leaves out, so that the caller, who puts parts in order, also counts in order.
"""

from __future__ import annotations

import hashlib
import os
import threading
import zlib
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple, TypeVar

import polars as pl

from sbon.connectors.parquet_pruning import ChunkPlan, Pruning
from sbon.errors import ConnectorError
from sbon.formats.csv_rows import CsvRows, first_record_end, header_names
from sbon.formats.json_rows import JsonRows
from sbon.formats.parquet_footer import row_groups
from sbon.formats.parquet_rows import ParquetRows, needed_columns
from sbon.formats.time_format import TimeFormat
from sbon.misfits import Misfits
from sbon.query.params.source import SourceParams
from sbon.reach import Reach
from sbon_agent.connectors.file_blocks import blocks
from sbon_agent.connectors.opening import open_to_read

PARQUET_BYTES = 16 << 20
PARQUET_ROWS_MIN, PARQUET_ROWS_MAX = 16_384, 524_288
"""Limits for the rows of a Parquet file read at once, which take about `PARQUET_BYTES` in memory."""
CHECK_BYTES = 1024
"""Bytes at the beginning of a file, and before a place in it, whose hash tells whether it is the same file."""
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

T = TypeVar("T")


class _Undecoded(NamedTuple):
    """A part that has been read from the file."""

    decode: Callable[[Misfits], pl.DataFrame]
    begin: int
    """Place in the file where the part begins: bytes, or rows of a Parquet file."""
    left_out_us: int | None = None


class Part(NamedTuple):
    """Some rows of a file, in order, or its end."""

    number: int
    frame: pl.DataFrame | None
    """Rows; None if the file has ended before this part, or `error` says why there are none."""
    misfits: Misfits
    """Rows that this part has left out. Samples are kept only for kinds that `FileReader` had not counted when the part was read."""
    error: ConnectorError | None = None
    left_out_us: int | None = None
    """Newest event time of the row groups that were left out just before this part, in microseconds."""
    begin: int = 0
    """Place in the file where the part begins: bytes, or rows of a Parquet file. Row groups left out just before the part come after this
    place."""


class FileReader:
    """An open file. `close` may be called while `open` is still running, but not during a read.

    Parameters
    ----------
    misfits : counts rows that `read` leaves out; the caller of `read_part` counts for itself
    """

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
        self.what = what
        self._zipped = zipped
        self._params = params
        self._schema = params.columns
        self._header = header
        self._separator = separator
        self._times = times
        self._misfits = misfits
        self._lock = threading.Lock()
        self._file: IO[bytes] | None = None
        self._closed = False
        self._turn = threading.Lock()
        """Held while reading from the file, which gives the parts their order."""
        self._parts = {"csv": self._csv, "ndjson": self._ndjson, "parquet": self._parquet}[kind]()
        self._number = 0
        self._is_parquet = kind == "parquet"
        self.begin = 0
        """Place where the first part begins: bytes, or rows of a Parquet file. Set it before the first read, and not for a zipped file."""

    def read(self) -> pl.DataFrame | None:
        """Returns the next rows, at least one; None at the end."""
        while True:
            part = self.read_part()
            part.misfits.move_to(self._misfits)
            if part.error is not None:
                raise part.error
            if part.frame is None or part.frame.height:
                return part.frame

    def read_part(self) -> Part:
        """Returns the next part; may be called on several threads at once."""
        found = Misfits(after=self._misfits)
        with self._turn:
            number = self._number
            self._number += 1
            part = self._guarded(lambda: next(self._parts, None))
        if isinstance(part, ConnectorError) or part is None:
            return Part(number, None, found, part)
        frame = self._guarded(lambda: part.decode(found))
        if isinstance(frame, ConnectorError):
            return Part(number, None, found, frame)
        return Part(number, frame, found, left_out_us=part.left_out_us, begin=part.begin)

    def sample(self, rows: int) -> pl.DataFrame:
        """Opens a file that was never open, returns the first part that has rows (`rows` is ignored), and closes the file."""
        self.open()
        try:
            found = self.read()
        finally:
            self.close()
        return found if found is not None else pl.DataFrame()

    def open(self) -> None:
        """Opens the file; raises ConnectorError if that fails."""
        file = open_to_read(self.what, self.path, self._reach)
        with self._lock:
            if not self._closed:
                self._file = file
                return
        file.close()

    def stamp(self) -> tuple[int, int, int, int]:
        """Returns device, inode, size and modification time: they change with every write or replacement. The file must be open."""
        found = os.fstat(self._opened().fileno())
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

    def check(self, begin: int) -> str:
        """Returns a hash of the file's first KiB and of the KiB before `begin` (before the end of a Parquet file). The file must be open.

        May be called on any thread, even while another thread closes the file.
        """
        with self._lock:
            descriptor = self._opened().fileno()
            end = os.fstat(descriptor).st_size if self._is_parquet else begin
            first = max(0, end - CHECK_BYTES)
            pieces = os.pread(descriptor, CHECK_BYTES, 0), os.pread(descriptor, end - first, first)
        return hashlib.blake2b(b"".join(pieces), digest_size=16).hexdigest()

    def close(self) -> None:
        """Closes the file."""
        self._parts.close()
        with self._lock:
            self._closed = True
            file, self._file = self._file, None
        if file is not None:
            file.close()

    def _guarded(self, work: Callable[[], T]) -> T | ConnectorError:
        """Returns the result of the work, or an error that describes its problem."""
        try:
            return work()
        except ConnectorError as error:
            return error
        except (OSError, EOFError, zlib.error) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            return self._unreadable(reason, error)
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
            first = str(error).strip().splitlines()
            return self._unreadable(first[0][:200] if first else "malformed", error)

    def _unreadable(self, reason: str, cause: BaseException) -> ConnectorError:
        problem = ConnectorError(f"{self.what}: {self.path} cannot be read: {reason}")
        problem.__cause__ = cause
        return problem

    def _opened(self) -> IO[bytes]:
        if self._file is None:
            raise ConnectorError(f"{self.what}: {self.path} is closed")
        return self._file

    def _blocks(self, quoted: bool, begin: int = 0) -> Generator[tuple[int, bytes], None, None]:
        """Yields blocks of whole records, each with the byte where it begins."""
        for block in blocks(self._opened(), f"{self.what}: {self.path}", zipped=self._zipped, quoted=quoted, begin=begin):
            yield begin, block
            begin += len(block)

    def _csv(self) -> Generator[_Undecoded, None, None]:
        names = [field.name for field in self._schema]
        if self._header and self.begin:
            for _, block in self._blocks(quoted=True):
                data = block.removeprefix(_BYTE_ORDER_MARK)
                names = self._header_of(data[: first_record_end(data)])
                break
        rows: CsvRows | None = None
        for begin, block in self._blocks(quoted=True, begin=self.begin):
            data = block if begin else block.removeprefix(_BYTE_ORDER_MARK)
            if rows is None:
                if self._header and not begin:
                    end = first_record_end(data)
                    names, data = self._header_of(data[:end]), data[end:]
                rows = CsvRows(self._schema, names, self._separator, self._times, self._misfits)
            if data and not data.isspace():
                yield _Undecoded(partial(_read_csv, rows, data), begin)

    def _header_of(self, record: bytes) -> list[str]:
        names = header_names(record, self._separator)
        self._need(names)
        return names

    def _need(self, names: list[str]) -> None:
        missing = [field.name for field in self._schema if field.name not in names]
        if missing:
            raise ConnectorError(f"{self.what}: {self.path} has no column {missing[0]}, it has {', '.join(names)[:300]}")

    def _ndjson(self) -> Generator[_Undecoded, None, None]:
        rows = JsonRows(self._schema, self._times, self._misfits)
        for begin, block in self._blocks(quoted=False, begin=self.begin):
            yield _Undecoded(partial(_read_json, rows, block if begin else block.removeprefix(_BYTE_ORDER_MARK)), begin)

    def _parquet(self) -> Generator[_Undecoded, None, None]:
        # Opened by its descriptor: the name may lead elsewhere by now, and polars might take a path as a pattern.
        lazy = pl.scan_parquet(f"/proc/self/fd/{self._opened().fileno()}", glob=False)
        found = lazy.collect_schema()
        self._need(found.names())
        names = needed_columns(self._params, found)
        rows = ParquetRows(f"{self.what}: {self.path}", self._schema, found, self._times, self._misfits, names)
        plan = ChunkPlan(row_groups(self._opened()) or [], Pruning(self._params, found))
        offset, count = self.begin, PARQUET_ROWS_MIN
        while True:
            begin = offset
            offset, left_out_us = plan.begin(offset)
            frame = lazy.slice(offset, plan.end(offset, count) - offset).select(names).collect()
            if frame.is_empty():
                return
            offset += frame.height
            row_bytes = frame.estimated_size() / frame.height
            count = max(PARQUET_ROWS_MIN, min(PARQUET_ROWS_MAX, int(PARQUET_BYTES // max(1.0, row_bytes))))
            yield _Undecoded(partial(_read_parquet, rows, frame), begin, left_out_us)


def _read_csv(rows: CsvRows, data: bytes, misfits: Misfits) -> pl.DataFrame:
    return rows.counting(misfits).read(data)


def _read_json(rows: JsonRows, data: bytes, misfits: Misfits) -> pl.DataFrame:
    return rows.counting(misfits).read_block(data)


def _read_parquet(rows: ParquetRows, frame: pl.DataFrame, misfits: Misfits) -> pl.DataFrame:
    return rows.counting(misfits).read(frame)
