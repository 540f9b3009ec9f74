"""One agent in a process of its own, to be measured: asked over its control socket, and watched from outside in /proc."""

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sbon.cli.client import ControlClient, UnreachableError
from sbon.control import SOCKET_NAME
from sbon.errors import SbonError
from testbed.processes.local import free_ports
from testbed.processes.spawn import spawn

START_TIMEOUT_S = 60.0
_LOOK_S = 0.05
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class AgentProcess:
    """A running agent.

    Parameters
    ----------
    pid : of its process
    client : speaks to it
    log : its log file
    """

    def __init__(self, pid: int, client: ControlClient, log: Path) -> None:
        self.pid = pid
        self.client = client
        self._log = log

    def submit(self, sql: str) -> None:
        """Run statements."""
        self.client.ask("submit", sql=sql)

    def operators(self, kind: str = "") -> list[dict[str, Any]]:
        """What it tells of its operators, of one kind or all.

        Raises
        ------
        SbonError
            One of them has failed.
        """
        told: list[dict[str, Any]] = self.client.ask("operators")
        for operator in told:
            if operator["state"] == "failed":
                raise SbonError(f"operator {operator['id']} ({operator['text']}) failed: {operator['reason']}")
        return [operator for operator in told if kind in ("", operator["kind"])]

    def rows_made(self) -> int:
        """Rows that its sources have given to the queries."""
        return sum(operator["rows_out"] for operator in self.operators("source"))

    def rows_taken(self) -> int:
        """Rows that its sinks have taken."""
        return sum(operator["rows_in"] for operator in self.operators("sink"))

    def wait_until(self, condition: Callable[[], bool], what: str, timeout_s: float = START_TIMEOUT_S) -> None:
        """Look until it is so.

        Raises
        ------
        SbonError
            It is not so within the time.
        """
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                raise SbonError(f"{what}: not within {timeout_s:g} s; the end of the agent's log: {last_line(self._log)}")
            time.sleep(_LOOK_S)

    def cpu_s(self) -> float:
        """Processor seconds used so far, by all its threads, in user space and in the kernel."""
        fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S

    def memory_mb(self, what: str = "VmRSS") -> float:
        """Memory in MB (10**6 bytes): VmRSS what it has now, VmHWM the most it has had."""
        for line in Path(f"/proc/{self.pid}/status").read_text(encoding="utf-8").splitlines():
            if line.startswith(f"{what}:"):
                return int(line.split()[1]) * 1024 / 1e6
        raise SbonError(f"/proc/{self.pid}/status has no {what}: benchmarks need Linux")


@contextmanager
def one_agent(settings: str = "") -> Iterator[AgentProcess]:
    """An agent alone on loopback, with the defaults but for `settings` (TOML); it and its files are gone after the block.

    Raises
    ------
    SbonError
        It does not start; the message has the end of its log.
    """
    with tempfile.TemporaryDirectory(prefix="sbon-bench-") as directory:
        folder = Path(directory)
        config, log_path = folder / "agent.toml", folder / "agent.log"
        config.write_text(f'{settings}\nlog = {{ level = "warning" }}\n', encoding="utf-8")
        options = [
            "--config",
            str(config),
            "--name",
            "bench",
            "--bind",
            f"127.0.0.1:{free_ports(1)[0]}",
            "--data-dir",
            str(folder / "data"),
        ]
        with log_path.open("ab") as log:
            process = spawn(options, log)
        try:
            deadline = time.monotonic() + START_TIMEOUT_S
            client = None
            while client is None:
                if process.poll() is not None:
                    raise SbonError(f"the agent ended at its start: {last_line(log_path)}")
                if time.monotonic() > deadline:
                    raise SbonError(f"the agent does not answer after {START_TIMEOUT_S:g} s: {last_line(log_path)}")
                with suppress(UnreachableError):
                    client = ControlClient(folder / "data" / SOCKET_NAME)
                if client is None:
                    time.sleep(_LOOK_S)
            with client:
                yield AgentProcess(process.pid, client, log_path)
        finally:
            process.kill()
            process.wait()


def last_line(log: Path) -> str:
    """The end of a log file, for messages."""
    with suppress(OSError):
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        if lines:
            return lines[-1][:500]
    return "its log is empty"
