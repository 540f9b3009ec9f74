"""Agents in processes of their own, for tests."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from sbon.cli.client import ControlClient, UnreachableError
from tests.text_files import whole_lines

WAIT_S = 120.0
"""Limit of waits that take a second or two on an idle machine."""


class Process:
    """An agent in a process of its own, with its log in a file."""

    def __init__(self, directory: Path, name: str, *options: str, program: str | None = None) -> None:
        self.directory = directory / name
        self.log = directory / f"{name}.log"
        arguments = ["--name", name, "--data-dir", str(self.directory), "--log-format", "json", *options]
        command = ["-c", program, *arguments] if program else ["-m", "sbon_agent", *arguments]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, stderr=log)

    def ask(self, command: str, **arguments):
        with ControlClient(self.directory / "control.sock") as client:
            return client.ask(command, **arguments)

    def events(self) -> list[str]:
        return [json.loads(line)["event"] for line in whole_lines(self.log)]

    def wait_until_ready(self) -> "Process":
        def ready() -> bool:
            assert self.process.poll() is None, self.log.read_text()
            try:
                return bool(self.ask("status"))
            except UnreachableError:
                return False

        wait_until(ready)
        return self

    def end(self, number: int = signal.SIGTERM) -> int:
        """Signals the process if it runs, waits for its end, keeps its output, and returns its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        if self.process.stdout is not None and not self.process.stdout.closed:
            self.said = self.process.communicate(timeout=WAIT_S)[0].decode().strip()
        return self.process.returncode


def two_agents(tmp_path: Path) -> Iterator[tuple[Process, Process]]:
    """Yields the agents ams and nyc, which know each other. To be used as a fixture."""
    ams = Process(tmp_path, "ams", "--bind", "127.0.0.1:0").wait_until_ready()
    nyc = Process(tmp_path, "nyc", "--bind", "127.0.0.1:0", "--join", ams.ask("status")["address"]).wait_until_ready()
    wait_until(lambda: ams.ask("status")["members"]["alive"] == nyc.ask("status")["members"]["alive"] == 2)
    yield ams, nyc
    ams.end()
    nyc.end()


def runs(process_id: int) -> bool:
    """Tells whether a process runs; a zombie that waits to be reaped does not."""
    try:
        return bool(psutil.Process(process_id).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def wait_until(condition: Callable[[], bool], timeout_s: float = WAIT_S) -> None:
    deadline, pause_s = time.monotonic() + timeout_s, 0.02
    while not condition():
        assert time.monotonic() < deadline, "the condition has not come true in time"
        signal.sigtimedwait([], pause_s)  # leaves the processor to the awaited processes
        pause_s = min(0.2, 1.2 * pause_s)
