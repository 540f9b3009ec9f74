"""Topologies: named nodes with labels, the RTTs between them, and the cables whose latency an event can change."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from sbon.errors import ConfigError, ShapeError
from sbon.types import FloatArray, NodeId
from sbon_testbed import transit_stub
from sbon_testbed.cities import CABLES, CITIES, City, fibre_rtt_ms

PairMask: TypeAlias = npt.NDArray[np.bool_]


class CitiesConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="cities", tag_field="kind"):
    """Nodes in real cities. TOML table [topology] with kind = "cities"."""

    cities: tuple[str, ...] = ()
    """Names of `sbon testbed topologies cities`, used in this order, repeatedly; empty: all cities in the table's order."""
    detour_min: float = 1.25
    """Least ratio of cable length to great circle. Real ratios lie between 1.2 and 2."""
    detour_max: float = 1.8
    """Greatest ratio of cable length to great circle."""
    edge_share: float = 0.25
    """Share of nodes behind a slow access link (label site = "edge"); the others are in data centres (site = "dc")."""

    def __post_init__(self) -> None:
        if not 1 <= self.detour_min <= self.detour_max:
            raise ValueError(f"detour_min = {self.detour_min}, detour_max = {self.detour_max}, expected 1 <= detour_min <= detour_max")
        if not 0 <= self.edge_share <= 1:
            raise ValueError(f"edge_share = {self.edge_share}, expected 0 to 1")


class TransitStubConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="transit-stub", tag_field="kind"):
    """A generated transit-stub network, by default with the sizes of SBON section 4.1; agents sit in stub domains."""

    transit_domains: int = 10
    """Number of backbones; the label `region` names them (t0, t1, ...)."""
    transit_nodes: int = 5
    """Number of routers in each backbone."""
    stub_domains: int = 150
    """Total number of stub domains; the label `stub` names them."""
    stub_nodes: int = 10
    """Mean number of routers in each stub domain."""
    diameter_ms: float = 878.0
    """The greatest RTT between two routers."""

    def __post_init__(self) -> None:
        if min(self.transit_domains, self.transit_nodes, self.stub_domains, self.stub_nodes) < 1 or self.diameter_ms <= 0:
            raise ValueError("sizes of a transit-stub topology must be 1 or more, diameter_ms above 0")


class MatrixConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="matrix", tag_field="kind"):
    """Any RTT matrix file: see `sbon_testbed.matrix`. Only the first slice of a matrix over time is used."""

    file: str
    """Path of the .npz or text file; relative to the scenario's folder."""


TopologyConfig: TypeAlias = CitiesConfig | TransitStubConfig | MatrixConfig


@dataclass(frozen=True)
class Topology:
    """A topology: nodes, labels and RTTs. Arrays are in the order of `nodes`."""

    kind: str
    nodes: tuple[NodeId, ...]
    labels: tuple[Mapping[str, str], ...]
    rtt_ms: FloatArray
    """RTTs without jitter, (nodes, nodes); 0 on the diagonal."""
    access_ms: FloatArray
    """The part of an RTT that each node's access link adds, (nodes,), included in `rtt_ms`; changes of a cable do not affect it."""
    cables: Mapping[str, PairMask] = field(default_factory=dict)
    """Pairs whose path takes the cable, (nodes, nodes)."""

    def index(self, node: NodeId) -> int:
        """Returns the number of a node.

        Raises
        ------
        ConfigError
            There is no such node.
        """
        try:
            return self.nodes.index(node)
        except ValueError:
            raise ConfigError(f'no node "{node}" in the topology; there are {_some(self.nodes)}') from None

    def select(self, selector: str) -> tuple[int, ...]:
        """Returns the numbers of the nodes that a selector chooses: a name, `label=value`, `#number`, or `*` for all.

        Raises
        ------
        ConfigError
            The selector chooses no node.
        """
        if selector == "*":
            return tuple(range(len(self.nodes)))
        if selector.startswith("#"):
            if selector[1:].isdigit() and int(selector[1:]) < len(self.nodes):
                return (int(selector[1:]),)
            raise ConfigError(f'no node "{selector}": numbers go from #0 to #{len(self.nodes) - 1}')
        label, equals, value = selector.partition("=")
        if not equals:
            return (self.index(selector),)
        found = tuple(index for index, labels in enumerate(self.labels) if labels.get(label) == value)
        if not found:
            known = sorted({labels[label] for labels in self.labels if label in labels})
            raise ConfigError(f'no node has the label {selector}; values of "{label}" are {_some(known)}')
        return found

    def first(self, count: int) -> "Topology":
        """Returns the same topology with only its first `count` nodes."""
        return Topology(
            self.kind,
            self.nodes[:count],
            self.labels[:count],
            self.rtt_ms[:count, :count],
            self.access_ms[:count],
            {name: mask[:count, :count] for name, mask in self.cables.items()},
        )


