"""After a run: the agents' spools become Parquet files, in this one process. A writer for each agent would keep a small machine busy."""

import os
from pathlib import Path

from sbon.errors import SbonError


def write_tables(directory: Path) -> int:
    """Write what agents, each with a data directory below `directory`, have recorded; none of them may run. Returns the rows.

    Raises
    ------
    SbonError
        The disk refuses.
    """
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    from sbon_agent.telemetry.log import DIRECTORY_NAME
    from sbon_agent.telemetry.writer import convert_all

    try:
        return convert_all(sorted(directory.glob(f"*/{DIRECTORY_NAME}"))).rows
    except OSError as problem:
        raise SbonError(f"cannot write telemetry below {directory}: {problem.strerror}; free space and try again") from problem
