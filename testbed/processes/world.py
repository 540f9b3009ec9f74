"""Agents as processes of this machine: the common base of the worlds of loopback and of network namespaces.

Every agent has its own process, configuration file, data directory, log and control socket. The processes die with the testbed, however it
ends. A subclass determines how packets travel between them.
"""

import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from sbon.cli.client import ControlClient, UnreachableError
from sbon.config import Layer, overlay, toml_value
from sbon.control import SOCKET_NAME
from sbon.errors import SbonError
from sbon.types import NodeId
from sbon_testbed.backend import Node, Tail, node_number
from sbon_testbed.processes.spawn import spawn
from sbon_testbed.topology import Latencies, PairMask, Topology

START_TIMEOUT_S = 60.0
"""Seconds within which an agent must serve its control socket; otherwise its start has failed."""
END_TIMEOUT_S = 6.0
"""Seconds after which agents that were asked to end are killed."""
TELL_TIMEOUT_S = 1.0
"""Seconds for connecting to an agent's socket, which the kernel does even while the agent is busy."""
_POLL_S = 0.05


class ProcessWorld(ABC):
    """Agents as processes. A subclass defines how their packets travel, and then satisfies `sbon_testbed.backend.Backend`.

    Parameters
    ----------
    topology : the nodes
    directory : gets a folder for configuration, state and logs of each agent, named after it
    settings : layers of settings for each agent, by number
    addresses : HOST:PORT on which each agent listens, by number
    """

    def __init__(self, topology: Topology, directory: Path, settings: Sequence[Layer], addresses: Sequence[str]) -> None:
        self.topology = topology
        self.latencies = Latencies(topology)
        self.directory = directory
        self.addresses = addresses
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

    # -- what a subclass says -------------------------------------------------------------------------------------------

    @abstractmethod
    def _paths_changed(self) -> None:
        """Applies changed latencies, groups and machines that are off to the network."""

    @abstractmethod
    def _shaper_arguments(self, number: int, directory: Path) -> list[str]:
        """Returns arguments that give an agent about to start the testbed's table; none for an agent without a table."""

    def _world_settings(self) -> dict[str, Any]:
        """Returns settings that this world gives to every agent; the scenario's settings take precedence."""
        return {}

    def _namespace(self, number: int) -> int | None:
        """Returns the descriptor of the network namespace in which an agent runs; None for the testbed's own."""
        return None

    # -- agents ---------------------------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """Returns the seconds since the world began."""
        return time.monotonic() - self._began

    def process_id(self, node: Node) -> int | None:
        """Returns the agent's process id, while it runs."""
        process = self._processes.get(node_number(self.topology, node))
        return process.pid if process else None

    def agent_directory(self, number: int) -> Path:
        """Returns the folder of an agent's files, a new one after its data was lost."""
        lost = self._lost.get(number, 0)
        return self.directory / (self.topology.nodes[number] + (f"-{lost}" if lost else ""))

    def start(self, node: Node) -> None:
        """Starts a node's agent; it joins while time passes. `wait_started` waits for its control socket."""
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
            "telemetry": {"parquet": False},  # see sbon_testbed.telemetry.files
        } | self._world_settings()
        config = directory / "agent.toml"
        config.write_text(_toml(overlay(fixed, self._settings[number])), encoding="utf-8")
        arguments = ["--config", str(config), *self._shaper_arguments(number, directory)]
        with (directory / "agent.log").open("ab") as log:
            self._processes[number] = spawn(arguments, log, self._namespace(number))
        self._counters["started"] += 1

    def wait_started(self, node: Node, timeout_s: float = START_TIMEOUT_S) -> None:
        """Waits until the agent answers.

        Raises
        ------
        SbonError
            The agent ended, or does not answer in time; the message gives the end of its log.
        """
        number = node_number(self.topology, node)
        deadline = time.monotonic() + timeout_s
        while True:
            process = self._processes.get(number)
            if process is None or process.poll() is not None:
                raise SbonError(f"the agent {self.topology.nodes[number]} ended at its start: {_last_words(self.agent_directory(number))}")
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
        """Tells whether the node's process runs."""
        process = self._processes.get(node_number(self.topology, node))
        return process is not None and process.poll() is None

    def kill(self, node: Node, *, silent: bool = False) -> None:
        """Sends SIGKILL to an agent. With `silent`, blocks all its traffic first, so that its peers get no reset from the kernel."""
        number = node_number(self.topology, node)
        if silent:
            self._off.add(number)
            self._paths_changed()
        process = self._processes.pop(number, None)
        self._forget_client(number)
        if process is not None:
            process.kill()
            process.wait()
            self._counters["killed"] += 1

    def restart(self, node: Node, *, lose_data: bool = False) -> None:
        """Kills the process if it runs, and starts it again at the same address."""
        number = node_number(self.topology, node)
        was_off = number in self._off
        self.kill(number)
        if lose_data:
            self._lost[number] = self._lost.get(number, 0) + 1
        self.start(number)
        if was_off:
            self._paths_changed()

    def leave(self, node: Node) -> None:
        """Sends SIGTERM, so that the agent leaves gracefully and ends."""
        number = node_number(self.topology, node)
        process = self._processes.pop(number, None)
        self._forget_client(number)
        if process is not None:
            process.terminate()
            self._leaving[number] = process

    # -- the network ----------------------------------------------------------------------------------------------------

    def scale(self, pairs: PairMask, factor: float) -> None:
        """Makes the paths of these pairs `factor` times as long as at first."""
        self.latencies.scale(pairs, factor)
        self._paths_changed()

    def partition(self, groups: Sequence[Iterable[int]]) -> None:
        """Splits the network; nodes in no group form one more."""
        self._group = [0] * len(self._group)
        for group_number, members in enumerate(groups, start=1):
            for node in members:
                self._group[node] = group_number
        self._paths_changed()

    def heal(self) -> None:
        """Ends every partition."""
        self._group = [0] * len(self._group)
        self._paths_changed()

    # -- time and questions ---------------------------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        """Lets time pass, watching for processes that end by themselves."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.reap()
            time.sleep(min(left, 0.25))
        self.reap()

    def reap(self) -> list[NodeId]:
        """Returns the names of agents that have ended unasked since the last call."""
        ended = [number for number, process in self._processes.items() if process.poll() is not None]
        for number in ended:
            del self._processes[number]
            self._forget_client(number)
            self._counters["died"] += 1
        return [self.topology.nodes[number] for number in ended]

    def ask(self, node: Node, command: str, /, **arguments: Any) -> Any:
        """Returns the result of a control request; raises SbonError if the agent refuses or is gone."""
        number = node_number(self.topology, node)
        if number not in self._clients and number in self._processes:
            self.wait_started(number)
        try:
            return self._client(number).ask(command, **arguments)
        except UnreachableError:
            self._forget_client(number)
            raise

    def tail(self, query: str, node: Node) -> Tail:
        """Starts to collect the rows of a query, on a thread of its own."""
        tail = Tail(query)
        number = node_number(self.topology, node)
        client = ControlClient(self.agent_directory(number) / SOCKET_NAME)

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
        """Returns the testbed's counters."""
        return dict(self._counters)

    def close(self) -> None:
        """Ends every process, gracefully if that takes at most `END_TIMEOUT_S`, and waits until all have ended."""
        processes = {**self._leaving, **self._processes}
        for number in list(self._clients):
            self._forget_client(number)
        for number, process in processes.items():
            _end_at_once(self.agent_directory(number), process)
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
            self._clients[number] = ControlClient(self.agent_directory(number) / SOCKET_NAME)
        return self._clients[number]

    def _forget_client(self, number: int) -> None:
        client = self._clients.pop(number, None)
        if client is not None:
            client.close()


def _end_at_once(directory: Path, process: subprocess.Popen[bytes]) -> None:
    """Lets an agent say goodbye without moving its operators to other agents, which end, too."""
    try:
        with ControlClient(directory / SOCKET_NAME, timeout_s=TELL_TIMEOUT_S) as client:
            client.tell("leave", within_s=0)
    except SbonError:  # its control socket is not open yet, or the agent has ended
        with suppress(ProcessLookupError):
            process.terminate()


def _last_words(directory: Path) -> str:
    with suppress(OSError):
        lines = (directory / "agent.log").read_text(encoding="utf-8", errors="replace").splitlines()
        if lines:
            return lines[-1][:500]
    return "its log is empty"


def _toml(settings: Mapping[str, Any]) -> str:
    """Returns nested settings as a TOML file, each section as an inline table."""
    return "".join(f"{name} = {toml_value(value)}\n" for name, value in settings.items())
