"""The world of local processes: real agents on loopback, with the topology's latencies around their transport.

Every agent is a process of its own with its own configuration file, data directory, log and control socket. The testbed's shaper
(`agent.shaper`) in each delays what it exchanges with each other agent, and is told of changes over the control socket. Processes are
tied to the testbed: they die with it, whatever ends it.
"""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import msgspec

from sbon.cli.client import ControlClient, UnreachableError
from sbon.config import Layer, overlay, toml_value
from sbon.errors import ConfigError, SbonError
from sbon.types import NodeId
from testbed.backend import Node, Tail, node_number
from testbed.network import NetworkConfig
from testbed.topology import Latencies, PairMask, Topology

START_TIMEOUT_S = 60.0
"""An agent that does not serve its control socket within this time has failed to start."""
END_TIMEOUT_S = 6.0
"""Agents that have not ended within this time after being asked are killed."""
_POLL_S = 0.05
_PORT_FIRST, _PORT_LAST = 20_000, 32_000
"""Below the ports that the kernel gives to outgoing connections."""


class LocalWorld:
    """Agents as processes. Satisfies `testbed.backend.Backend`.

    Parameters
    ----------
    topology : who is there
    directory : configuration, state and logs of each agent go into a folder of its name
    network : jitter and loss; the rest of it is the kernel's business here
    settings : layers of settings for each agent, by number
    """

    def __init__(self, topology: Topology, directory: Path, network: NetworkConfig, settings: Sequence[Layer]) -> None:
        self.topology = topology
        self.latencies = Latencies(topology)
        self.directory = directory
        self.addresses = [f"127.0.0.1:{port}" for port in free_ports(len(topology.nodes))]
        self._network = network
        self._settings = settings
        self._began = time.monotonic()
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._leaving: dict[int, subprocess.Popen[bytes]] = {}
        self._clients: dict[int, ControlClient] = {}
        self._tails: list[threading.Thread] = []
        self._group = [0] * len(topology.nodes)
        self._off: set[int] = set()
        self._loads: dict[int, float] = {}
        self._lost: dict[int, int] = {}
        self._counters = {"started": 0, "killed": 0, "died": 0}

    @property
    def now(self) -> float:
        """Seconds since the world began."""
        return time.monotonic() - self._began

    def process_id(self, node: Node) -> int | None:
        """Of the agent, while it runs."""
        process = self._processes.get(node_number(self.topology, node))
        return process.pid if process else None

    def agent_directory(self, number: int) -> Path:
        """Where an agent's files are; another folder after its data was lost."""
        lost = self._lost.get(number, 0)
        return self.directory / (self.topology.nodes[number] + (f"-{lost}" if lost else ""))

    # -- agents ---------------------------------------------------------------------------------------------------------

    def start(self, node: Node) -> None:
        """Start a node's agent; it joins while time passes. `wait_started` waits for its control socket."""
        number = node_number(self.topology, node)
        directory = self.agent_directory(number)
        directory.mkdir(parents=True, exist_ok=True)
        self._off.discard(number)
        fixed: dict[str, Any] = {
            "name": self.topology.nodes[number],
            "bind": self.addresses[number],
            "join": [address for address in self.addresses[:3] if address != self.addresses[number]],
            "data_dir": str(directory),
            "labels": dict(self.topology.labels[number]),
            "log": {"format": "json"},
        }
        config, shaper, log = directory / "agent.toml", directory / "shaper.json", directory / "agent.log"
        config.write_text(_toml(overlay(fixed, self._settings[number])), encoding="utf-8")
        shaper.write_bytes(msgspec.json.encode(self._shape(number)))
        command = [sys.executable, "-P", "-m", "testbed.child", str(os.getpid()), "--config", str(config), "--testbed-shaper", str(shaper)]
        with log.open("ab") as out:
            self._processes[number] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, process_group=0, env=_environment()
            )
        self._counters["started"] += 1

    def wait_started(self, node: Node, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until the agent answers.

        Raises
        ------
        SbonError
            It ended, or does not answer in time; the message gives the end of its log.
        """
        number = node_number(self.topology, node)
        deadline = time.monotonic() + timeout_s
        while True:
            process = self._processes.get(number)
            if process is None or process.poll() is not None:
                raise SbonError(f"the agent {self.topology.nodes[number]} ended at its start: {self._last_words(number)}")
            try:
                self._client(number)
                return
            except UnreachableError as problem:
                if time.monotonic() > deadline:
                    raise SbonError(
                        f"the agent {self.topology.nodes[number]} does not answer after {timeout_s:g} s: {problem}"
                    ) from problem
            time.sleep(_POLL_S)

    def alive(self, node: Node) -> bool:
        """Whether the node's process runs."""
        process = self._processes.get(node_number(self.topology, node))
        return process is not None and process.poll() is None

    def kill(self, node: Node, *, silent: bool = False) -> None:
        """SIGKILL. `silent`: first block all its traffic, so that no reset of the kernel reaches its peers."""
        number = node_number(self.topology, node)
        if silent:
            self._off.add(number)
            self._push_shapes()
        process = self._processes.pop(number, None)
        self._forget_client(number)
        if process is not None:
            process.kill()
            process.wait()
            self._counters["killed"] += 1

    def restart(self, node: Node, *, lose_data: bool = False) -> None:
        """Kill the process if it runs, and start it again on the same port."""
        number = node_number(self.topology, node)
        was_off = number in self._off
        self.kill(number)
        if lose_data:
            self._lost[number] = self._lost.get(number, 0) + 1
        self.start(number)
        if was_off:
            self._push_shapes()

    def leave(self, node: Node) -> None:
        """SIGTERM: the agent leaves gracefully and ends."""
        number = node_number(self.topology, node)
        process = self._processes.pop(number, None)
        self._forget_client(number)
        if process is not None:
            process.terminate()
            self._leaving[number] = process

    # -- the network ----------------------------------------------------------------------------------------------------

    def scale(self, pairs: PairMask, factor: float) -> None:
        """Make the paths of these pairs `factor` times as long as at first."""
        self.latencies.scale(pairs, factor)
        self._push_shapes()

    def partition(self, groups: Sequence[Iterable[int]]) -> None:
        """Split the network; nodes in no group form one more."""
        self._group = [0] * len(self._group)
        for group_number, members in enumerate(groups, start=1):
            for node in members:
                self._group[node] = group_number
        self._push_shapes()

    def heal(self) -> None:
        """End every partition."""
        self._group = [0] * len(self._group)
        self._push_shapes()

    def load(self, node: Node, fraction: float) -> None:
        """Let the agent believe that this share of its machine's CPU is taken: all agents here share the real ones."""
        self._loads[node_number(self.topology, node)] = fraction
        self._push_shapes()

    def _shape(self, number: int) -> dict[str, Any]:
        rtt_ms = self.latencies.rtt_ms()
        others = [other for other in range(len(self.addresses)) if other != number]
        return {
            "delays_ms": {self.addresses[other]: round(float(rtt_ms[number, other]) / 2, 4) for other in others},
            "jitter_ms": self._network.jitter_ms,
            "loss": self._network.loss,
            "load": self._loads.get(number),
            "blocked": [
                self.addresses[other]
                for other in others
                if self._group[other] != self._group[number] or other in self._off or number in self._off
            ],
        }

    def _push_shapes(self) -> None:
        for number in sorted(self._processes):
            (self.agent_directory(number) / "shaper.json").write_bytes(msgspec.json.encode(self._shape(number)))
            with suppress(UnreachableError):
                self._client(number).ask("shape", **self._shape(number))

    # -- time and questions ---------------------------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        """Let time pass, watching for processes that die by themselves."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.reap()
            time.sleep(min(left, 0.25))
        self.reap()

    def reap(self) -> list[NodeId]:
        """Names of agents that have ended without having been told to, since the last look."""
        ended = [number for number, process in self._processes.items() if process.poll() is not None]
        for number in ended:
            del self._processes[number]
            self._forget_client(number)
            self._counters["died"] += 1
        return [self.topology.nodes[number] for number in ended]

    def ask(self, node: Node, command: str, **arguments: Any) -> Any:
        """The result of a control request; SbonError where the agent refuses or is gone."""
        number = node_number(self.topology, node)
        if number not in self._clients and number in self._processes:
            self.wait_started(number)
        try:
            return self._client(number).ask(command, **arguments)
        except UnreachableError:
            self._forget_client(number)
            raise

    def tail(self, query: str, node: Node) -> Tail:
        """Collect the rows of a query from now on, on a thread of its own."""
        tail = Tail(query)
        number = node_number(self.topology, node)
        client = self._new_client(number)

        def follow() -> None:
            try:
                with client:
                    for result in client.stream("tail", query=query):
                        tail.take(result)
            except SbonError as problem:
                tail.error = str(problem)
            finally:
                tail.finished = True

        thread = threading.Thread(target=follow, name=f"tail {query}", daemon=True)
        thread.start()
        self._tails.append(thread)
        return tail

    def counters(self) -> dict[str, int]:
        """What the testbed has counted."""
        return dict(self._counters)

    def close(self) -> None:
        """End every process, gracefully where it is quick, and wait until all are gone."""
        processes = {**self._leaving, **self._processes}
        for number in list(self._clients):
            self._forget_client(number)
        for process in processes.values():
            with suppress(ProcessLookupError):
                process.terminate()
        deadline = time.monotonic() + END_TIMEOUT_S
        with ExitStack() as last_resort:
            for process in processes.values():
                last_resort.callback(process.wait)
                last_resort.callback(process.kill)
            for process in processes.values():
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, deadline - time.monotonic()))
        self._processes.clear()
        self._leaving.clear()

    def _client(self, number: int) -> ControlClient:
        if number not in self._clients:
            self._clients[number] = self._new_client(number)
        return self._clients[number]

    def _new_client(self, number: int) -> ControlClient:
        return ControlClient(self.agent_directory(number) / "control.sock")

    def _forget_client(self, number: int) -> None:
        client = self._clients.pop(number, None)
        if client is not None:
            client.close()

    def _last_words(self, number: int) -> str:
        with suppress(OSError):
            lines = (self.agent_directory(number) / "agent.log").read_text(encoding="utf-8", errors="replace").splitlines()
            if lines:
                return lines[-1][:500]
        return "its log is empty"


def free_ports(count: int) -> list[int]:
    """Ports of loopback that are free for UDP and TCP now.

    Raises
    ------
    ConfigError
        There are not so many.
    """
    found = []
    start = _PORT_FIRST + os.getpid() * 61 % (_PORT_LAST - _PORT_FIRST)
    for step in range(_PORT_LAST - _PORT_FIRST):
        port = _PORT_FIRST + (start - _PORT_FIRST + step) % (_PORT_LAST - _PORT_FIRST)
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as tcp, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
            try:
                tcp.bind(("127.0.0.1", port))
                udp.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise ConfigError(f"found {len(found)} free ports on loopback, needed {count}")


def _environment() -> dict[str, str]:
    # Sixteen agents share a few cores: a polars or BLAS thread pool each would only make them wait for each other.
    return {**os.environ, "POLARS_MAX_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def _toml(settings: Mapping[str, Any]) -> str:
    """Nested settings as a TOML file: each section as an inline table."""
    return "".join(f"{name} = {toml_value(value)}\n" for name, value in settings.items())
