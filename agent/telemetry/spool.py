"""The spool: rows wait here for the writer, as lines of text, in pieces. A piece is closed when its hour is over, or when it is large.

    telemetry/spool/ams-5f0c2a91-000003.open      being written
    telemetry/spool/ams-5f0c2a91-000003.ndjson    closed: for the writer, who deletes it when its rows are in Parquet files

A piece begins with a header line. A line that a crash or a full disk has cut off is skipped when the piece is read, and counted.
"""

import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from sbon.telemetry.layout import CLOSED, OPEN, SPOOL, file_name
from sbon.telemetry.rows import VERSION, AnyRow, Row
from sbon.types import NodeId

FOLDER = SPOOL
LINE_BYTES_MAX = 16 * 2**20
"""Longer lines are damage: the largest row, a placement of a huge query, is far shorter."""


class Header(msgspec.Struct, frozen=True):
    """The first line of a piece."""

    agent: NodeId
    start: str
    piece: int
    version: int = VERSION


class Line(msgspec.Struct, frozen=True, array_like=True):
    """One row with what all rows have."""

    time_us: int
    sequence: int
    row: AnyRow


class Piece(msgspec.Struct):
    """What a closed piece holds."""

    header: Header
    lines: list[Line]
    damaged: int = 0
    """Lines that could not be read."""


_encode = msgspec.json.Encoder().encode
_header_decoder = msgspec.json.Decoder(Header)
_line_decoder = msgspec.json.Decoder(Line)


def encode_line(time_us: int, sequence: int, row: Row) -> bytes:
    """A line of a piece, with its end."""
    return _encode((time_us, sequence, row)) + b"\n"


class Spool:
    """The writing end, for one run of one agent. Calls may come from any thread.

    Parameters
    ----------
    directory : `telemetry` in the data directory
    piece_bytes_max : a piece of this size is closed before its hour is over
    after_piece : pieces are numbered from the next on; another process that writes for the same run needs other numbers
    total_bytes_max : oldest closed pieces are deleted beyond this, where no writer comes for them
    """

    def __init__(
        self, directory: Path, agent: NodeId, start: str, piece_bytes_max: int, total_bytes_max: int, after_piece: int = 0
    ) -> None:
        self._directory = directory / FOLDER
        self._agent = agent
        self._start = start
        self._piece_bytes_max = piece_bytes_max
        self._total_bytes_max = total_bytes_max
        self._piece = after_piece
        self._path: Path | None = None
        self._hour = 0
        self._torn = False
        self._lock = threading.RLock()  # a flush may be under way when the agent stops
        self.pieces_closed = 0
        self.pieces_deleted = 0

    def append(self, lines: Iterable[tuple[int, bytes]]) -> None:
        """Write lines, each with the number of its hour, to the end of the spool.

        Raises
        ------
        OSError
            The disk refuses; some of the lines may have been written.
        """
        with self._lock:
            waiting: list[bytes] = []
            for hour, line in lines:
                if hour != self._hour:
                    self._write(waiting)
                    waiting = []
                    self.close()
                    self._hour = hour
                waiting.append(line)
            self._write(waiting)

    def close(self) -> None:
        """Close the open piece, if there is one, for the writer.

        Raises
        ------
        OSError
            The disk refuses.
        """
        with self._lock:
            if self._path is None:
                return
            path, self._path = self._path, None
            path.replace(path.with_suffix(CLOSED))
            self.pieces_closed += 1
            self._bound()

    def _write(self, lines: Sequence[bytes]) -> None:
        if not lines:
            return
        if self._path is None:
            self._path = self._next()
        data = b"".join(lines)
        with self._path.open("ab", buffering=0) as file:
            # What a full disk has cut off must not swallow the line after it.
            start = b"\n" if self._torn else b""
            self._torn = True
            write_all(file.fileno(), start + data)
            self._torn = False
            size = file.tell()
        if size >= self._piece_bytes_max:
            self.close()

    def _next(self) -> Path:
        self._directory.mkdir(parents=True, exist_ok=True)
        self._piece += 1
        path = self._directory / (Path(file_name(self._agent, self._start, self._piece)).stem + OPEN)
        header = _encode(Header(self._agent, self._start, self._piece)) + b"\n"
        try:
            with path.open("xb", buffering=0) as file:
                write_all(file.fileno(), header)
        except OSError:
            path.unlink(missing_ok=True)  # a piece without its header would be lost with all that follows
            raise
        self._torn = False
        return path

    def _bound(self) -> None:
        closed = closed_pieces(self._directory.parent)
        sizes = [size_of(path) for path in closed]
        excess = sum(sizes) - self._total_bytes_max
        for path, size in zip(closed, sizes, strict=True):
            if excess <= 0:
                return
            path.unlink(missing_ok=True)
            self.pieces_deleted += 1
            excess -= size


def adopt(directory: Path) -> int:
    """Close the pieces that a crash has left open; how many there are for the writer. For when no agent runs on the directory.

    Raises
    ------
    OSError
        The disk refuses.
    """
    for path in sorted((directory / FOLDER).glob(f"*{OPEN}")):
        path.replace(path.with_suffix(CLOSED))
    return len(closed_pieces(directory))


def closed_pieces(directory: Path) -> list[Path]:
    """Pieces that wait for the writer, oldest first."""
    found = [(path.stat().st_mtime_ns, path) for path in (directory / FOLDER).glob(f"*{CLOSED}") if path.is_file()]
    return [path for _, path in sorted(found)]


def spooled(directory: Path) -> Iterator[Line]:
    """All that waits in a spool, also in the piece that is being written.

    Raises
    ------
    OSError
        A piece cannot be read.
    """
    for path in sorted((directory / FOLDER).glob(f"*{OPEN}")) + closed_pieces(directory):
        piece = read_piece(path)
        if piece is not None:
            yield from piece.lines


def read_piece(path: Path) -> Piece | None:
    """The rows of a piece; None without a header that says whose they are, and in which version.

    Raises
    ------
    OSError
        The file cannot be read.
    """
    with path.open("rb") as file:
        lines = _lines(file)
        try:
            header = _header_decoder.decode(next(lines, b""))
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        if header.version != VERSION:
            return None
        piece = Piece(header, [])
        for line in lines:
            if not line:
                continue
            try:
                piece.lines.append(_line_decoder.decode(line))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                piece.damaged += 1
    return piece


def _lines(file: Any) -> Iterator[bytes]:
    """Lines without their ends; of one that is too long, pieces, which nobody will be able to read."""
    while line := file.readline(LINE_BYTES_MAX):
        yield line.rstrip(b"\n")


def size_of(path: Path) -> int:
    """Bytes; 0 if somebody has deleted it."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Write all of it: the kernel may take less at once."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
