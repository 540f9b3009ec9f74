"""The common tools of all jobs: the log's tables in Spark, moments of time, and the folder of results.

Spark reduces rows to tables by moment, of which there are at most `MOMENTS_MAX` whatever the log's length. The driver computes with those
tables, so its work grows with the overlay and not with the rows.
"""

import re
import shutil
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from sbon.analysis.log_files import Log
from sbon.telemetry.schema import COMMON, TABLES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MOMENTS_MAX = 300
WIDTHS_S = (10, 20, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)
"""Possible lengths of a moment. None is shorter than the pause between two samples of a link."""
MOMENT, FILE = "moment", "file"
DAY_S = 86400
_TYPES = {"list": "array", "int64": "bigint", "float64": "double", "bool": "boolean"}
_TYPE = re.compile(r"(?:(?<=<)|(?<=: )|^)(list|int64|float64|bool)\b")


def moment_width_s(first: datetime, last: datetime) -> int:
    """Returns the least width with which `MOMENTS_MAX` moments cover a log from first to last; whole days beyond the list.

    Examples
    --------
    >>> moment_width_s(datetime(2026, 11, 21), datetime(2026, 11, 22))
    300
    """
    span_s = (last - first).total_seconds()
    for width_s in WIDTHS_S:
        if span_s <= width_s * MOMENTS_MAX:
            return width_s
    return DAY_S * -(-int(span_s) // (DAY_S * MOMENTS_MAX))


def spark_schema(kind: str) -> str:
    """Returns names and types of a kind's columns in Spark's syntax.

    Examples
    --------
    >>> spark_schema("members").split(", ")[5]
    '`member` string'
    """
    return ", ".join(f"`{column.name}` {_spark_type(column.type)}" for column in TABLES[kind].columns)


def _spark_type(name: str) -> str:
    return _TYPE.sub(lambda found: _TYPES[found[1]], name)


class Workbench:
    """The log, opened for queries.

    Parameters
    ----------
    since, until : rows before `since`, and from `until` on, are left out
    tables : folder for the report's tables
    say : called at each step
    """

    def __init__(
        self,
        spark: "SparkSession",
        log: Log,
        tables: Path,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self.spark = spark
        self.log = log
        self.tables = tables
        self.say = say or (lambda _: None)
        self.first: datetime = log.files[0].hour
        self.last: datetime = log.files[-1].hour
        self.width_s = WIDTHS_S[0]
        self.distinct = False
        """True if the log has duplicate rows, which are removed at the cost of a shuffle of all rows."""
        self._since, self._until = since, until

    def span(self, first: datetime, last: datetime) -> None:
        """Sets the time span of the rows, which decides how long a moment is."""
        self.first, self.last = first, last
        self.width_s = moment_width_s(first, last)

    def has(self, kind: str) -> bool:
        """Tells whether there are rows of a kind, according to the files' metadata."""
        return self.log.rows(kind) > 0

    def all_rows(self) -> "DataFrame":
        """Returns every row of every kind, with the columns that all kinds have, and the path of its file."""
        common = ", ".join(f"`{column.name}` {_spark_type(column.type)}" for column in COMMON)
        rows = self.spark.read.schema(common).parquet(*[str(file.path) for file in self.log.files])
        return self._within(rows.withColumn(FILE, F.col("_metadata.file_path")))

    def table(self, kind: str) -> "DataFrame":
        """Returns all rows of a kind, with the moment of each."""
        paths = self.log.paths(kind)
        reader = self.spark.read.schema(spark_schema(kind))
        rows = self._within(reader.parquet(*paths) if paths else self.spark.createDataFrame([], spark_schema(kind)))
        if self.distinct:
            rows = rows.dropDuplicates(["agent", "start", "sequence"])
        width_us = self.width_s * 1_000_000
        return rows.withColumn(MOMENT, F.timestamp_micros(F.floor(F.unix_micros("time") / width_us).cast("bigint") * width_us))

    def _within(self, rows: "DataFrame") -> "DataFrame":
        if self._since is not None:
            rows = rows.where(F.col("time") >= F.lit(self._since))
        return rows if self._until is None else rows.where(F.col("time") < F.lit(self._until))

    def keep(self, name: str, rows: "DataFrame") -> pl.LazyFrame:
        """Writes a table of the report, and returns it for reading here."""
        folder = self.tables / name
        rows.write.mode("overwrite").parquet(str(folder.absolute()))
        return kept(folder)

    def keep_here(self, name: str, rows: pl.DataFrame) -> pl.DataFrame:
        """Writes a table of the report that was computed in this process, and returns it."""
        folder = self.tables / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        rows.write_parquet(folder / "part-00000.parquet")
        return rows


def kept(folder: Path) -> pl.LazyFrame:
    """Returns a stored table; an empty one still has its columns."""
    return pl.scan_parquet(sorted(folder.glob("*.parquet")))
