"""Brings the rows of a workload to an agent: the agent generates them, reads them from files, or gets them from a sender."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from sbon.errors import SbonError
from sbon_testbed.bench.rows import FORMS, generated, read_from, write_workload
from sbon_testbed.bench.workloads import WORKLOADS, Keys
from sbon_testbed.processes.local import free_ports

GENERATED = ("fresh", "pool")
SENT = {"tcp": "ndjson", "http": "ndjson", "mqtt": "ndjson"}
"""Kinds for which a process beside the agent sends a file, and the file's form."""
KINDS = (*GENERATED, *FORMS, *SENT)
"""`fresh`: every row is generated; `pool`: a million rows are repeated; others: a file format, or the protocol of a sender."""


class Supply(NamedTuple):
    """Rows for one run of a workload."""

    kind: str
    rows: int
    """Rows of all sources together."""
    options: list[list[str]]
    """Options of each source; several if the source is a union."""
    files: list[Path]
    """Files with the rows; none if the agent generates them."""
    senders: list[list[str]]
    """Arguments of each process that sends rows to a source; none if the agent generates or reads them."""

    @property
    def ends(self) -> bool:
        """Tells whether the sources end by themselves."""
        return not self.senders

    @property
    def parts(self) -> int:
        """Returns the number of inputs of which each source is the union."""
        return len(self.options[0])

    @property
    def size_bytes(self) -> int:
        """Returns the size of all files."""
        return sum(path.stat().st_size for path in self.files)


def supply(kind: str, name: str, rows: int, directory: Path, *, parts: int = 1, keys: Keys | None = None, broker_port: int = 0) -> Supply:
    """Prepares the rows of one of `KINDS` for a workload; writes the files that they need into the directory.

    Parameters
    ----------
    rows : number of rows over all sources
    parts : files of a source, which are read as a union; for `FORMS` only
    keys : replaces the workload's keys; for `GENERATED` only
    broker_port : port of the broker on loopback, for `mqtt`
    """
    sources = WORKLOADS[name].sources
    rows = rows // sources * sources
    if kind in GENERATED:
        made = [[generated(name, side, rows=rows // sources, pool=kind == "pool", keys=keys)] for side in range(sources)]
        return Supply(kind, rows, made, [], [])
    form = SENT.get(kind, kind)
    written = write_workload(directory, name, form, rows, parts)
    files = [path for paths in written for path in paths]
    if kind in SENT:
        places = [str(place) for place in (range(sources) if kind == "mqtt" else free_ports(sources))]
        options = [[f"connector = '{kind}', time_unit = 'ms', {_where(kind, place, broker_port)}"] for place in places]
        arguments = [[kind, place, str(path), str(broker_port)] for place, path in zip(places, files, strict=True)]
        return Supply(kind, rows, options, files, arguments)
    return Supply(kind, rows, [[read_from(path, form) for path in paths] for paths in written], files, [])


def _where(kind: str, place: str, broker_port: int) -> str:
    """Returns the option of a source that gets rows from a sender: its port, or the broker's topic."""
    return {
        "tcp": f"port = {place}",
        "http": f"listen = '127.0.0.1:{place}', format = 'ndjson'",
        "mqtt": f"broker = '127.0.0.1:{broker_port}', topics = 'rows/{place}', session = 'clean'",
    }[kind]


class Senders:
    """Processes that are ready to send rows."""

    def __init__(self, processes: "Sequence[subprocess.Popen[bytes]]") -> None:
        self._processes = processes

    def begin(self) -> None:
        """Lets them send."""
        for process in self._processes:
            assert process.stdin is not None
            with suppress(BrokenPipeError):  # `check` reports it
                process.stdin.write(b"go\n")

    def check(self) -> None:
        """Raises SbonError if a process has failed."""
        for process in self._processes:
            if process.poll():
                raise SbonError(f"a process that sends rows has failed, with status {process.returncode}")


@contextmanager
def sending(senders: Sequence[Sequence[str]]) -> Iterator[Senders]:
    """Starts senders and yields them once they are connected to their sources; they end with the block.

    Parameters
    ----------
    senders : arguments of each process, as in `Supply`

    Raises
    ------
    SbonError
        A process ends before it is ready.
    """
    with ExitStack() as stack:
        processes = []
        for arguments in senders:
            command = [sys.executable, "-P", "-m", "sbon_testbed.bench.sender", *arguments]
            process = stack.enter_context(
                subprocess.Popen(command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0)
            )
            stack.callback(process.kill)
            processes.append(process)
        for process in processes:
            assert process.stdout is not None
            if not process.stdout.readline():
                raise SbonError(f"a process that sends rows ended at its start, with status {process.wait()}")
        yield Senders(processes)
