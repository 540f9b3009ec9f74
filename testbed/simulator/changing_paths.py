"""Round trips of a virtual world that change while it runs."""

from functools import partial

from sbon.types import FloatArray
from sbon_testbed.simulator.time import ns
from sbon_testbed.simulator.world import SimulatedWorld
from sbon_testbed.topology import Latencies, PairMask


class ChangingPaths:
    """Changes the paths between the machines of a world, which at first are those of its topology.

    Parameters
    ----------
    latencies : RTTs of the topology; changed by this object
    """

    def __init__(self, latencies: Latencies, world: SimulatedWorld) -> None:
        self._latencies, self._world = latencies, world

    def scale(self, pairs: PairMask, factor: float) -> None:
        """Makes the paths of these pairs `factor` times as long as at first."""
        self._latencies.scale(pairs, factor)
        self._world.network.set_rtt(self._latencies.rtt_ms())

    def follow(self, rtt_ms: FloatArray, every_s: float) -> None:
        """Sets the RTTs to each matrix of (slices, nodes, nodes) in turn, the first now, and the next every `every_s`; the last one stays.

        Paths that events have scaled stay scaled.
        """
        begin_ns = self._world.time.now_ns
        for number, matrix in enumerate(rtt_ms):
            self._world.time.at(begin_ns + ns(number * every_s), partial(self._become, matrix))

    def _become(self, rtt_ms: FloatArray) -> None:
        self._latencies.replace(rtt_ms)
        self._world.network.set_rtt(self._latencies.rtt_ms())
