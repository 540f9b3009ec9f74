"""Finds the readable files of a log. All are checked cheaply first, so that Spark gets only good ones.

Every defect of a log - a damaged or half-written file, an unknown version, an hour without rows, a missing kind - is reported as a
`Problem`, never as a stack trace and never silently.
"""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import polars as pl

from sbon.errors import SbonError
from sbon.telemetry import layout
from sbon.telemetry.layout import CLOSED, OPEN, SPOOL
from sbon.telemetry.schema import PERIODIC, TABLES, VERSION, VERSION_KEY

MAGIC = b"PAR1"
"""Bytes at the start and end of Parquet files; a file whose writer was killed lacks those at the end."""
READERS = 4
"""Number of files checked at once."""
SMALLEST_BYTES = 12


class LogFile(NamedTuple):
    """One file that can be read."""

    path: Path
    kind: str
    hour: datetime
    rows: int
    size_bytes: int


class Problem(NamedTuple):
    """A defect of the log that a reader of the report must know."""

    where: str
    what: str


class Log(NamedTuple):
    """The files to analyse, and their problems."""

    files: tuple[LogFile, ...]
    problems: tuple[Problem, ...]

    def paths(self, kind: str) -> list[str]:
        """Returns the files of one kind."""
        return [str(file.path) for file in self.files if file.kind == kind]

    def rows(self, kind: str | None = None) -> int:
        """Returns the number of rows of one kind, or of all."""
        return sum(file.rows for file in self.files if kind is None or file.kind == kind)

    @property
    def size_bytes(self) -> int:
        """Returns the size of all files."""
        return sum(file.size_bytes for file in self.files)

    def without(self, path: Path, what: str) -> "Log":
        """Returns the log without a file that has turned out to be unreadable."""
        return Log(tuple(file for file in self.files if file.path != path), (*self.problems, Problem(str(path), what)))


def read_log(directories: Sequence[Path], since: datetime | None = None, until: datetime | None = None) -> Log:
    """Finds the files below these directories and checks each one's ends and columns.

    Parameters
    ----------
    directories : data directories of agents, their `telemetry` folders, or folders of such
    since, until : hours that end before or begin after are left out

    Raises
    ------
    SbonError
        A directory does not exist or cannot be read, or none has a single readable file.
    """
    files: list[LogFile] = []
    problems: list[Problem] = []
    for directory in directories:
        if not directory.is_dir():
            raise SbonError(f"no directory {directory}, expected one with telemetry (an agent's data directory, or the --out of a run)")
        inside = [
            found
            for found in _found(directory, problems)
            if (since is None or found[2] + timedelta(hours=1) > since) and (until is None or found[2] < until)
        ]
        with ThreadPoolExecutor(READERS) as readers:  # each waits for the disk and for polars' own threads
            for looked in readers.map(lambda found: _look(*found), inside):
                (files if isinstance(looked, LogFile) else problems).append(looked)  # type: ignore[arg-type]
    if not files:
        more = f"; {problems[0].where}: {problems[0].what}" if problems else ""
        places = ", ".join(str(directory) for directory in directories)
        raise SbonError(f"no telemetry to read in {places}, expected kind=K/date=D/hour=H/*.parquet below it{more}")
    unique = {file.path.resolve(): file for file in files}
    log = Log(tuple(sorted(unique.values(), key=lambda file: (file.kind, file.hour, str(file.path)))), tuple(problems))
    return log._replace(problems=(*log.problems, *_gaps(log)))


