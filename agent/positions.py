"""Positions of this agent's file sources, kept in the folder `positions` of the data directory (docs/recovery.md, Positions).

A source that is made again after a crash begins at its position instead of the first row, if the query's owner says so. If a position is
lost, damaged or cannot be written, the source reads its file from the first row again.
"""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

import msgspec

from sbon.connectors.watermark import Watermark
from sbon.errors import ConnectorError
from sbon.misfits import Misfit, Misfits
from sbon.types import LinkId, OperatorId
from sbon.wire.reports import FilePosition
from sbon_agent.host import Host
from sbon_agent.logs import structlog
from sbon_agent.whole_file import read_file, replace_file

if TYPE_CHECKING:
    from sbon.connectors.pace import Pace
    from sbon_agent.connectors.base import ConnectorContext

FOLDER = "positions"
KEPT_MAX = 256
"""Most positions in the folder. At start the oldest surplus ones are deleted: their queries ended while this agent was away."""
KEPT_BYTES_MAX = 1 << 20
FORMAT = 1


class ReadPosition(msgspec.Struct, frozen=True):
    """A place in a file, after a row."""

    begin: int
    """Place where a part of the file begins: bytes, or rows in a Parquet file."""
    given: int
    """Rows of this part that the source had given out."""
    watermark_us: int
    origin_us: int | None
    """Event time at which a replay began, in microseconds."""
    misfits: tuple[Misfit, ...]
    """Rows that had been left out before the part."""


class Kept(msgspec.Struct, frozen=True):
    """A position as stored on disk."""

    format: int
    operator: OperatorId
    position: FilePosition
    place: ReadPosition
    stamp: tuple[int, ...]
    """Numbers that change when the file does (`FileReader.stamp`)."""
    check: str
    """Hash of the file's beginning and of the bytes before the place (`FileReader.check`)."""


Seen: TypeAlias = tuple[tuple[int, ...], str] | None
"""Stamp and check of a file; None if it has changed since it was opened."""


class Positions:
    """The positions of all sources of an agent.

    Parameters
    ----------
    host : provides the threads that write; None if nothing is kept
    directory : the data directory; if empty, nothing is kept
    bytes_min : least size of a file whose source keeps positions
    """

    def __init__(self, host: Host | None = None, directory: str = "", bytes_min: int = 0) -> None:
        self._host = host if directory else None
        self._folder = Path(directory) / FOLDER
        self._bytes_min = bytes_min
        self._known: dict[OperatorId, Kept] = {}
        self._waiting: dict[OperatorId, Callable[[], Kept | None]] = {}
        self._dropped: set[OperatorId] = set()
        self._is_writing = self._is_closed = self._failing = False
        self._log = structlog.get_logger("positions")
        if self._host is not None:
            self._load()

    def wants(self, size_bytes: int) -> bool:
        """Tells whether the source of a file of this size is to keep positions."""
        return self._host is not None and size_bytes >= self._bytes_min

    def of(self, operator: OperatorId) -> FilePosition | None:
        """Returns the kept position of a source; None if there is none."""
        found = self._known.get(operator)
        return None if found is None else found.position

    def kept(self, operator: OperatorId, rows: int) -> Kept | None:
        """Returns the position of a source after exactly `rows` rows; None if the kept position is another one."""
        found = self._known.get(operator)
        return found if found is not None and found.position.rows == rows else None

    def keep(
        self, operator: OperatorId, link: LinkId, rows: int, made: tuple[int, ...], place: ReadPosition, seen: Callable[[], Seen]
    ) -> None:
        """Schedules the writing of a position, which replaces an earlier one.

        Parameters
        ----------
        seen : returns stamp and check of the file; called on an executor thread; raises ConnectorError if the file is closed
        """
        if self._host is None or self._is_closed:
            return
        position, known = FilePosition(link, rows, made), self.of(operator)
        if known is not None and known.link == link and known.rows >= rows and len(known.made) > len(made):
            return  # the known position tells more, and is still valid

        def made_now() -> Kept | None:
            try:
                found = seen()
            except ConnectorError:
                return None  # its file has been closed in the meantime
            return None if found is None else Kept(FORMAT, operator, position, place, *found)

        self._dropped.discard(operator)
        self._waiting[operator] = made_now
        self._write()

    def drop(self, operator: OperatorId) -> None:
        """Deletes the position of a source that has ended."""
        if self._host is None or self._is_closed or not (operator in self._known or operator in self._waiting or self._is_writing):
            return
        self._waiting.pop(operator, None)
        self._known.pop(operator, None)
        self._dropped.add(operator)
        self._write()

    def close(self) -> None:
        """Stops writing and deleting positions; those on disk stay."""
        self._is_closed = True

    def _write(self) -> None:
        if self._is_writing or self._host is None or not (self._waiting or self._dropped):
            return
        self._is_writing = True
        (waiting, self._waiting), (dropped, self._dropped) = (self._waiting, {}), (self._dropped, set())

        def work() -> list[Kept]:
            for operator in dropped:
                self._path(operator).unlink(missing_ok=True)
            written = []
            for make in waiting.values():
                kept = make()
                if kept is not None:
                    self._folder.mkdir(mode=0o700, exist_ok=True)
                    replace_file(self._path(kept.operator), msgspec.json.encode(kept))
                    written.append(kept)
            return written

        self._host.execute(work, self._written, rows=0)

    def _written(self, result: list[Kept] | BaseException) -> None:
        self._is_writing = False
        if isinstance(result, BaseException):
            if not self._failing:
                self._log.warning("positions.not_saved", path=str(self._folder), reason=str(result), doing="reading from the first row")
            self._failing = True
        else:
            self._failing = False
            self._known.update((kept.operator, kept) for kept in result if kept.operator not in self._dropped)
        if not self._is_closed:
            self._write()

    def _path(self, operator: OperatorId) -> Path:
        return self._folder / f"{hashlib.blake2b(operator.encode(), digest_size=16).hexdigest()}.json"

    def _load(self) -> None:
        try:
            paths = sorted(self._folder.glob("*.json"), key=lambda path: -path.stat().st_mtime_ns)
        except OSError:
            return
        for number, path in enumerate(paths):
            try:
                if number >= KEPT_MAX:
                    os.unlink(path)
                    continue
                kept = msgspec.json.decode(read_file(path, KEPT_BYTES_MAX), type=Kept)
                if kept.format != FORMAT or path != self._path(kept.operator):
                    raise ValueError("it has another format")
                self._known[kept.operator] = kept
            except (OSError, ValueError, msgspec.MsgspecError) as problem:
                self._log.warning("positions.unreadable", path=str(path), reason=str(problem), doing="reading from the first row")


