"""Runs real agents for benchmarks, each in its own process; they find each other on loopback and end with the block."""

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen

import psutil

from sbon.cli.client import ControlClient, UnreachableError
from sbon.control import SOCKET_NAME
from sbon.errors import SbonError
from sbon.sealing import KEY_BYTES, generate_key
from sbon_testbed.leftovers import remove_leftovers, run_directory
from sbon_testbed.processes.local import free_ports
from sbon_testbed.processes.spawn import spawn

START_TIMEOUT_S = 60.0
_LOOK_S = 0.05


@dataclass(frozen=True)
class BenchAgent:
    """One agent."""

    name: str
    directory: Path
    """Its data directory."""
    client: ControlClient
    process: "Popen[bytes]"

    def cpu_s(self) -> float:
        """Returns the processor seconds that the agent's process has used."""
        times = psutil.Process(self.process.pid).cpu_times()
        return float(times.user + times.system)


@contextmanager
def agents(
    names: Sequence[str],
    settings: str,
    *,
    sealed: bool = True,
    rtt_ms: float = 0.0,
    module: str = "sbon_agent",
    cores: Sequence[int] = (),
) -> Iterator[dict[str, BenchAgent]]:
    """Yields running agents by name once they know each other; ends them and removes their files after the block.

    Parameters
    ----------
    settings
        TOML of every agent's configuration file.
    rtt_ms
        Round trip between any two agents, made by the testbed's shaper; 0: that of loopback.
    module
        Python module that runs as the agent.
    cores
        The one core of each agent; empty: every agent may use all cores.

    Raises
    ------
    SbonError
        An agent ends at its start, or does not find the others within a minute.
    """
    remove_leftovers()
    with run_directory() as directory, ExitStack() as stack:
        config = directory / "agent.toml"
        config.write_text(settings, encoding="utf-8")
        options = ["--config", str(config)]
        if sealed:
            key = directory / "cluster.key"
            with open(os.open(key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
                file.write(generate_key(os.urandom(KEY_BYTES)) + "\n")
            options += ["--key-file", str(key)]
        addresses = [f"127.0.0.1:{port}" for port in free_ports(len(names))]
        processes = {}
        for number, (name, address) in enumerate(zip(names, addresses, strict=True)):
            with (directory / f"{name}.log").open("ab") as log:
                arguments = ["--name", name, "--bind", address, "--data-dir", str(directory / name), "--join", addresses[0], *options]
                if rtt_ms:
                    table = directory / f"{name}-paths.json"
                    others = [other for other in addresses if other != address]
                    table.write_text(json.dumps({"delays_ms": dict.fromkeys(others, rtt_ms / 2)}), encoding="utf-8")
                    arguments += ["--testbed-shaper", str(table)]
                with on_cores(cores[number : number + 1]):
                    processes[name] = process = spawn(arguments, log, module=module)
                stack.callback(process.wait)
                stack.callback(process.kill)
        found = {}
        for name, process in processes.items():
            client = _client(directory, name, process, len(names))
            stack.callback(client.close)
            found[name] = BenchAgent(name, directory / name, client, process)
        yield found


@contextmanager
def on_cores(cores: Sequence[int]) -> Iterator[None]:
    """Lets this thread, and processes that are started in the block, use these cores alone; all cores if none is given."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores or before)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _client(directory: Path, name: str, process: "Popen[bytes]", members: int) -> ControlClient:
    """Returns a connection to an agent, once the agent has found all others."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            last = (directory / f"{name}.log").read_text(encoding="utf-8", errors="replace").splitlines()[-1:]
            raise SbonError(f"agent {name} ended while starting: {last[0] if last else 'its log is empty'}")
        with suppress(UnreachableError):
            client = ControlClient(directory / name / SOCKET_NAME)
            if client.ask("status")["members"]["alive"] == members:
                return client
            client.close()
        time.sleep(_LOOK_S)
    raise SbonError(f"agent {name} has not found the others within {START_TIMEOUT_S:g} s")