def _found(directory: Path, problems: list[Problem]) -> Iterator[tuple[Path, str, datetime]]:
    """Yields Parquet files with kind and hour of their folders; reports other files as problems."""

    def unreadable(error: OSError) -> None:
        problems.append(Problem(str(error.filename), f"cannot be listed: {error.strerror}"))

    for folder, names, leaves in os.walk(directory, onerror=unreadable):
        names.sort()
        if Path(folder).name == SPOOL:
            problems += _waiting(folder, leaves)
            continue
        place = "/".join(Path(folder).absolute().parts[-3:])
        if not place.startswith("kind="):
            continue
        found = layout.parse_folder(place)
        if found is None:
            problems.append(Problem(folder, "is no folder of an hour, expected kind=K/date=YYYY-MM-DD/hour=HH; not read"))
            names.clear()
            continue
        kind, hour = found
        if kind not in TABLES:
            problems.append(Problem(folder, f"is of a kind that this version does not know, expected {', '.join(TABLES)}; not read"))
            continue
        for leaf in sorted(leaves):
            path = Path(folder, leaf)
            if leaf.endswith(layout.SUFFIX) and leaf[0] not in "._":
                yield path, kind, hour
            else:
                problems.append(Problem(str(path), "is left from a writer that was cut off, or does not belong here; not read"))


def _waiting(folder: str, leaves: Sequence[str]) -> Iterator[Problem]:
    """Reports rows that are not in tables yet: of a running agent, or of one that was killed and not started since."""
    pieces = [leaf for leaf in leaves if leaf.endswith((OPEN, CLOSED))]
    if pieces:
        some = f"{len(pieces)} piece{'' if len(pieces) == 1 else 's'} of a spool"
        yield Problem(
            folder, f"holds {some}, whose rows are not in tables yet: the agent writes them every hour, when it stops and when it starts"
        )


def _look(path: Path, kind: str, hour: datetime) -> LogFile | Problem:
    """Checks a file's header and footer, without reading its rows."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            first = file.read(len(MAGIC))
            file.seek(max(0, size - len(MAGIC)))
            last = file.read(len(MAGIC))
        if size < SMALLEST_BYTES or first != MAGIC:
            return Problem(str(path), f"is no Parquet file ({size} bytes); not read")
        if last != MAGIC:
            return Problem(str(path), f"is cut off after {size} bytes; not read")
        version = pl.read_parquet_metadata(path).get(VERSION_KEY)
        found = pl.read_parquet_schema(path)
        rows = pl.scan_parquet(path).select(pl.len()).collect().item()
    except (OSError, pl.exceptions.PolarsError) as problem:
        return Problem(str(path), f"is damaged: {str(problem).splitlines()[0]}; not read")
    if version != str(VERSION):
        said = "no schema version" if version is None else f"schema version {version}"
        return Problem(str(path), f"has {said}, expected {VERSION}; not read")
    for name, wanted in TABLES[kind].polars_schema().items():
        if name not in found and name not in TABLES[kind].later:
            return Problem(str(path), f"has no column {name}; not read")
        if found.get(name, wanted) != wanted:
            return Problem(str(path), f"has column {name} of type {found[name]}, expected {wanted}; not read")
    return LogFile(path, kind, hour, int(rows), size)


def _gaps(log: Log) -> Iterator[Problem]:
    """Reports kinds without any row, and hours in which a continuously written kind has none."""
    hours = sorted({file.hour for file in log.files if file.rows})
    for kind in TABLES:
        there = {file.hour for file in log.files if file.kind == kind and file.rows}
        if not there:
            yield Problem(f"kind={kind}", "has no rows: parts of the report that need them are left out")
        elif kind in PERIODIC:
            for first, last in _runs([hour for hour in _every_hour(hours[0], hours[-1]) if hour not in there]):
                span = f"{first:%Y-%m-%d %H}:00" + ("" if first == last else f" to {last + timedelta(hours=1):%Y-%m-%d %H}:00")
                yield Problem(f"kind={kind}", f"has no rows in the hour{'' if first == last else 's'} {span}")


def _every_hour(first: datetime, last: datetime) -> Iterator[datetime]:
    while first <= last:
        yield first
        first += timedelta(hours=1)


def _runs(hours: Sequence[datetime]) -> Iterator[tuple[datetime, datetime]]:
    """Yields first and last hour of each run of hours without a break."""
    begun = 0
    for index, hour in enumerate(hours):
        if index + 1 == len(hours) or hours[index + 1] - hour > timedelta(hours=1):
            yield hours[begun], hour
            begun = index + 1
