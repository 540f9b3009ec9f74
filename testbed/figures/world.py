"""Simulates many virtual hours on a measured network: real agents, with RTTs and loads that change as measured.

`SETTINGS` slows periodic work down so that an hour of 130 agents takes seconds; all other settings are the defaults.
"""

import csv
import gzip
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from sbon.config import Layer
from sbon.cost.network_usage import MS_PER_S
from sbon.errors import ConfigError
from sbon.types import FloatArray, LinkId, NodeId, OperatorId, QueryId
from sbon_testbed.matrix import load_matrix
from sbon_testbed.placement.network import completed
from sbon_testbed.simulator.harness import World
from sbon_testbed.simulator.network import NetworkConfig
from sbon_testbed.topology import Topology

SETTLE_S = 3600.0
"""Virtual seconds before the first query: about 120 probes of each agent, so that coordinates have settled."""
STEADY_S = 180.0
"""Virtual seconds from the last query to the first observation: senders need two samples for a rate. No operator moves that early."""
LOAD_INTERVAL_S = 300.0
"""Seconds between two values of a load trace."""
JITTER_MS = 0.2
"""Mean of the exponential jitter on each packet, one way, in addition to the matrix."""
CPU_SERIES = ("ec2_cpu_utilization", "rds_cpu_utilization")

SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "membership": {
        "interval_s": 30.0,
        "timeout_s_max": 5.0,
        "suspicion_s": 120.0,
        "gossip_interval_s": 5.0,
        "push_pull_interval_s": 1800.0,
        "reconnect_interval_s": 300.0,
        "vitals_per_datagram": 4,
        "ping_timeout_s": 3.0,
    },
    "coordinate": {"filter_span_s": 3600.0},
    "engine": {"sample_interval_s": 60.0, "batch_interval_s": 60.0, "report_interval_s": 120.0, "wanted_interval_s": 600.0},
    "peers": {"keepalive_s": 300.0, "silence_timeout_s": 900.0, "idle_s": 60.0, "handshake_timeout_s": 30.0},
    "optimiser": {"interval_s": 60.0, "lookup_interval_s": 300.0, "answer_timeout_s": 10.0, "cooldown_s": 120.0},
    "migration": {"timeout_s": 60.0, "lease_s": 90.0, "prepared_s": 20.0},
}
"""Settings that slow down probes, gossip, samples and reviews, and lengthen timeouts, as the measured networks have RTTs of seconds."""

Say: TypeAlias = Callable[[str, int, int], None]
"""Reports progress; called with a description of the work, the amount done, and the total."""


@dataclass(frozen=True)
class MeasuredNetwork:
    """RTTs over time; `rtt_ms` is (slices, nodes, nodes), complete and symmetric."""

    name: str
    nodes: tuple[NodeId, ...]
    rtt_ms: FloatArray

    @property
    def topology(self) -> Topology:
        """Returns the first slice as a topology for agents."""
        count = len(self.nodes)
        return Topology("matrix", self.nodes, tuple({} for _ in self.nodes), self.rtt_ms[0], np.zeros(count))

    def one_way_ms(self, share: float) -> FloatArray:
        """Returns the latencies after this share of the whole time, (nodes, nodes)."""
        latest = len(self.rtt_ms) - 1
        result: FloatArray = self.rtt_ms[min(latest, int(share * len(self.rtt_ms) + 1e-9))] / 2
        return result


def read_measured(name: str, path: Path, nodes: int, seed: int, slices: int | None = None) -> MeasuredNetwork:
    """Reads a network from an RTT file: `nodes` of its nodes, drawn from the seed, and its first `slices` slices.

    Missing values are filled and directions averaged slice by slice (`sbon_testbed.placement.network.completed`).

    Raises
    ------
    ConfigError
        The file cannot be read, or has fewer nodes.
    """
    loaded = load_matrix(path)
    rtt = loaded if loaded.ndim == 3 else loaded[None]
    if nodes > rtt.shape[1]:
        raise ConfigError(f"{path}: {rtt.shape[1]} nodes, expected at least {nodes}")
    chosen = np.sort(np.random.default_rng([seed, 0xF16]).choice(rtt.shape[1], nodes, replace=False))
    kept = rtt[: slices or len(rtt), chosen][:, :, chosen]
    width = len(str(rtt.shape[1] - 1))
    return MeasuredNetwork(name, tuple(f"n{index:0{width}d}" for index in chosen), np.stack([completed(one) for one in kept]))


def read_loads(path: Path) -> list[FloatArray]:
    """Reads the CPU use of servers over time, 0 to 1, one array per server with a value every five minutes.

    Raises
    ------
    ConfigError
        The file cannot be read, or has no CPU series.
    """
    series: dict[str, list[float]] = {}
    try:
        with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                if row["series"].startswith(CPU_SERIES):
                    series.setdefault(row["series"], []).append(min(max(float(row["value"]) / 100, 0.0), 1.0))
    except (OSError, EOFError, KeyError, ValueError) as problem:
        raise ConfigError(f"{path}: not a table of series, time and value in per cent ({problem})") from problem
    if not series:
        raise ConfigError(f"{path}: no series named {' or '.join(CPU_SERIES)}..., expected CPU use in per cent")
    return [np.array(values) for _, values in sorted(series.items())]


