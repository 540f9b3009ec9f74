"""Measures the least cost of reading a file on this machine: one thread of polars that reads it into columns, and `cat`.

Each is its own process. polars reads times as plain numbers or texts, without parsing them. Run as a module, this is the polars process:
`python -m sbon_testbed.bench.input_limits FORM FILE...` prints wall-clock and processor seconds from before the first byte to the last
row, without the time to load the library.
"""

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from sbon.errors import SbonError

TIMEOUT_S = 600.0


class Limit(NamedTuple):
    """Seconds that reading took."""

    wall_s: float
    cpu_s: float


def polars_thread(form: str, files: Sequence[Path], rows: int) -> Limit:
    """Returns the seconds that one thread of polars takes to read the files.

    Raises
    ------
    SbonError
        polars failed, or read another number of rows.
    """
    command = [sys.executable, "-P", "-m", __name__, form, *map(str, files)]
    environment = {**os.environ, "POLARS_MAX_THREADS": "1"}
    found = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=TIMEOUT_S)
    if found.returncode:
        raise SbonError(f"polars cannot read {files[0].name}: {found.stderr.strip()[-300:]}")
    told = json.loads(found.stdout)
    if told["rows"] != rows:
        raise SbonError(f"polars has read {told['rows']} rows from {files[0].name} and the other files, expected {rows}")
    return Limit(told["wall_s"], told["cpu_s"])


def cat(files: Sequence[Path]) -> Limit:
    """Returns the seconds that `cat` takes to write the files to a pipe that is read."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    with subprocess.Popen(["cat", *map(str, files)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        room = bytearray(1 << 20)
        while process.stdout.readinto(room):  # type: ignore[attr-defined]
            pass
    if process.returncode:
        raise SbonError(f"cat ended with {process.returncode}")
    took_s, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return Limit(took_s, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)


def _read(form: str, files: Sequence[str]) -> int:
    """Reads each file into columns; returns the number of rows."""
    import polars as pl

    time_type = pl.String() if form == "csv-iso" else pl.Int64()
    schema = pl.Schema({"ts": time_type, "key": pl.Int64(), "value": pl.Float64()})
    rows = 0
    for file in files:
        if form == "parquet":
            rows += pl.read_parquet(file).height
        elif form == "ndjson":
            rows += pl.read_ndjson(file, schema=schema).height
        else:
            rows += pl.read_csv(file, has_header=False, schema=schema).height
    return rows


def main() -> None:
    """Reads the files, and prints the rows and the seconds."""
    import polars as pl

    if pl.thread_pool_size() != 1:
        sys.exit(f"polars has {pl.thread_pool_size()} threads, expected POLARS_MAX_THREADS=1")
    used, began = time.process_time(), time.monotonic()
    rows = _read(sys.argv[1], sys.argv[2:])
    print(json.dumps({"rows": rows, "wall_s": time.monotonic() - began, "cpu_s": time.process_time() - used}))


if __name__ == "__main__":
    main()
