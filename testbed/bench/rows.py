"""Rows of the workloads: as options of the generator `datagen`, and as files with seeded random rows.

Files have integer keys, values of at most six decimals, and times in whole milliseconds, `EVENT_ROWS_PER_S` / 1,000 rows in each
millisecond. They have no header. The rows of a source can be divided over several files, in order, for engines with several readers.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from sbon.errors import UsageError
from sbon_testbed.bench.workloads import EVENT_ROWS_PER_S, SIDES, WORKLOADS, Keys

START_MS = 1_700_000_000_000
"""Event time of the first row: 2023-11-14 22:13:20 UTC."""
START = "2023-11-14T22:13:20Z"
SEED = 7
POOL_ROWS = 1 << 20
ROWS_MIN, ROWS_MAX = 1_000, 50_000_000
"""Limits of the rows of a file; a row takes 24 bytes of memory while it is made."""
ROW_GROUP_ROWS = 1_000_000


class Form(NamedTuple):
    """A file format."""

    suffix: str
    options: str
    """Options of the connector `file`, and of other connectors that bring the same lines."""


FORMS = {
    "csv": Form(".csv", "format = 'csv', header = 'false', time_unit = 'ms'"),
    "csv-iso": Form(".csv", "format = 'csv', header = 'false'"),
    "ndjson": Form(".ndjson", "format = 'ndjson', time_unit = 'ms'"),
    "parquet": Form(".parquet", "format = 'parquet'"),
}
"""`csv`: times as milliseconds since 1970; `csv-iso`: as 2023-11-14T22:13:20.000Z; `ndjson`: as milliseconds; `parquet`: as timestamps."""


def check_rows(rows: int) -> None:
    """Refuses a number of rows that is out of range.

    Raises
    ------
    UsageError
        The number is out of range; the message has the range.
    """
    if not ROWS_MIN <= rows <= ROWS_MAX:
        raise UsageError(f"--rows {rows}, expected {ROWS_MIN} to {ROWS_MAX}")


def table(name: str, side: int, rows: int, seed: int = SEED) -> pl.DataFrame:
    """Returns the rows of one source of a workload, as in its files; rows of another seed or side are independent.

    Parameters
    ----------
    side : 0, or 1 for the second source
    rows : number of rows
    """
    random = np.random.default_rng([seed, *name.encode(), side])
    keys = WORKLOADS[name].keys
    if keys.kind == "zipf":
        shares = np.cumsum(1.0 / np.arange(1, keys.number + 1))
        key = np.searchsorted(shares / shares[-1], random.random(rows), side="right")
    else:
        key = random.integers(0, keys.number, rows)
    # Cut, not rounded: a value stays below 1.
    value = random.integers(0, 1_000_000, rows) / 1e6
    time_ms = START_MS + np.arange(rows, dtype=np.int64) * 1_000 // EVENT_ROWS_PER_S
    frame = pl.DataFrame({"ts": time_ms, "key": key.astype(np.int64), "value": value})
    return frame.with_columns(pl.col("ts").cast(pl.Datetime("ms")).cast(pl.Datetime("us")))


def write(frame: pl.DataFrame, form: str, path: Path) -> None:
    """Writes rows to a file of one of `FORMS`."""
    if form == "parquet":
        frame.write_parquet(path, row_group_size=ROW_GROUP_ROWS)
    elif form == "csv-iso":
        frame.write_csv(path, include_header=False, datetime_format="%Y-%m-%dT%H:%M:%S%.3fZ")
    else:
        whole = frame.with_columns(pl.col("ts").dt.timestamp("ms"))
        if form == "csv":
            whole.write_csv(path, include_header=False)
        else:
            whole.write_ndjson(path)


def write_workload(directory: Path, name: str, form: str, rows: int, parts: int = 1, seed: int = SEED) -> list[list[Path]]:
    """Writes the files of a workload; returns the paths by source, `parts` of each.

    Parameters
    ----------
    rows : number of rows over all sources
    parts : files of a source; each has every `parts`-th row
    """
    written = []
    sources = WORKLOADS[name].sources
    for side in range(sources):
        frame = table(name, side, rows // sources, seed)
        folder = directory / f"{name.lower()}-{form}-{SIDES[side]}"
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / f"part-{part}{FORMS[form].suffix}" for part in range(parts)]
        for part, path in enumerate(paths):
            write(frame if parts == 1 else frame.gather_every(parts, part), form, path)
        written.append(paths)
    return written


def read_from(path: Path, form: str) -> str:
    """Returns the options of a source that reads a file of one of `FORMS`."""
    return f"connector = 'file', path = '{path}', {FORMS[form].options}"


def generated(
    name: str, side: int, *, rows: int = 0, rows_per_s: int = 0, pool: bool = False, copy: int = 0, keys: Keys | None = None
) -> str:
    """Returns the options of a source that generates the rows in the agent.

    Parameters
    ----------
    rows : number of rows after which the source ends; 0: no end
    rows_per_s : rate by the clock; a row's event time is when it was due. 0: as fast as the engine takes rows, with event times
        from `START` as in the files
    pool : a million rows are made once and repeated while event time goes on; else every row is generated
    copy : number of a copy; rows of different copies are independent
    keys : distribution of the keys; None: that of the workload
    """
    keys = keys or WORKLOADS[name].keys
    options = ["connector = 'datagen'", f"seed = {2 * copy + side}"]
    if rows_per_s:
        options.append(f"rows_per_second = {rows_per_s}")
    else:
        options.append(f"rows_per_second = 'max', event_rows_per_second = {EVENT_ROWS_PER_S}, start = '{START}'")
    if rows:
        options.append(f"rows = {rows}")
    if pool:
        options.append(f"pool_rows = {POOL_ROWS}")
    if keys.kind == "zipf":
        options.append(f"fields.key.kind = 'zipf', fields.key.count = {keys.number}")
    else:
        options.append(f"fields.key.kind = 'random', fields.key.max = {keys.number - 1}")
    return ", ".join(options)
