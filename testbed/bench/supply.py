"""What brings the rows of a workload to an agent: the agent makes them, reads files, or is sent them."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from sbon.errors import SbonError
from sbon_testbed.bench.rows import FORMS, generated, read_from, write_workload
from sbon_testbed.bench.workloads import WORKLOADS
from sbon_testbed.processes.local import free_ports

GENERATED = ("fresh", "pool")
SENT = {"tcp": "ndjson"}
"""Kinds for which a process beside the agent sends a file, and the file's form."""
KINDS = (*GENERATED, *FORMS, *SENT)
"""`fresh`: every row is made anew; `pool`: a million rows are given again and again; a form of file; or how rows are sent."""


class Supply(NamedTuple):
    """Rows for one run of a workload."""

    kind: str
    rows: int
    """Of all sources together."""
    options: list[str]
    """Of each source."""
    files: list[Path]
    """With the rows of each source; none where the agent makes them."""
    senders: list[list[str]]
    """Arguments of each process that sends a source its rows; none where the agent has them."""

    @property
    def ends(self) -> bool:
        """Whether the sources end by themselves."""
        return not self.senders

    @property
    def size_bytes(self) -> int:
        """Of the files."""
        return sum(path.stat().st_size for path in self.files)


def supply(kind: str, name: str, rows: int, directory: Path) -> Supply:
    """Rows of one of `KINDS` for a workload; writes the files that there must be into the directory.

    Parameters
    ----------
    rows : of all sources together
    """
    sources = WORKLOADS[name].sources
    rows = rows // sources * sources
    if kind in GENERATED:
        return Supply(kind, rows, [generated(name, side, rows=rows // sources, pool=kind == "pool") for side in range(sources)], [], [])
    form = SENT.get(kind, kind)
    files = [paths[0] for paths in write_workload(directory, name, form, rows)]
    if kind in SENT:
        ports = free_ports(sources)
        options = [f"connector = '{kind}', port = {port}, time_unit = 'ms'" for port in ports]
        return Supply(kind, rows, options, files, [[kind, str(port), str(path)] for port, path in zip(ports, files, strict=True)])
    return Supply(kind, rows, [read_from(path, form) for path in files], files, [])


class Senders:
    """Processes that stand ready to send."""

    def __init__(self, processes: "Sequence[subprocess.Popen[bytes]]") -> None:
        self._processes = processes

    def begin(self) -> None:
        """Let them send."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(b"go\n")
            process.stdin.flush()

    def check(self) -> None:
        """Raise SbonError where one has failed."""
        for process in self._processes:
            if process.poll():
                raise SbonError(f"a process that sends rows has failed, with status {process.returncode}")


@contextmanager
def sending(senders: Sequence[Sequence[str]]) -> Iterator[Senders]:
    """Processes that have reached their sources and stand ready to send; they end with the block.

    Parameters
    ----------
    senders : arguments of each, as of `Supply`

    Raises
    ------
    SbonError
        One of them ends before it stands ready.
    """
    with ExitStack() as stack:
        processes = []
        for arguments in senders:
            command = [sys.executable, "-P", "-m", "sbon_testbed.bench.sender", *arguments]
            process = stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0))
            stack.callback(process.kill)
            processes.append(process)
        for process in processes:
            assert process.stdout is not None
            if not process.stdout.readline():
                raise SbonError(f"a process that sends rows ended at its start, with status {process.wait()}")
        yield Senders(processes)
