"""Networks for placing queries: RTTs from a matrix or generated, routes if they are known, and coordinates found on the RTTs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from sbon.cost.space import CostSpace
from sbon.cost_space.config import CoordinateConfig
from sbon.cost_space.localiser import Localiser
from sbon.errors import ConfigError
from sbon.optimiser.knowledge import RttKnowledge
from sbon.placement.baselines import Routes
from sbon.placement.remembered import Remembered
from sbon.rearranging.remembering import told_by
from sbon.types import FloatArray, NodeId
from sbon.wire.candidates import RttsAsk
from sbon_testbed.coordinates.space import ROUND_S, Space, draw_peers, play_round
from sbon_testbed.matrix import load_matrix, slice_of
from sbon_testbed.transit_stub import generate

RTT_MS_MIN = 0.05
ROUNDS = 500
"""RTTs that each node measures for its coordinate. By then coordinates have settled: hundreds more change the median error by less than
the difference between seeds."""

Report: TypeAlias = Callable[[str, int, int], None]
"""Reports progress; called with the current work, the amount done, and the total."""


def unreported(what: str, done: int, total: int) -> None:
    """A `Report` that does nothing."""


@dataclass(frozen=True)
class Network:
    """The network on which queries are placed."""

    names: tuple[NodeId, ...]
    rtt_ms: FloatArray
    """(nodes, nodes), symmetric and complete."""
    routes: Routes | None = None
    """The network's own routes, for IP MULTICAST; a matrix of RTTs has none."""


def from_matrix(rtt_ms: FloatArray, taken: str = "first") -> Network:
    """Returns a network with RTTs only.

    Parameters
    ----------
    rtt_ms : (nodes, nodes) or (times, nodes, nodes)
        NaN where not measured.
    taken : the slice to use if there are several times (see `sbon_testbed.matrix.slice_of`)
    """
    rtt = completed(slice_of(np.asarray(rtt_ms, dtype=np.float64), taken))
    return Network(_names(len(rtt)), rtt)


def read_network(path: Path, taken: str = "first") -> Network:
    """Reads a network with RTTs only from a file."""
    return from_matrix(load_matrix(path), taken)


def transit_stub(seed: int, stub_domains: int = 150) -> Network:
    """Generates the network of SBON, section 4.1, with its policy routes; fewer stub domains make a smaller network."""
    drawn = generate(np.random.default_rng(seed), stub_domains=stub_domains)
    names = _names(len(drawn.rtt_ms))
    row = {name: index for index, name in enumerate(names)}
    return Network(names, drawn.rtt_ms, lambda a, b: [names[router] for router in drawn.route(row[a], row[b])])


def completed(matrix: FloatArray) -> FloatArray:
    """Returns the matrix with both directions averaged, and missing RTTs replaced by the shortest path through a third node.

    Raises
    ------
    ConfigError
        A pair of nodes has no RTT, not even through a third node.
    """
    both = np.where(np.isnan(matrix), matrix.T, (matrix + np.where(np.isnan(matrix.T), matrix, matrix.T)) / 2)
    np.fill_diagonal(both, 0.0)
    known = np.where(np.isnan(both), np.inf, both)
    for a, b in np.argwhere(np.isnan(both)):
        both[a, b] = (known[a] + known[:, b]).min()
    if not np.isfinite(both).all():
        a, b = np.argwhere(~np.isfinite(both))[0]
        raise ConfigError(f"no RTT between nodes {a} and {b}, not even through a third node; leave one of them out")
    result: FloatArray = np.maximum(both, RTT_MS_MIN)
    np.fill_diagonal(result, 0.0)
    return result


@dataclass(frozen=True)
class Settled:
    """Coordinates and round-trip times that the nodes of a network have found."""

    space: CostSpace
    localisers: Mapping[NodeId, Localiser]
    now: float
    """Time of the last measurement."""

    def remembered(self, about: Mapping[NodeId, Sequence[NodeId]], nearest: int) -> Remembered:
        """Returns the RTTs that agents would report, to their `nearest` peers and to the given nodes, as the asker keeps them."""
        knowledge = RttKnowledge()
        for node, peers in about.items():
            told = told_by(self.localisers[node], RttsAsk(nearest=nearest, about=tuple(peers)), self.now)
            knowledge.heard(node, told.remembered, self.now)
        return knowledge.remembered(about, self.now)


def settled(
    network: Network,
    rounds: int,
    rng: np.random.Generator,
    report: Report = unreported,
    config: CoordinateConfig | None = None,
    jitter: float = 0.0,
) -> Settled:
    """Returns coordinates and remembered RTTs after each node has measured one random other node in each round.

    Every node runs the library's own `Localiser` and knows the latest coordinates of the peers that it remembers, as if gossip had arrived.
    Each RTT exceeds the network's by the noise of `jitter`, a share.
    """
    space = Space(len(network.names), config or CoordinateConfig(), rng, gossip=None, jitter=jitter, names=network.names)
    peers = draw_peers(network.rtt_ms[None], None, rng)
    for number in range(1, rounds + 1):
        play_round(space, network.rtt_ms, peers, rng, number)
        report("coordinates, rounds", number, rounds)
    localisers = dict(zip(network.names, space.localisers, strict=True))
    coordinates = CostSpace({name: localiser.coordinate for name, localiser in localisers.items()})
    return Settled(coordinates, localisers, rounds * ROUND_S)


def coordinate_median_error(space: CostSpace, network: Network) -> float:
    """Returns the median relative error of predicted RTTs over all pairs."""
    above = np.triu_indices(len(network.names), 1)
    true = network.rtt_ms[above]
    return float(np.median(np.abs(space.rtt_matrix_ms(network.names, network.names)[above] - true) / true))


def _names(count: int) -> tuple[NodeId, ...]:
    return tuple(f"n{index:05d}" for index in range(count))
