"""The writer: turns closed pieces of a spool into Parquet files, deletes hours that are too old or exceed the limit of bytes, and ends.

It is a separate process of the lowest priority, because an idle agent must not load polars. Run by hand, `python -m
sbon_agent.telemetry.writer DIR...` does the same for `telemetry` folders whose agents do not run.

A file gets its name only when all of it is on disk (temporary file, then rename), and a piece is deleted only when all its files exist. If
a writer is killed, its piece stays, and the next writer writes the same files again.
"""

import argparse
import fcntl
import io
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from sbon.telemetry.layout import SUFFIX, file_name, folder, hour_of, parse_folder
from sbon.telemetry.schema import TABLES
from sbon_agent.telemetry.spool import FOLDER, Piece, adopt, closed_pieces, read_piece, size_of, write_all

NICENESS = 19
BAD = ".unreadable"
"""Suffix of a piece whose header cannot be read; it is kept for inspection."""


class Outcome(msgspec.Struct):
    """The counts of a writer's run; printed as the last line of its standard output."""

    pieces: int = 0
    files: int = 0
    rows: int = 0
    lines_damaged: int = 0
    pieces_unreadable: int = 0
    files_deleted: int = 0


def convert(directory: Path, outcome: Outcome | None = None) -> Outcome:
    """Writes all closed pieces of a `telemetry` folder as Parquet files.

    Raises
    ------
    OSError
        A file cannot be written; its piece stays in the spool.
    """
    outcome = Outcome() if outcome is None else outcome
    if not (directory / FOLDER).is_dir():
        return outcome
    with _alone(directory):
        for stale in directory.glob(f"*/*/*/.*{SUFFIX}.tmp"):
            stale.unlink(missing_ok=True)
        for path in closed_pieces(directory):
            piece = read_piece(path)
            if piece is None:
                path.replace(path.with_suffix(BAD))
                outcome.pieces_unreadable += 1
                continue
            _write_piece(directory, piece, outcome)
            path.unlink()
            outcome.pieces += 1
    return outcome


def convert_all(directories: Sequence[Path]) -> Outcome:
    """Closes and writes the spools of agents that no longer run.

    Raises
    ------
    OSError
        A file cannot be written.
    """
    outcome = Outcome()
    for directory in directories:
        adopt(directory)
        convert(directory, outcome)
    return outcome


def prune(directory: Path, keep_hours: float, total_bytes_max: int, wall_s: float) -> int:
    """Deletes files of hours that are too old, then the oldest files until the rest fits, never those of the current hour. Returns the
    number of deleted files.

    Only files in folders of this layout are deleted. Unreadable pieces of the spool belong to no hour; if files must make room, they are
    the first to be deleted.
    """
    now, oldest = hour_of(int(wall_s * 1e6)), hour_of(int((wall_s - keep_hours * 3600) * 1e6))
    files: list[tuple[datetime, Path, int]] = []
    for path in directory.glob(f"kind=*/date=*/hour=*/*{SUFFIX}"):
        parsed = parse_folder(path.parent.relative_to(directory).as_posix())
        if parsed is not None:
            files.append((parsed[1], path, size_of(path)))
    never = datetime.min.replace(tzinfo=UTC)
    bad = [(never, path, size_of(path)) for path in (directory / FOLDER).glob(f"*{BAD}")]
    total = sum(size for *_, size in files + bad)
    deleted = 0
    for hour, path, size in sorted(bad) + sorted(files):
        too_old = hour < oldest and hour is not never
        if too_old or (total > total_bytes_max and hour < now):
            path.unlink(missing_ok=True)
            total -= size
            deleted += 1
            _remove_empty(path.parent, directory)
    return deleted


def _write_piece(directory: Path, piece: Piece, outcome: Outcome) -> None:
    """Writes the rows of one piece, one file for each kind and hour."""
    from sbon.telemetry.frames import METADATA, Recorded, frame_of

    header = piece.header
    groups: dict[tuple[str, datetime], list[Recorded]] = {}
    for line in piece.lines:
        key = str(line.row.__struct_config__.tag), hour_of(line.time_us)
        groups.setdefault(key, []).append(Recorded(line.time_us, header.agent, header.start, line.sequence, line.row))
    outcome.lines_damaged += piece.damaged
    for (kind, hour), rows in sorted(groups.items()):
        frame, refused = frame_of(TABLES[kind], rows)
        outcome.lines_damaged += refused
        if frame.height:
            target = directory / folder(kind, hour) / file_name(header.agent, header.start, header.piece)
            target.parent.mkdir(parents=True, exist_ok=True)
            fresh = target.with_name(f".{target.name}.tmp")
            try:
                data = io.BytesIO()  # in memory first: a piece is small, and the system reports a full disk better than polars
                frame.write_parquet(data, compression="zstd", metadata=METADATA)
                _settle(fresh, target, data.getbuffer())
            except BaseException:
                fresh.unlink(missing_ok=True)
                raise
            outcome.files += 1
            outcome.rows += frame.height


def _settle(fresh: Path, target: Path, data: memoryview) -> None:
    """Syncs the data to disk before the file gets its name, so that after a power failure the file is complete or missing."""
    with fresh.open("wb", buffering=0) as file:
        write_all(file.fileno(), data)
        os.fsync(file.fileno())
    fresh.replace(target)


def _remove_empty(path: Path, root: Path) -> None:
    """Removes empty folders of deleted hours."""
    while path != root and path.name != FOLDER:
        try:
            path.rmdir()
        except OSError:
            return  # the folder is not empty
        path = path.parent


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Holds the lock that admits one writer at a time. The kernel releases it when the process ends, in whatever way."""
    descriptor = os.open(directory / FOLDER / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def main(arguments: list[str] | None = None) -> int:
    """Writes waiting pieces; returns exit code 1 if a file cannot be written."""
    known = argparse.ArgumentParser(prog="python -m sbon_agent.telemetry.writer", description=(__doc__ or "").split("\n\n")[0])
    known.add_argument("directories", metavar="DIR", type=Path, nargs="+", help="`telemetry` folder in an agent's data directory")
    known.add_argument("--running", action="store_true", help="the agent runs: do not write its open piece")
    known.add_argument("--keep-hours", type=float, default=float("inf"), help="delete older hours")
    known.add_argument("--bytes-max", type=int, default=2**63, help="delete the oldest hours until files take at most N bytes")
    options = known.parse_args(arguments)
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    outcome = Outcome()
    try:
        for directory in options.directories:
            if not options.running:
                adopt(directory)
            convert(directory, outcome)
            if options.keep_hours < float("inf") or options.bytes_max < 2**63:
                keep_hours = min(options.keep_hours, 1e9)
                outcome.files_deleted += prune(directory, keep_hours, options.bytes_max, time.time())
    except OSError as problem:
        sys.stderr.write(f"cannot write telemetry: {problem}\n")
        return 1
    finally:
        sys.stdout.write(msgspec.json.encode(outcome).decode() + "\n")
    return 0


if __name__ == "__main__":
    os.nice(NICENESS)
    sys.exit(main())
