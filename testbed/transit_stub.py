"""A transit-stub network: backbone domains joined to each other, and stub domains hanging on them.

After Zegura, Calvert and Bhattacharjee, "How to Model an Internetwork" (INFOCOM 1996), with the sizes of SBON (ICDE 2006), section
4.1. Routers lie in a plane, and the latency of a wire is its length. Routes do not follow latency: they take the least sum of policy
weights, which keeps traffic of a domain inside it, never takes a stub domain as a way through, and prefers few transit domains. As
on the Internet, a route may so be longer than a detour over a third node.
"""

from typing import NamedTuple

import numpy as np

from sbon.types import FloatArray

_WEIGHT_INSIDE = 1.0
"""A wire within a domain: routes there count hops."""
_WEIGHT_ACCESS = 50.0
"""A wire from a stub domain to its transit router: above any path inside a stub, so that nothing leaves and comes back."""
_WEIGHT_BETWEEN = 20.0
"""A wire between transit domains: crossing a domain is cheaper than visiting another."""


class TransitStub(NamedTuple):
    """A generated network; stub routers come behind the transit routers."""

    rtt_ms: FloatArray
    """(routers, routers)"""
    transit: list[int]
    """Of each router: the transit domain that it is in or hangs on."""
    stub: list[int]
    """Of each router: its stub domain, -1 for transit routers."""


class _Wires:
    """The graph under construction."""

    def __init__(self) -> None:
        self.positions: list[tuple[float, float]] = []
        self.ends: list[tuple[int, int, float]] = []

    def add_domain(self, count: int, centre: tuple[float, float], radius: float, edge_share: float, rng: np.random.Generator) -> list[int]:
        """A connected random graph of `count` routers around a point; the routers' numbers."""
        first = len(self.positions)
        for _ in range(count):
            angle, distance = 2 * np.pi * rng.random(), radius * np.sqrt(rng.random())
            self.positions.append((centre[0] + distance * np.cos(angle), centre[1] + distance * np.sin(angle)))
        routers = list(range(first, first + count))
        for index in range(1, count):
            self.join(routers[index], routers[int(rng.integers(index))], _WEIGHT_INSIDE)
        for a in range(count):
            for b in range(a + 1, count):
                if rng.random() < edge_share:
                    self.join(routers[a], routers[b], _WEIGHT_INSIDE)
        return routers

    def join(self, a: int, b: int, weight: float) -> None:
        """Lay a wire."""
        self.ends.append((a, b, weight))


def generate(
    rng: np.random.Generator,
    transit_domains: int = 10,
    transit_nodes: int = 5,
    stub_domains: int = 150,
    stub_nodes: int = 10,
    diameter_ms: float = 878.0,
) -> TransitStub:
    """Draw a network; `stub_nodes` is the mean size of a stub domain, `diameter_ms` the greatest RTT, to which all are scaled."""
    wires = _Wires()
    transit: list[int] = []
    backbones: list[list[int]] = []
    for domain in range(transit_domains):
        centre = (1000 * rng.random(), 1000 * rng.random())
        backbones.append(wires.add_domain(transit_nodes, centre, 120.0, 0.6, rng))
        transit += [domain] * transit_nodes
    _join_backbones(wires, backbones, rng)
    stub = [-1] * len(transit)
    for number in range(stub_domains):
        domain = number % transit_domains
        router = backbones[domain][int(rng.integers(transit_nodes))]
        count = max(1, int(rng.integers(stub_nodes // 2, stub_nodes + stub_nodes - stub_nodes // 2 + 1)))
        x, y = wires.positions[router]
        offset = rng.normal(0.0, 35.0, 2)
        members = wires.add_domain(count, (x + float(offset[0]), y + float(offset[1])), 12.0, 0.4, rng)
        wires.join(members[int(rng.integers(count))], router, _WEIGHT_ACCESS)
        transit += [domain] * count
        stub += [number] * count
    rtt_ms = _routed_lengths(wires)
    return TransitStub(rtt_ms * (diameter_ms / rtt_ms.max()), transit, stub)


def _join_backbones(wires: _Wires, backbones: list[list[int]], rng: np.random.Generator) -> None:
    """Wire each transit domain to an earlier one, then a few pairs more."""

    def wire(a: int, b: int) -> None:
        wires.join(backbones[a][int(rng.integers(len(backbones[a])))], backbones[b][int(rng.integers(len(backbones[b])))], _WEIGHT_BETWEEN)

    for domain in range(1, len(backbones)):
        wire(domain, int(rng.integers(domain)))
    for a in range(len(backbones)):
        for b in range(a + 1, len(backbones)):
            if rng.random() < 0.3:
                wire(a, b)


def _routed_lengths(wires: _Wires) -> FloatArray:
    """Latency along the routes of least weight, (routers, routers)."""
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import dijkstra

    count = len(wires.positions)
    position = np.array(wires.positions)
    pairs = {(min(a, b), max(a, b)): weight for a, b, weight in wires.ends if a != b}
    ends = np.array(list(pairs))
    length = np.full((count, count), np.inf)
    length[ends[:, 0], ends[:, 1]] = length[ends[:, 1], ends[:, 0]] = np.linalg.norm(position[ends[:, 0]] - position[ends[:, 1]], axis=1)
    graph = coo_matrix((np.array(list(pairs.values())), (ends[:, 0], ends[:, 1])), shape=(count, count)).tocsr()
    weight, before = dijkstra(graph, directed=False, return_predecessors=True)
    # Every route is the route to its last hop but one, and a wire: fill in order of weight, all sources at once.
    order = np.argsort(weight, axis=1, kind="stable")
    result = np.zeros((count, count))
    sources = np.arange(count)
    for step in range(1, count):
        target = order[:, step]
        hop = before[sources, target]
        result[sources, target] = result[sources, hop] + length[hop, target]
    # Ties of weight may have been broken differently in the two directions; a wire has one latency.
    symmetric: FloatArray = (result + result.T) / 2
    return symmetric
