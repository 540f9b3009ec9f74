"""The spool: files, called pieces, in which rows wait for the writer as lines of text. A piece is closed when its hour is over, or when it
is large. `Telemetry` and the collector write the spool.

    telemetry/spool/ams-5f0c2a91-000003.open      being written
    telemetry/spool/ams-5f0c2a91-000003.ndjson    closed: the writer deletes it when its rows are in Parquet files

A piece begins with a header line. A line cut off by a crash or a full disk is skipped and counted when the piece is read.
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
"""Longest line; longer ones count as damaged. The largest row, a placement of a huge query, is far shorter."""


class Header(msgspec.Struct, frozen=True):
    """First line of a piece."""

    agent: NodeId
    start: str
    piece: int
    version: int = VERSION


class Line(msgspec.Struct, frozen=True, array_like=True):
    """One row with the fields that all rows have."""

    time_us: int
    sequence: int
    row: AnyRow


class Piece(msgspec.Struct):
    """Contents of a closed piece."""

    header: Header
    lines: list[Line]
    damaged: int = 0
    """Number of lines that could not be read."""


_encode = msgspec.json.Encoder().encode
_header_decoder = msgspec.json.Decoder(Header)
_line_decoder = msgspec.json.Decoder(Line)


def encode_line(time_us: int, sequence: int, row: Row) -> bytes:
    """Returns a line of a piece, with its newline."""
    return _encode((time_us, sequence, row)) + b"\n"


class Spool:
    """Writer of the spool of one run of one agent. Methods may be called from any thread.

    Parameters
    ----------
    directory : `telemetry` in the data directory
    piece_bytes_max : a piece of this size is closed before its hour is over
    after_piece : number before that of the first piece; processes that write for the same run must not share numbers
    total_bytes_max : most bytes of closed pieces that no writer has taken; beyond, the oldest pieces are deleted
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
        self._lock = threading.RLock()  # a flush may be in progress when the agent stops
        self.pieces_closed = 0
        self.pieces_deleted = 0

    def append(self, lines: Iterable[tuple[int, bytes]]) -> None:
        """Writes lines, each with the number of its hour, to the end of the spool.

        Raises
        ------
        OSError
            The file cannot be written; some of the lines may have been written.
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
        """Closes the open piece, if there is one, for the writer.

        Raises
        ------
        OSError
            The file cannot be renamed.
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
            # A line cut off by a full disk must not swallow the next one.
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
            path.unlink(missing_ok=True)  # a piece without its header would be unreadable
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
    """Closes pieces that a crash has left open; returns the number of closed ones. Call it when no agent runs on the directory.

    Raises
    ------
    OSError
        A file cannot be renamed.
    """
    for path in sorted((directory / FOLDER).glob(f"*{OPEN}")):
        path.replace(path.with_suffix(CLOSED))
    return len(closed_pieces(directory))


def closed_pieces(directory: Path) -> list[Path]:
    """Returns the pieces that wait for the writer, oldest first."""
    found = [(path.stat().st_mtime_ns, path) for path in (directory / FOLDER).glob(f"*{CLOSED}") if path.is_file()]
    return [path for _, path in sorted(found)]


def spooled(directory: Path) -> Iterator[Line]:
    """Yields all rows in a spool, including those of the open piece.

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
    """Reads the rows of a piece; returns None if its header is unreadable or of another version.

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
    """Yields lines without their newlines. A line that is too long is yielded in parts, which cannot be decoded."""
    while line := file.readline(LINE_BYTES_MAX):
        yield line.rstrip(b"\n")


def size_of(path: Path) -> int:
    """Returns the size in bytes; 0 if the file has been deleted."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Writes all of the data, in several calls if the kernel takes less at once."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
