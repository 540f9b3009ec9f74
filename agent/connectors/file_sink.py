"""Connector `file` (sink): answers into a CSV or NDJSON file, or a folder of Parquet files. Every write is flushed.

Options
-------
path : relative ones start in the agent's data directory; missing folders are made
format : `csv`, `ndjson` or `parquet`; default: by the name
mode : `append` (default) adds to what is there; `replace` writes beside it and takes its place when the query ends
rows_per_file : Parquet: `path` is a folder of `part-000000.parquet`, ...; a part is full at this many rows (default 20000). Until then it
    is written anew with each batch, so that nothing waits in memory alone; more rows make fewer files and dearer batches.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import IO

import polars as pl

from agent.connectors.base import ConnectorContext, SinkConnector
from agent.connectors.formatting import LineFormat
from agent.connectors.options import Options
from sbon.errors import ConnectorError
from sbon.operators.frames import empty
from sbon.operators.values import Values
from sbon.query.plan import SinkParams
from sbon.query.schema import Schema

_FORMATS = {".csv": "csv", ".ndjson": "ndjson", ".jsonl": "ndjson", ".json": "ndjson", ".parquet": "parquet"}


def build_file_sink(params: SinkParams, schema: Schema, context: ConnectorContext) -> SinkConnector:
    """A sink of the format that options and path ask for."""
    path, kind, replaces, rows_per_file = file_sink_options(params, context)
    what = f"sink {params.name}"
    if kind == "parquet":
        return ParquetSink(what, path, schema, replaces, rows_per_file)
    return LineSink(what, path, LineFormat(kind, schema), replaces)


def check_file_sink(params: SinkParams, schema: Schema, context: ConnectorContext) -> None:
    """Refuse options as `build_file_sink` would; no file is touched."""
    file_sink_options(params, context)


def file_sink_options(params: SinkParams, context: ConnectorContext) -> tuple[Path, str, bool, int]:
    """Path, format, whether it replaces what is there, rows of a file.

    Raises
    ------
    ConnectorError
        An option is missing, unknown or out of range.
    """
    options = Options(f"sink {params.name}", params.connector, params.options)
    path = Path(context.data_dir) / Path(options.required("path", "answers.csv")).expanduser()
    kind = options.choice("format", ("csv", "ndjson", "parquet"), _FORMATS.get(path.suffix.lower(), "unknown"))
    if kind == "unknown":
        raise ConnectorError(
            f"sink {params.name}: the format of {path.name} is not clear from its name: write format = 'csv'", option="path"
        )
    replaces = options.choice("mode", ("append", "replace"), "append") == "replace"
    rows_per_file = options.integer("rows_per_file", 20_000, 1, 10_000_000) if kind == "parquet" else 0
    options.finish()
    return path, kind, replaces, rows_per_file


def _broken(what: str, path: Path, error: OSError) -> ConnectorError:
    return ConnectorError(f"{what}: {path} cannot be written: {error.strerror or error}", option="path")


class LineSink:
    """CSV or NDJSON. A write that fails half-way is taken back, so that the file always ends in a whole line."""

    def __init__(self, what: str, path: Path, lines: LineFormat, replaces: bool) -> None:
        self.dropped_rows = 0
        self._what, self._path, self._lines, self._replaces = what, path, lines, replaces
        self._target = path.with_name(f".{path.name}.unfinished") if replaces else path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: IO[bytes] | None = self._target.open("wb" if replaces else "ab", buffering=0)
            if self._file.tell() == 0:
                self._append(lines.header)
        except OSError as error:
            raise _broken(what, path, error) from error

    def write(self, frame: pl.DataFrame) -> None:
        """Add rows."""
        self._write(self._lines.lines(frame))

    def write_values(self, values: Values) -> None:
        """Add a few rows."""
        self._write(self._lines.lines_of_values(values))

    def _write(self, data: bytes) -> None:
        if self._file is None:
            raise ConnectorError(f"{self._what}: {self._path} is closed")
        try:
            self._append(data)
        except OSError as error:
            raise _broken(self._what, self._path, error) from error

    def close(self) -> None:
        """Let go, and put the file in its place."""
        if self._file is None:
            return
        file, self._file = self._file, None
        try:
            with file:
                os.fsync(file.fileno())
            if self._replaces:
                self._target.replace(self._path)
        except OSError as error:
            raise _broken(self._what, self._path, error) from error

    def _append(self, data: bytes) -> None:
        assert self._file is not None
        start = os.fstat(self._file.fileno()).st_size
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError:
            # Devices and pipes have no size to go back to; what matters then is the error itself.
            if self._file.seekable() and os.fstat(self._file.fileno()).st_size > start:
                self._file.truncate(start)
            raise


class ParquetSink:
    """A folder of parts; the one being filled is replaced as a whole, so that readers never see half of it."""

    def __init__(self, what: str, path: Path, schema: Schema, replaces: bool, rows_per_file: int) -> None:
        self.dropped_rows = 0
        self._what, self._path, self._rows_per_file = what, path, rows_per_file
        self._part = empty(schema)
        self._closed = False
        try:
            path.mkdir(parents=True, exist_ok=True)
            parts = sorted(part for part in path.iterdir() if re.fullmatch(r"part-\d{6,}\.parquet", part.name))
            if replaces:
                for part in parts:
                    part.unlink()
                parts = []
        except OSError as error:
            raise _broken(what, path, error) from error
        self._number = max((int(part.stem.removeprefix("part-")) for part in parts), default=-1) + 1

    def write(self, frame: pl.DataFrame) -> None:
        """Add rows."""
        if self._closed:
            raise ConnectorError(f"{self._what}: {self._path} is closed")
        part, number = pl.concat([self._part, frame]), self._number
        try:
            while True:
                self._replace(part.head(self._rows_per_file), number)
                if part.height < self._rows_per_file:
                    break
                part, number = part.slice(self._rows_per_file), number + 1
                if part.is_empty():
                    break
        except OSError as error:
            raise _broken(self._what, self._path, error) from error
        self._part, self._number = part.rechunk(), number

    def close(self) -> None:
        """Every write was complete."""
        self._closed = True

    def _replace(self, rows: pl.DataFrame, number: int) -> None:
        target = self._path / f"part-{number:06}.parquet"
        unfinished = target.with_name(f".{target.name}.unfinished")
        try:
            rows.write_parquet(unfinished)
            unfinished.replace(target)
        except OSError:
            unfinished.unlink(missing_ok=True)
            raise
