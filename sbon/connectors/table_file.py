"""State machine of a file as a lookup table: decides when to look at the file, which readings count, and which versions to give.

    wait -- due --> look: the same file -------------------------------------------> wait
                          another file ----> look again 1 s later: still changing --> ...
                          the same as 1 s before, or the first: read it
                                             changed while it was read -------------> look again 1 s later
                                             good --> give it as a version ---------> wait
                                             no good --> the former version counts --> wait

Nothing here opens files: `sbon_agent.connectors.file_table` does.
"""

from datetime import UTC, datetime
from enum import Enum

import polars as pl

from sbon.connectors.interface import Polled
from sbon.errors import ConnectorError
from sbon.query.table_versions import sent_columns
from sbon.schema import Schema
from sbon.watermarks import WATERMARK_END, WATERMARK_MIN

SETTLE_S = 1.0
"""Seconds between two looks at a file that has changed."""

Stamp = tuple[int, ...]
"""Inode, size and modification time of a file, or similar: a file with another stamp is another file."""


class Seen(Enum):
    """Result of comparing a file's stamp with those of earlier looks."""

    SAME = "same"
    CHANGING = "changing"
    """The file has changed since the last look, and may be half written."""
    TO_READ = "to read"


class Stamps:
    """Stamps of the file at earlier looks."""

    def __init__(self) -> None:
        self._known: Stamp | None = None
        """Stamp of the file that was read last, whether it was taken or refused."""
        self._changing: Stamp | None = None
        """Stamp at the last look, if it was new."""
        self.refused = ""
        """Reason why the file that was read last was not taken; empty if it was."""

    def compare(self, stamp: Stamp) -> Seen:
        """Compares a stamp with the last ones. The first file is read at once."""
        if stamp == self._known:
            self._changing = None
            return Seen.SAME
        if self._known is not None and stamp != self._changing:
            self._changing = stamp
            return Seen.CHANGING
        return Seen.TO_READ

    def have_read(self, before: Stamp, after: Stamp, problem: str) -> bool:
        """Notes that a file with these stamps before and after has been read; returns False if it changed while it was read."""
        if after != before:
            return False
        self._known, self._changing, self.refused = before, None, problem
        return True


class Versions:
    """Versions of the table, and the time of the next look.

    The watermark is the least one until the first version has been given, and the greatest after that.
    """

    def __init__(self, columns: Schema, batch_rows_max: int, check_every_s: float) -> None:
        self._columns, self._batch_rows_max, self._check_every_s = columns, batch_rows_max, check_every_s
        self.remark = ""
        """Reason why the version in force is not that of the file; empty if it is."""
        self._watermark_us = WATERMARK_MIN
        self._version = 0
        self._read_at = ""
        self._rest: pl.DataFrame | None = None
        """Part of a version that has not been given yet."""
        self._looking = self._stopped = False
        self._asked_at = self._look_at = float("-inf")
        self._wall = 0.0
        self._failed: ConnectorError | None = None

    def begins_look(self, now: float, wall: float) -> bool:
        """Tells whether the file is to be looked at now; the caller reports the result with `looked`, `changing`, `found` or `failed`."""
        if self._rest is not None or self._looking or now < self._look_at or self._failed is not None:
            return False
        self._looking, self._asked_at, self._wall = True, now, wall
        return True

    def give(self, now: float, batch_rows: int) -> Polled:
        """Returns the next rows of a version, or when to ask again.

        Raises
        ------
        ConnectorError
            There is no version, and the file cannot be used.
        """
        if self._failed is not None:
            raise self._failed
        if self._rest is None:
            return Polled(None, self._watermark_us, None if self._looking else self._look_at)
        count = min(batch_rows, self._batch_rows_max)
        frame, rest = self._rest.head(count), self._rest.slice(count)
        self._rest = None if rest.is_empty() else rest
        if self._rest is None:
            self._watermark_us = WATERMARK_END
        return Polled(frame, self._watermark_us, now)

    def looked(self, refused: str) -> None:
        """Handles a look at an unchanged file; `refused` is the reason why it was not taken, or empty."""
        self._end_look(self._check_every_s)
        self._tell(refused)

    def changing(self) -> None:
        """Handles a look at a file that is changing."""
        self._end_look(min(SETTLE_S, self._check_every_s))

    def found(self, rows: pl.DataFrame) -> None:
        """Takes all rows of the file as a new version."""
        self._end_look(self._check_every_s)
        self._begin(rows)
        self._tell("")

    def failed(self, problem: ConnectorError) -> None:
        """Handles a file that cannot be read or used."""
        self._end_look(self._check_every_s)
        if not self._version:
            self._failed = problem
        self._tell(str(problem))

    def stop(self) -> None:
        """Drops the rows that have not been given; no version begins any more."""
        self._stopped = True
        self._rest = None

    def _end_look(self, pause_s: float) -> None:
        self._looking = False
        self._look_at = self._asked_at + pause_s

    def _begin(self, rows: pl.DataFrame) -> None:
        """Prepares a new version to be given."""
        if self._stopped:
            return
        self._version = max(self._version + 1, round(self._wall * 1e6))
        self._read_at = datetime.fromtimestamp(self._wall, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        version, count = (field.name for field in sent_columns(self._columns)[-2:])
        numbers = pl.lit(self._version, pl.Int64).alias(version), pl.lit(rows.height, pl.Int64).alias(count)
        self._rest = (rows if rows.height else rows.clear(1)).with_columns_seq(*numbers).rechunk()

    def _tell(self, problem: str) -> None:
        self.remark = f"{problem}; the rows read at {self._read_at} are used until then" if problem else ""
