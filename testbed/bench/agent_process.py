"""One agent in a process of its own, to be measured: asked over its control socket, and watched from outside in /proc."""

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
    pid : of its process
    client : speaks to it
    data_dir : its data directory
    """

    LOOK_S = 0.02
    """Pause between two looks at how far it is."""

    def __init__(self, pid: int, client: ControlClient, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.pid = pid
        self.client = client

    def submit(self, sql: str) -> None:
        """Runs statements."""
        self.client.ask("submit", sql=sql)

    def operators(self, kind: str = "") -> list[dict[str, Any]]:
        """Returns what it tells of its operators, of one kind or all.

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

    def finished(self, query: str) -> bool:
        """Tells whether a query of this name has come to its end.

        Raises
        ------
        SbonError
            An operator has failed.
        """
        self.operators()
        return any(one["name"] == query and one["state"] == "finished" for one in self.client.ask("queries"))

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
                raise SbonError(f"{what}: not within {timeout_s:g} s")
            time.sleep(self.LOOK_S)

    def cpu_s(self) -> float:
        """Processor seconds used so far, by all its threads, in user space and in the kernel."""
        times = psutil.Process(self.pid).cpu_times()
        return float(times.user + times.system)

    def processor_s(self) -> dict[str, float]:
        """Returns the processor seconds that it has used so far, by what they were for, as it says."""
        told: dict[str, float] = self.client.ask("status")["processor_s"]
        return told

    def memory_mb(self, what: str = "VmRSS") -> float:
        """Memory in MB (10**6 bytes): VmRSS what it has now, VmHWM the most it has had."""
        for line in Path(f"/proc/{self.pid}/status").read_text(encoding="utf-8").splitlines():
            if line.startswith(f"{what}:"):
                return int(line.split()[1]) * 1024 / 1e6
        raise SbonError(f"/proc/{self.pid}/status has no {what}: benchmarks need Linux")


@contextmanager
def one_agent(settings: str = "", module: str = "sbon_agent") -> Iterator[AgentProcess]:
    """Runs an agent called `bench`, alone on loopback, with defaults but for `settings` (TOML); removes it and its files after the block.

    Raises
    ------
    SbonError
        It does not start; the message has the end of its log.
    """
    with agents(["bench"], f'{settings}\nlog = {{ level = "warning" }}\n', sealed=False, module=module) as found:
        agent = found["bench"]
        yield AgentProcess(agent.process.pid, agent.client, agent.directory)
