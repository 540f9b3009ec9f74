"""Whole overlays in virtual time, for tests and for `sbon testbed run --backend sim`.

    world = World(4, seed=3)
    world.start_all()
    world.settle()
    query = world.submit("SELECT ...", at=0)
    tail = world.tail(query, at=0)
    world.run_until(lambda: len(tail.rows) >= 10)
    world.kill(2)

Everything runs in the caller's thread; nothing happens while no method of the world is running.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Protocol

from sbon.config import Layer
from sbon.control import ControlReply, ControlRequest
from sbon.errors import SbonError
from sbon.sealing import KeyRing
from sbon.types import Address, NodeId
from sbon_agent.config import AgentConfig
from sbon_agent.host import Host
from sbon_agent.kept_file import KeptFile
from sbon_testbed.backend import Node, Tail, node_number
from sbon_testbed.simulator.agent_settings import AgentSettings
from sbon_testbed.simulator.changing_paths import ChangingPaths
from sbon_testbed.simulator.cpu import CpuConfig
from sbon_testbed.simulator.logs import VirtualLog
from sbon_testbed.simulator.network import NetworkConfig
from sbon_testbed.simulator.world import SimulatedHost, SimulatedWorld
from sbon_testbed.topology import CitiesConfig, Latencies, PairMask, Topology, TopologyConfig, build

# Batches of virtual worlds are small, so a thread pool costs more than the work. polars reads the variable on import.
os.environ.setdefault("POLARS_MAX_THREADS", "1")

ANSWER_TIMEOUT_S = 60.0
"""Virtual seconds that an agent may take to answer a control request."""


class AgentLike(Protocol):
    """The interface of agents to a world; `sbon_agent.node.Agent` satisfies it."""

    def start(self) -> Address:
        """Listens and joins the overlay."""

    def stop(self) -> None:
        """Ends the agent at once."""

    def leave(self, done: Callable[[], None]) -> None:
        """Leaves the overlay, then calls `done`."""

    def control(self, request: ControlRequest, reply: Callable[[ControlReply], None]) -> Callable[[], None]:
        """Answers a control request."""


MakeAgent = Callable[[AgentConfig, Host, KeyRing | None], AgentLike]


class NumberedRequests:
    """Makes control requests, each with a number of its own."""

    def __init__(self) -> None:
        self._numbers = count(1)

    def make(self, command: str, arguments: Mapping[str, Any]) -> ControlRequest:
        """Returns a request; arguments that are None are left out."""
        return ControlRequest(next(self._numbers), command, {name: value for name, value in arguments.items() if value is not None})


class TimeoutInWorldError(AssertionError):
    """An awaited condition did not come true. The message gives seed and time for repeating the run."""


class World:
    """Agents on the virtual hosts of a topology. Satisfies `sbon_testbed.backend.Backend`.

    Parameters
    ----------
    nodes : number of nodes, or a finished topology
    seed : seed of everything random
    topology : kind of topology, if `nodes` is a number
    settings : settings of every agent, as in its TOML file; predictions are coarse unless these say otherwise
    settings_of : more settings for single agents, by number
    data_dir : folder for the agents' states, one folder each; None: agents keep nothing, and telemetry is off
    log_file : file for the agents' logs, stamped with virtual time; None: no logs
    sealed : whether datagrams and streams are encrypted with a cluster key, which costs real time
    make_agent : makes the agents; None: real ones
    """

    def __init__(
        self,
        nodes: int | Topology = 4,
        *,
        seed: int = 1,
        topology: TopologyConfig | None = None,
        network: NetworkConfig | None = None,
        cpu: CpuConfig | None = None,
        settings: Layer | None = None,
        settings_of: Callable[[int], Layer] | None = None,
        data_dir: Path | None = None,
        log_file: Path | None = None,
        sealed: bool = False,
        make_agent: MakeAgent | None = None,
    ) -> None:
        self.seed = seed
        self.topology = nodes if isinstance(nodes, Topology) else build(topology or CitiesConfig(), nodes, seed)
        self.world = SimulatedWorld(self.topology.rtt_ms, seed, network, cpu)
        self.latencies = Latencies(self.topology)
        self.paths = ChangingPaths(self.latencies, self.world)
        self._log = VirtualLog(self.world.time, log_file)
        self.agents: list[AgentLike | None] = [None] * len(self.topology.nodes)
        self._hosts: list[SimulatedHost | None] = [None] * len(self.topology.nodes)
        ips = [machine.ip for machine in self.world.machines]
        self.settings = AgentSettings(self.topology, ips, settings or {}, settings_of or (lambda number: {}), data_dir)
        self._ring = KeyRing([bytes(range(32))]) if sealed else None
        self._make_agent = make_agent or _real_agent
        self.requests = NumberedRequests()

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        """Returns the agents' names."""
        return self.topology.nodes

    @property
    def now(self) -> float:
        """Returns the virtual seconds since the world began."""
        return self.world.time.now_s

    # -- agents ---------------------------------------------------------------------------------------------------------

    def data_dir_of(self, number: int) -> Path:
        """Returns the folder of the agent's state, a new one after its data was lost."""
        return self.settings.data_dir_of(number)

    def start(self, node: Node, *, forget: bool = False) -> None:
        """Starts a node's agent now; with `forget`, without its kept statements, as `sbon agent --forget` does."""
        number = node_number(self.topology, node)
        assert self.agents[number] is None, f"the agent of {self.topology.nodes[number]} runs already"
        if self.settings.keeps_data:
            self.data_dir_of(number).mkdir(parents=True, exist_ok=True)
            if forget:
                KeptFile(self.data_dir_of(number)).forget()
        self.world.network.power(number, on=True)
        host = self.world.boot(number)
        agent = self._make_agent(self.settings.config_of(number), host, self._ring)
        self._hosts[number], self.agents[number] = host, agent
        agent.start()

    def start_all(self, spread_s: float = 1.0) -> None:
        """Starts every agent, one after another within `spread_s`."""
        pause_s = spread_s / max(1, len(self.agents) - 1)
        for number in range(len(self.agents)):
            if number:
                self.run(pause_s)
            if self.agents[number] is None:
                self.start(number)

    def alive(self, node: Node) -> bool:
        """Tells whether the node's agent runs."""
        return self.agents[node_number(self.topology, node)] is not None

    def alive_nodes(self) -> list[NodeId]:
        """Returns the names of the running agents."""
        return [name for number, name in enumerate(self.nodes) if self.agents[number] is not None]

    def kill(self, node: Node, *, silent: bool = False) -> None:
        """Ends the process at once; with `silent`, switches its machine off, so that nothing resets its connections."""
        number = node_number(self.topology, node)
        host = self._hosts[number]
        if host is not None:
            if silent:
                self.world.network.power(number, on=False)
            host.kill(silent)
        self._hosts[number] = self.agents[number] = None

    def restart(self, node: Node, *, lose_data: bool = False) -> None:
        """Kills the agent if it runs, and starts it again."""
        number = node_number(self.topology, node)
        self.kill(number)
        if lose_data:
            self.settings.lose_data(number)
        self.start(number)

    def leave(self, node: Node) -> None:
        """Lets the agent leave gracefully; it ends while time passes."""
        number = node_number(self.topology, node)
        agent, host = self.agents[number], self._hosts[number]

        def left() -> None:
            if self._hosts[number] is host:
                self.kill(number)

        if agent is not None and host is not None:
            # Not at once: the agent's own call must have returned before its host ends.
            agent.leave(lambda: host.call_soon(left))

    # -- the network and machines ---------------------------------------------------------------------------------------

    def scale(self, pairs: PairMask, factor: float) -> None:
        """Makes the paths of these pairs `factor` times as long as at first."""
        self.paths.scale(pairs, factor)

    def partition(self, groups: Sequence[Iterable[int]]) -> None:
        """Splits the network; nodes in no group form one more."""
        self.world.network.partition(groups)

    def heal(self) -> None:
        """Ends every partition and cut."""
        self.world.network.heal()

    def load(self, node: Node, fraction: float) -> None:
        """Sets the share of the machine's cores that other programs take."""
        self.world.machines[node_number(self.topology, node)].cpu.set_background(fraction)

    # -- time -----------------------------------------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        """Lets virtual time pass."""
        self.world.time.run_until(self.now + seconds)

    def run_until(self, condition: Callable[[], bool], timeout_s: float = 120.0, what: str = "") -> None:
        """Lets virtual time pass until the condition holds, which is checked after every callback.

        Raises
        ------
        TimeoutInWorldError
            The condition does not hold within `timeout_s` virtual seconds.
        """
        if not condition() and not self.world.time.run_while(lambda: not condition(), self.now + timeout_s):
            raise TimeoutInWorldError(
                f"{what or 'the condition'} did not hold within {timeout_s:g} s, now {self.now:.3f} s, seed {self.seed}"
            )

    def settle(self, timeout_s: float = 120.0, every_s: float = 0.25) -> None:
        """Lets time pass until every living agent sees exactly the living agents alive."""
        until = self.now + timeout_s
        while not self.members_agree():
            if self.now >= until:
                raise TimeoutInWorldError(
                    f"the agents do not agree on who is alive after {timeout_s:g} s, now {self.now:.3f} s, seed {self.seed}"
                )
            self.run(every_s)

    def members_agree(self) -> bool:
        """Tells whether every living agent sees exactly the living agents alive."""
        living = sorted(self.alive_nodes())
        return all(
            sorted(member["name"] for member in self.ask(name, "members") if member["status"] == "alive") == living for name in living
        )

    # -- questions ------------------------------------------------------------------------------------------------------

    def ask(self, node: Node, command: str, /, **arguments: Any) -> Any:
        """Returns the result of a control request, letting time pass until it arrives.

        Raises
        ------
        SbonError
            The agent refuses, is not running, or ends before it has answered.
        TimeoutInWorldError
            The agent does not answer.
        """
        number = node_number(self.topology, node)
        agent = self.agents[number]
        if agent is None:
            raise SbonError(f"the agent of {self.topology.nodes[number]} is not running")
        replies: list[ControlReply] = []
        agent.control(self.requests.make(command, arguments), replies.append)
        answered = self.world.time.run_while(
            lambda: not (replies and replies[-1].final) and self.agents[number] is agent, self.now + ANSWER_TIMEOUT_S
        )
        if not replies:
            if not answered:
                raise TimeoutInWorldError(
                    f"{self.topology.nodes[number]} did not answer {command} within {ANSWER_TIMEOUT_S:g} s, seed {self.seed}"
                )
            raise SbonError(f"the agent of {self.topology.nodes[number]} ended before it had answered {command}")
        if replies[-1].error is not None:
            raise SbonError(replies[-1].error)
        return replies[-1].result

    def submit(self, sql: str, at: Node = 0) -> str:
        """Submits SQL; returns the id of the last query that it started, or "" if it started none."""
        results: list[Mapping[str, Any]] = self.ask(at, "submit", sql=sql)
        return next((str(result["query"]) for result in reversed(results) if result.get("query")), "")

    def tail(self, query: str, node: Node = 0) -> Tail:
        """Starts to collect the rows of a query."""
        tail = Tail(query)
        agent = self.agents[node_number(self.topology, node)]

        def reply(answer: ControlReply) -> None:
            tail.take(answer.result)
            tail.error = answer.error or tail.error
            tail.finished = tail.finished or answer.final

        if agent is None:
            tail.finished, tail.error = True, f"the agent of {node} is not running"
        else:
            agent.control(self.requests.make("tail", {"query": query}), reply)
        return tail

    def rows(self, query: str, at: Node = 0, count: int = 1, timeout_s: float = 120.0) -> list[tuple[Any, ...]]:
        """Returns the rows of a query, once it has given `count` rows or has ended."""
        tail = self.tail(query, at)
        self.run_until(lambda: len(tail.rows) >= count or tail.finished, timeout_s, f"{count} rows of {query}")
        return tail.rows

    def counters(self) -> dict[str, int]:
        """Returns the virtual network's counters."""
        return dict(self.world.network.counters)

    def close(self) -> None:
        """Ends every agent; their telemetry so far is in their spools."""
        for number, agent in enumerate(self.agents):
            if agent is not None:
                agent.stop()
            self.kill(number)
        self._log.close()


def _real_agent(config: AgentConfig, host: Host, ring: KeyRing | None) -> AgentLike:
    from sbon_agent.node import Agent

    return Agent(config, host, ring)