class Reader(Protocol):
    """The reader of a source's file (`FileReader`)."""

    path: Path
    begin: int

    def stamp(self) -> tuple[int, ...]:
        """Returns numbers that change when the file does."""

    def check(self, begin: int) -> str:
        """Returns a hash of the file's beginning and of the bytes before `begin`."""


class FileProgress:
    """Tracks the place of one source in its file: reports it to the engine, keeps positions, and lets the source begin at one.

    Parameters
    ----------
    context : names the operator that the source is made for; without a name nothing is kept
    pace : pace of a replay; None without one
    can_begin_behind : whether reading can begin in the midst of the file
    """

    def __init__(
        self,
        context: "ConnectorContext",
        reader: Reader,
        watermark: Watermark,
        pace: "Pace | None",
        misfits: Misfits,
        *,
        can_begin_behind: bool,
    ) -> None:
        self._positions, self._operator = context.positions, context.operator if can_begin_behind else ""
        self._reader, self._watermark, self._pace, self._misfits = reader, watermark, pace, misfits
        self._stamp: tuple[int, ...] = ()
        """Stamp of the file when it was opened; empty if no positions in it are kept."""
        self._kept: Kept | None = None
        """The position at which the source begins; None for the first row."""
        self._skip = 0
        """Rows after the source's begin that were given out before the crash and are still to be skipped."""
        self._begin = self._given = 0
        """Place where the present part begins, and the number of its rows that have been given out."""
        self._before: tuple[Misfit, ...] = ()

    def begin_behind(self, rows: int) -> None:
        """Makes the source begin at the position that was kept after `rows` rows.

        Raises
        ------
        ConnectorError
            There is no such position.
        """
        kept = self._positions.kept(self._operator, rows)
        if kept is None:
            raise ConnectorError(f"{self._reader.path}: no position after {rows:,} rows is kept here")
        place, self._kept = kept.place, kept
        self._reader.begin, self._skip = place.begin, place.given
        self._watermark.us = max(self._watermark.us, place.watermark_us)
        if self._pace is not None:
            self._pace.begun_with(place.origin_us)
        for misfit in place.misfits:
            self._misfits.add(misfit.column, misfit.cause, rows=misfit.rows, text=misfit.text, line=misfit.line)

    def open(self) -> None:
        """Checks the file, which must be open.

        Raises
        ------
        ConnectorError
            The file has changed since the position at which the source begins was kept.
        """
        if self._operator:
            stamp = self._reader.stamp()[1:]
            self._stamp = stamp if self._positions.wants(stamp[1]) else ()
        if self._kept is not None and (self._stamp, self._reader.check(self._kept.place.begin)) != (self._kept.stamp, self._kept.check):
            raise ConnectorError(f"{self._reader.path} has changed since a position in it was kept")

    def enter(self, begin: int, rows: int) -> int:
        """Enters the next part of the file, before its misfits are counted. Returns how many of its rows were given out before the
        crash."""
        skipped = min(self._skip, rows)
        self._skip -= skipped
        if self._stamp:
            self._begin, self._given, self._before = begin, skipped, self._misfits.told()
        return skipped

    def behind(self, rows: int) -> ReadPosition | None:
        """Returns the place after the next `rows` rows of the part, which are being given out; None if positions are not kept."""
        if not self._stamp:
            return None
        self._given += rows
        origin_us = None if self._pace is None else self._pace.origin_us
        return ReadPosition(self._begin, self._given, self._watermark.us, origin_us, self._before)

    def keep(self, place: ReadPosition, link: LinkId, rows: int, made: tuple[int, ...]) -> None:
        """Keeps a position, because all rows up to it have been processed."""
        reader, stamp = self._reader, self._stamp

        def seen() -> Seen:
            check = reader.check(place.begin)
            return (stamp, check) if reader.stamp()[1:] == stamp else None

        self._positions.keep(self._operator, link, rows, made, place, seen)
