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

from pathlib import Path

from sbon.connectors.interface import SinkConnector
from sbon.errors import ConnectorError
from sbon.formats.formatting import LineFormat
from sbon.options import Options
from sbon.query.params.source import SinkParams
from sbon.schema import Schema
from sbon_agent.connectors.base import ConnectorContext
from sbon_agent.connectors.line_file import LineSink
from sbon_agent.connectors.opening import path_of
from sbon_agent.connectors.parquet_parts import PART_ROWS, ParquetSink

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
