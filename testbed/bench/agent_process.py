"""Runs one agent in its own process, and measures it through its control socket and /proc."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from sbon.cli.client import ControlClient
from sbon.errors import SbonError
from sbon_testbed.bench.agents import agents

START_TIMEOUT_S = 60.0


class AgentProcess:
    """A running agent.

    Parameters
    ----------
    pid : process id
    client : connection to its control socket
    data_dir : its data directory
    """

    LOOK_S = 0.02
    """Seconds between two checks of a condition."""

    def __init__(self, pid: int, client: ControlClient, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.pid = pid
        self.client = client

    def submit(self, sql: str) -> None:
        """Runs statements."""
        self.client.ask("submit", sql=sql)

    def operators(self, kind: str = "") -> list[dict[str, Any]]:
        """Returns the agent's report on its operators, of one kind or all.

        Raises
        ------
        SbonError
            An operator has failed.
        """
        told: list[dict[str, Any]] = self.client.ask("operators")
        for operator in told:
            if operator["state"] == "failed":
                raise SbonError(f"operator {operator['id']} ({operator['text']}) failed: {operator['reason']}")
        return [operator for operator in told if kind in ("", operator["kind"])]

    def rows_made(self) -> int:
        """Returns the number of rows that the sources have given to the queries."""
        return sum(operator["rows_out"] for operator in self.operators("source"))

    def rows_taken(self) -> int:
        """Returns the number of rows that the sinks have taken."""
        return sum(operator["rows_in"] for operator in self.operators("sink"))

    def finished(self, query: str) -> bool:
        """Tells whether a query of this name has finished.

        Raises
        ------
        SbonError
            An operator has failed.
        """
        self.operators()
        return any(one["name"] == query and one["state"] == "finished" for one in self.client.ask("queries"))

    def wait_until(self, condition: Callable[[], bool], what: str, timeout_s: float = START_TIMEOUT_S) -> None:
        """Waits until a condition holds; `what` names it in the error.

        Raises
        ------
        SbonError
            The condition does not hold within the time.
        """
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                raise SbonError(f"{what}: not within {timeout_s:g} s")
            time.sleep(self.LOOK_S)

    def cpu_s(self) -> float:
        """Returns the processor seconds that all threads of the agent have used, in user space and in the kernel."""
        times = psutil.Process(self.pid).cpu_times()
        return float(times.user + times.system)

    def processor_s(self) -> dict[str, float]:
        """Returns the processor seconds that the agent reports, by purpose."""
        told: dict[str, float] = self.client.ask("status")["processor_s"]
        return told

    def memory_mb(self, what: str = "VmRSS") -> float:
        """Returns the agent's memory in MB (10**6 bytes): VmRSS is the present size, VmHWM the peak."""
        for line in Path(f"/proc/{self.pid}/status").read_text(encoding="utf-8").splitlines():
            if line.startswith(f"{what}:"):
                return int(line.split()[1]) * 1024 / 1e6
        raise SbonError(f"/proc/{self.pid}/status has no {what}: benchmarks need Linux")


@contextmanager
def one_agent(settings: str = "", module: str = "sbon_agent") -> Iterator[AgentProcess]:
    """Runs one agent `bench` on loopback, with defaults except `settings` (TOML); ends it and removes its files after the block.

    Raises
    ------
    SbonError
        The agent does not start; the message has the end of its log.
    """
    with agents(["bench"], f'{settings}\nlog = {{ level = "warning" }}\n', sealed=False, module=module) as found:
        agent = found["bench"]
        yield AgentProcess(agent.process.pid, agent.client, agent.directory)
