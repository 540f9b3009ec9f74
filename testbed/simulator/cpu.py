"""The virtual CPU, which determines how long work on batches takes in the virtual world.

Operators really run, at once and in no virtual time; their results are delivered when the configured cost of the batch has passed on one of
the node's virtual cores. Work waits in a queue when all cores are busy.
"""

import heapq
import math

import msgspec

from sbon.ports import ProcessorUse
from sbon_testbed.simulator.time import NS, VirtualTime, ns


class CpuConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The virtual cost of work. TOML table [cpu] of a scenario."""

    cores: int = 2
    """Virtual cores of every node. Fewer: batches queue earlier."""
    batch_us: float = 100.0
    """Fixed cost of a batch of any size: the overhead of polars."""
    row_ns: float = 20.0
    """Cost of each row: 50 million rows a second."""
    load_window_s: float = 5.0
    """Time over which the reported CPU use is averaged (exponentially)."""
    timed: bool = False
    """Advances the agents' stopwatches by the cost of their work, so that they choose quanta, pauses of sources and operators that share a
    thread as on a real machine. Off: work seems to take no time."""

    def __post_init__(self) -> None:
        if self.cores < 1 or self.batch_us < 0 or self.row_ns < 0 or self.load_window_s <= 0:
            raise ValueError("[cpu] needs cores >= 1, batch_us >= 0, row_ns >= 0 and load_window_s > 0")


class Cpu:
    """The cores of one node."""

    def __init__(self, time: VirtualTime, config: CpuConfig) -> None:
        self._time = time
        self._config = config
        self._free_ns = [0] * config.cores
        self._background = 0.0
        self._use = 0.0
        self._seen_ns = time.now_ns
        self.busy_ns = 0
        """Core time spent on batches, including slowdown by other programs."""
        self.worked_ns = 0
        """Cost of all batches worked on, for stopwatches; 0 unless the world is timed."""

    @property
    def cores(self) -> int:
        """Returns the number of batches that can be processed at once."""
        return self._config.cores

    def set_background(self, fraction: float) -> None:
        """Sets the share of every core that other programs take: work then takes 1 / (1 - fraction) times as long."""
        self._background = min(max(fraction, 0.0), 0.99)

    def run(self, *rows: int) -> int:
        """Queues work on batches with these numbers of rows, one after another, and returns the instant (ns) at which it is done."""
        cost_ns = int((self._config.batch_us * 1000 * len(rows) + self._config.row_ns * sum(rows)) / (1 - self._background))
        start_ns = max(self._time.now_ns, heapq.heappop(self._free_ns))
        done_ns = start_ns + cost_ns
        heapq.heappush(self._free_ns, done_ns)
        self.busy_ns += cost_ns
        self._decay()
        self._use += cost_ns / (ns(self._config.load_window_s) * self._config.cores)
        return done_ns

    def cost_ns(self, rows: int) -> int:
        """Returns the cost of a batch of `rows` rows, on a core that nothing else uses."""
        return int(self._config.batch_us * 1000 + self._config.row_ns * rows)

    def lap_ns(self, rows: int) -> int:
        """Returns the cost of a batch that has just been worked on, and advances stopwatches by it."""
        cost_ns = self.cost_ns(rows)
        if self._config.timed:
            self.worked_ns += cost_ns
        return cost_ns

    def use(self) -> ProcessorUse:
        """Returns the recent use by other programs and by our own work, and the number of cores that other programs leave."""
        self._decay()
        use = min(1.0, self._background + (1 - self._background) * min(1.0, self._use))
        return ProcessorUse(use, use, self._config.cores * (1 - self._background))

    def _decay(self) -> None:
        elapsed_s = (self._time.now_ns - self._seen_ns) / NS
        self._use *= math.exp(-elapsed_s / self._config.load_window_s)
        self._seen_ns = self._time.now_ns