class Carried(NamedTuple):
    """One link between two nodes, as measured by its sender."""

    link: LinkId
    sender: OperatorId
    """Sending operator; it may differ from the operator in the link's name, as a multicast takes over links."""
    source: NodeId
    target: NodeId
    bytes_per_s: float
    queries: tuple[QueryId, ...]
    """Queries that the sender serves."""


class Look(NamedTuple):
    """The operators and links at one moment."""

    at_s: float
    """Seconds since the measured time began."""
    where: dict[OperatorId, NodeId]
    kinds: dict[OperatorId, str]
    unpinned: tuple[OperatorId, ...]
    links: tuple[Carried, ...]


class LongWorld:
    """An overlay on a measured network.

    Parameters
    ----------
    settings : settings that override `SETTINGS`
    loads : load traces; each node follows one of them from a random start; None: idle machines
    """

    def __init__(
        self, network: MeasuredNetwork, seed: int, settings: Layer | None = None, loads: Sequence[FloatArray] | None = None
    ) -> None:
        self.network = network
        self.world = World(
            network.topology, seed=seed, network=NetworkConfig(jitter_ms=JITTER_MS), settings=merged(SETTINGS, settings or {})
        )
        self._loads = list(loads or ())
        rng = np.random.default_rng([seed, 0x10AD])
        self._number = {node: index for index, node in enumerate(network.nodes)}
        self._trace = [int(rng.integers(len(self._loads))) if self._loads else 0 for _ in network.nodes]
        self._offset = [int(rng.integers(len(self._loads[which]))) if self._loads else 0 for which in self._trace]
        self.began_s = 0.0

    def settle(self, settle_s: float = SETTLE_S) -> None:
        """Starts all agents and lets their coordinates settle."""
        self._drive_load()
        self.world.start_all(60.0)
        self.run(max(0.0, settle_s - 60.0))

    def begin(self, span_s: float) -> None:
        """Begins the measured time of `span_s` seconds, which the network's slices divide into equal parts."""
        self.began_s = self.world.now
        self.world.paths.follow(self.network.rtt_ms, span_s / len(self.network.rtt_ms))

    def run(self, seconds: float) -> None:
        """Lets virtual time pass."""
        self.world.run(seconds)

    def load_of(self, node: NodeId) -> float:
        """Returns the machine's present background load, 0 to 1."""
        number = self._number[node]
        if not self._loads:
            return 0.0
        trace = self._loads[self._trace[number]]
        return float(trace[(self._offset[number] + int(self.world.now // LOAD_INTERVAL_S)) % len(trace)])

    def look(self) -> Look:
        """Asks every agent which operators it runs."""
        where: dict[OperatorId, NodeId] = {}
        kinds: dict[OperatorId, str] = {}
        unpinned: list[OperatorId] = []
        links: list[Carried] = []
        for node in self.network.nodes:
            for row in self.world.ask(node, "operators"):
                where[row["id"]], kinds[row["id"]] = node, row["kind"]
                if not row["pinned"]:
                    unpinned.append(row["id"])
                served = tuple(row["queries"])
                links += [Carried(link["id"], row["id"], node, link["node"], float(link["bytes_per_s"]), served) for link in row["links"]]
        return Look(self.world.now - self.began_s, where, kinds, tuple(sorted(unpinned)), tuple(sorted(links)))

    def close(self) -> None:
        """Ends all agents."""
        self.world.close()

    def _drive_load(self) -> None:
        if not self._loads:
            return
        for number, node in enumerate(self.network.nodes):
            self.world.load(number, self.load_of(node))
        self.world.world.time.after(round(LOAD_INTERVAL_S * 1e9), self._drive_load)


def merged(*layers: Mapping[str, Any]) -> Layer:
    """Merges settings, table by table; later ones win."""
    result: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            result[key] = {**result.get(key, {}), **value} if isinstance(value, Mapping) else value
    return result


def usage_bytes(look: Look, network: MeasuredNetwork, latency_ms: FloatArray, queries: Container[QueryId] | None = None) -> float:
    """Returns the bytes in transit (SBON, section 2.3, equation 1), by measured rates and true latencies, of all links or of those that
    serve `queries`."""
    number = {node: index for index, node in enumerate(network.nodes)}
    return sum(
        carried.bytes_per_s * float(latency_ms[number[carried.source], number[carried.target]]) / MS_PER_S
        for carried in look.links
        if queries is None or any(query in queries for query in carried.queries)
    )


def wan_bytes_per_s(look: Look, queries: Container[QueryId] | None = None) -> float:
    """Returns the bytes a second that leave nodes, on all links or on those that serve `queries`."""
    return sum(
        carried.bytes_per_s
        for carried in look.links
        if carried.source != carried.target and (queries is None or any(query in queries for query in carried.queries))
    )
