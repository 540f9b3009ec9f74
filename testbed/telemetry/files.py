"""Converts the agents' spools to Parquet files after a run, in one process, because a writer for each agent would overload a small
machine."""

import os
from pathlib import Path

from sbon.errors import SbonError


def write_tables(directory: Path) -> int:
    """Writes the telemetry of agents with data directories below `directory`, which must not run. Returns the number of rows.

    Raises
    ------
    SbonError
        The files cannot be written.
    """
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    from sbon_agent.telemetry.log import DIRECTORY_NAME
    from sbon_agent.telemetry.writer import convert_all

    try:
        return convert_all(sorted(directory.glob(f"*/{DIRECTORY_NAME}"))).rows
    except OSError as problem:
        raise SbonError(f"cannot write telemetry below {directory}: {problem.strerror}; free space and try again") from problem
