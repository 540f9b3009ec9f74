"""Runs Flink for `sbon bench peers`: `flink_job` under a Python that has Flink, and its JVM, each in its own process."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import psutil

from sbon.errors import SbonError, UsageError
from sbon_testbed.bench import flink_job

HOW = "python3.11 -m venv flink && flink/bin/pip install apache-flink, and Java 11 or later; then sbon bench peers --flink flink/bin/python"


class Flink:
    """A running Flink.

    Parameters
    ----------
    process : the script `flink_job`
    results : stream of the script's JSON lines
    log : file with the script's other output
    """

    def __init__(self, process: "subprocess.Popen[bytes]", results: Any, log: Path) -> None:
        self._process = process
        self._results = results
        self._log = log
        self.version: str = self._told()["version"]

    def run(self, work: str, *, paths: Sequence[Path] = (), rows: int = 0, sink: Path | None = None) -> float:
        """Runs a job of `flink_job` to its end; returns the seconds that it took.

        Raises
        ------
        SbonError
            The job failed.
        """
        assert self._process.stdin is not None
        job = {"work": work, "paths": [str(path) for path in paths], "rows": rows, "sink": str(sink) if sink else ""}
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(job).encode() + b"\n")
        return float(self._told()["seconds"])

    def cpu_s(self) -> float:
        """Returns the processor seconds that Flink's processes have used."""
        root = psutil.Process(self._process.pid)
        used = 0.0
        for process in [root, *root.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                used += times.user + times.system
        return used

    def _told(self) -> dict[str, Any]:
        line = self._results.readline()
        if not line:
            last = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
            raise SbonError(f"Flink has ended: {last[0][:300] if last else 'it wrote nothing'}")
        told: dict[str, Any] = json.loads(line)
        if "error" in told:
            raise SbonError(f"Flink: {told['error']}")
        return told


@contextmanager
def flink(python: str, directory: Path) -> Iterator[Flink]:
    """Yields a running Flink that ends with the block.

    Parameters
    ----------
    python : path of a Python that has `apache-flink`
    directory : folder for the log

    Raises
    ------
    UsageError
        There is no Flink, or no Java.
    SbonError
        Flink does not start.
    """
    check(python)
    log = directory / "flink.log"
    read, write = os.pipe()
    with log.open("wb") as output, os.fdopen(read, encoding="utf-8") as results:
        try:
            process = subprocess.Popen(
                [python, flink_job.__file__, str(write)],
                bufsize=0,  # no data is left to write after it has ended
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                pass_fds=(write,),
                start_new_session=True,
                cwd=directory,
            )
        finally:
            os.close(write)
        with process:
            try:
                yield Flink(process, results, log)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # the script and its JVM


def check(python: str) -> None:
    """Raises UsageError with instructions if this Python has no Flink, or the machine no Java."""
    if not python:
        raise UsageError(f"--flink is not given, expected a Python that has Flink: {HOW}")
    if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        raise UsageError(f"there is no Java on this machine, which Flink needs: {HOW}")
    try:
        found = subprocess.run([python, "-c", "import pyflink.version"], capture_output=True, text=True, check=False)
        problem = found.stderr.strip().splitlines()[-1:] if found.returncode else []
    except OSError as error:
        problem = [str(error.strerror)]
    if problem:
        raise UsageError(f"--flink {python} has no Flink ({problem[0][:120]}): {HOW}")


def computed(work: str, rows: int) -> list[pl.DataFrame]:
    """Returns the rows that `flink_job` computes for each source of a workload."""
    number = np.arange(rows, dtype=np.int64)
    tables = []
    for source in flink_job.SOURCES[work]:
        factor, added, modulo = flink_job.KEYS[source]
        key = (number * factor + added) % modulo
        value = (number * flink_job.VALUE_FACTOR % flink_job.VALUES) / flink_job.VALUES
        time_ms = flink_job.START_MS + number // flink_job.ROWS_PER_MS
        frame = pl.DataFrame({"ts": time_ms, "key": key, "value": value})
        tables.append(frame.with_columns(pl.col("ts").cast(pl.Datetime("ms")).cast(pl.Datetime("us"))))
    return tables


def answers(folder: Path, columns: pl.Schema) -> pl.DataFrame:
    """Returns the rows that a job has written into its sink."""
    parts = [path for path in folder.rglob("*") if path.is_file() and not path.name.endswith(".crc") and path.stat().st_size]
    texts = pl.Schema({name: pl.String() if dtype.is_temporal() else dtype for name, dtype in columns.items()})
    frames = [pl.read_csv(path, has_header=False, schema=texts) for path in sorted(parts)]
    times = [name for name, dtype in columns.items() if dtype.is_temporal()]
    return pl.concat([pl.DataFrame(schema=texts), *frames]).with_columns(
        pl.col(times).str.to_datetime("%Y-%m-%d %H:%M:%S%.f", time_unit="us")
    )