class Latencies:
    """The RTTs of a topology after events have changed them."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self._base = topology.rtt_ms
        self._factor = np.ones_like(topology.rtt_ms)

    def replace(self, rtt_ms: FloatArray) -> None:
        """Replaces the RTTs, (nodes, nodes), that later events scale.

        Raises
        ------
        ShapeError
            The matrix has another number of nodes.
        """
        if rtt_ms.shape != self._base.shape:
            raise ShapeError(f"RTT matrix of shape {rtt_ms.shape}, expected {self._base.shape}")
        self._base = rtt_ms

    def scale(self, pairs: PairMask, factor: float) -> None:
        """Makes the paths of these pairs (without their access links) `factor` times as long as at first, in both directions."""
        self._factor[pairs | pairs.T] = factor

    def rtt_ms(self) -> FloatArray:
        """Returns the present RTTs, (nodes, nodes)."""
        access = self.topology.access_ms[:, None] + self.topology.access_ms[None, :]
        path = np.maximum(self._base - access, 0.0)
        result: FloatArray = np.minimum(self._base, access) + path * self._factor
        np.fill_diagonal(result, 0.0)
        return result


def build(config: TopologyConfig, nodes: int, seed: int, folder: Path | None = None) -> Topology:
    """Draws a topology of `nodes` nodes; the same seed gives the same topology.

    Raises
    ------
    ConfigError
        The topology has fewer nodes than asked for, an unknown city, or an unreadable matrix.
    """
    if nodes < 1:
        raise ConfigError(f"nodes = {nodes}, expected 1 or more")
    rng = np.random.default_rng([seed, 0x70_70])
    if isinstance(config, CitiesConfig):
        return _cities(config, nodes, rng)
    if isinstance(config, TransitStubConfig):
        return _transit_stub(config, nodes, rng)
    return _matrix(config, nodes, rng, folder)


def pairs_between(topology: Topology, a: Sequence[int], b: Sequence[int]) -> PairMask:
    """Returns the pairs with one end in `a` and the other in `b`, (nodes, nodes)."""
    mask = np.zeros(topology.rtt_ms.shape, dtype=np.bool_)
    mask[np.ix_(list(a), list(b))] = True
    mask |= mask.T
    np.fill_diagonal(mask, False)
    return mask


def _cities(config: CitiesConfig, nodes: int, rng: np.random.Generator) -> Topology:
    by_name = {city.name: city for city in CITIES}
    unknown = [name for name in config.cities if name not in by_name]
    if unknown:
        raise ConfigError(f'topology.cities: no city "{unknown[0]}"; `sbon testbed topologies cities` lists them')
    table = [by_name[name] for name in config.cities] or list(CITIES)
    placed: list[City] = [table[index % len(table)] for index in range(nodes)]
    detour = rng.uniform(config.detour_min, config.detour_max, (len(table), len(table)))
    detour = np.triu(detour, 1) + np.triu(detour, 1).T
    where = np.arange(nodes) % len(table)
    fibre = fibre_rtt_ms(table, detour)[np.ix_(where, where)]
    edge = rng.random(nodes) < config.edge_share
    access = np.where(edge, rng.uniform(3.0, 12.0, nodes), rng.uniform(0.2, 1.0, nodes))
    names = tuple(f"{city.name}-{index // len(table) + 1}" if nodes > len(table) else city.name for index, city in enumerate(placed))
    labels = tuple(
        {"region": city.region, "city": city.name, "country": city.country, "site": "edge" if is_edge else "dc"}
        for city, is_edge in zip(placed, edge, strict=True)
    )
    rtt = fibre + (access[:, None] + access[None, :])
    np.fill_diagonal(rtt, 0.0)
    topology = Topology("cities", names, labels, rtt, access)
    cables = {}
    for name, (one, other) in CABLES.items():
        ends = [[index for index, city in enumerate(placed) if city.region in side] for side in (one, other)]
        cables[name] = pairs_between(topology, ends[0], ends[1])
    return Topology("cities", names, labels, rtt, access, cables)


def _transit_stub(config: TransitStubConfig, nodes: int, rng: np.random.Generator) -> Topology:
    network = transit_stub.generate(
        rng, config.transit_domains, config.transit_nodes, config.stub_domains, config.stub_nodes, config.diameter_ms / 2
    )
    stubs = [router for router, stub in enumerate(network.stub) if stub >= 0]
    if nodes > len(stubs):
        raise ConfigError(f"nodes = {nodes}, but this transit-stub topology has {len(stubs)} stub nodes")
    chosen = np.sort(rng.choice(stubs, nodes, replace=False))
    labels = tuple({"region": f"t{network.transit[router]}", "stub": f"s{network.stub[router]}"} for router in chosen)
    return Topology("transit-stub", _numbered(nodes), labels, network.rtt_ms[np.ix_(chosen, chosen)], np.zeros(nodes))


def _matrix(config: MatrixConfig, nodes: int, rng: np.random.Generator, folder: Path | None) -> Topology:
    from sbon_testbed.matrix import load_matrix

    matrix = np.asarray(load_matrix((folder or Path()) / config.file), dtype=np.float64)
    rtt = matrix if matrix.ndim == 2 else matrix[0]
    if nodes > len(rtt):
        raise ConfigError(f"nodes = {nodes}, but {config.file} has {len(rtt)}")
    chosen = np.sort(rng.choice(len(rtt), nodes, replace=False))
    rtt = rtt[np.ix_(chosen, chosen)]
    # A missing pair takes the other direction's value, else the median of all, since every pair needs some delay.
    rtt = np.where(np.isfinite(rtt), rtt, rtt.T)
    measured = rtt[np.isfinite(rtt) & ~np.eye(nodes, dtype=bool)]
    rtt = np.where(np.isfinite(rtt), rtt, float(np.median(measured)) if measured.size else 1.0)
    np.fill_diagonal(rtt, 0.0)
    return Topology("matrix", _numbered(nodes), tuple({} for _ in range(nodes)), rtt, np.zeros(nodes))


def _numbered(nodes: int) -> tuple[NodeId, ...]:
    width = len(str(nodes - 1))
    return tuple(f"n{index:0{width}d}" for index in range(nodes))


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
