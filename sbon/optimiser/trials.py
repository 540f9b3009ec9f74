"""Sequential test of a measured saving, which decides before anything moves. No I/O.

Noise must not move operators back and forth. The first review that finds a saving opens an episode: the following reviews measure the same
candidates again, and the move is made when the mean saving exceeds its threshold by some standard errors of the mean. The standard
deviation is estimated from successive differences, of this operator and of all operators of this node.
"""

import enum
import math
from collections.abc import Iterable, Sequence
from typing import TypeVar

from sbon.optimiser.config import OptimiserConfig
from sbon.optimiser.noise import Noise
from sbon.optimiser.views import Considered
from sbon.types import NodeId

REMEMBERED_MAX = 10_000
"""Most operators remembered by each optimiser; beyond it the longest unseen are forgotten."""
NOISE_WEIGHT_EXPECTED = 8.0
"""Weight of the expected noise in the node's estimate, in differences."""
NOISE_WEIGHT_NODE = 4.0
"""Weight of the node's noise in the estimate of an operator without measurements, in differences."""
OUTLIER_DEVIATIONS = 2.0
"""Most standard deviations by which a saving may exceed the median of the last ones; larger ones are cut, since a single late reply is
no saving."""
REQUIRED_FRACTION_MAX = 0.9
"""Largest required saving: however often an operator has moved, it may still leave a node that costs ten times as much."""

AnyConsidered = TypeVar("AnyConsidered", bound=Considered)


class Certainty(enum.Enum):
    """Result of the test for a saving."""

    SURE = enum.auto()
    """The saving is certain."""
    UNSURE = enum.auto()
    """Ask again."""
    NOISE = enum.auto()
    """After the maximal number of reviews, the saving cannot be told from noise."""


def noise_of_a_node(config: OptimiserConfig) -> Noise:
    """Returns the expected noise of all operators of a node before any measurement."""
    return Noise(config.noise_fraction**2, NOISE_WEIGHT_EXPECTED)


class Trials:
    """The savings of one operator's candidates, as fractions of the cost here, over the reviews of an episode.

    Parameters
    ----------
    config : required certainty
    common : the noise of all operators of this node, which is updated, too
    """

    def __init__(self, config: OptimiserConfig, common: Noise) -> None:
        self._config = config
        self._common = common
        self._noise = Noise(common.variance, NOISE_WEIGHT_NODE)
        self._last: dict[NodeId, float] = {}
        self._episode: dict[NodeId, list[float]] = {}
        self._seen: dict[NodeId, list[float]] = {}
        """Savings of the episode for each candidate seen in this review, the new one last."""

    @property
    def watched(self) -> tuple[NodeId, ...]:
        """Returns the candidates of the present episode; () outside of one."""
        return tuple(self._episode)

    def begin(self, answered: Iterable[NodeId]) -> list[NodeId]:
        """Begins a review; returns the candidates that count. In an episode these are its own only."""
        self._seen = {}
        return sorted(node for node in answered if not self._episode or node in self._episode)

    def see(self, node: NodeId, saving: float) -> tuple[float, int]:
        """Records a saving in this review; returns the mean of the episode and its number of reviews."""
        samples = self._seen[node] = [*self._episode.get(node, ()), saving]
        return self.mean(samples), len(samples)

    def mean(self, samples: Sequence[float]) -> float:
        """Returns the mean saving of an episode of at least one sample. Single high ones are cut to near the median of the last
        `confirmations`."""
        recent = sorted(samples[-self._config.confirmations :])
        limit = recent[(len(recent) - 1) // 2] + OUTLIER_DEVIATIONS * math.sqrt(self._noise.variance)
        return sum(min(saving, limit) for saving in samples) / len(samples)

    def learn(self) -> None:
        """Updates the noise from this review, after all savings have been recorded."""
        savings = {node: samples[-1] for node, samples in self._seen.items()}
        for node, saving in savings.items():
            if node in self._last:
                self._noise.learn(self._last[node], saving)
                self._common.learn(self._last[node], saving)
        self._last = savings

    def judge(self, hopeful: Sequence[AnyConsidered]) -> tuple[Certainty, AnyConsidered]:
        """Judges candidates that seem to save enough, best first and at least one; returns the certainty and the candidate meant.

        While the result is unsure, these become the candidates of the episode.
        """
        surely = next((c for c in hopeful if self.is_sure(c.saving_fraction, c.required_fraction, c.seen)), None)
        if surely is not None:
            self.end()
            return Certainty.SURE, surely
        if hopeful[0].seen >= self._config.samples_max:
            self.end()
            return Certainty.NOISE, hopeful[0]
        self._episode = {candidate.node: self._seen[candidate.node] for candidate in hopeful}
        return Certainty.UNSURE, hopeful[0]

    def is_sure(self, saving_fraction: float, required_fraction: float, seen: int) -> bool:
        """Tells whether a mean saving over so many reviews exceeds the required one by more than noise explains."""
        if seen < self._config.confirmations:
            return False
        error = math.sqrt(self._noise.variance / seen)
        return saving_fraction - self._config.certainty * error > required_fraction

    def end(self) -> None:
        """Ends the episode."""
        self._episode = {}


def raised(config: OptimiserConfig, changes: int, since_s: float | None) -> float:
    """Returns the factor by which earlier changes raise the required saving, the last one `since_s` ago; it falls with time.

    So operators are not swapped for ever between nodes of equal cost.
    """
    if since_s is None:
        return 1.0
    counted = min(changes, config.damping_migrations_max)
    return float(1.0 + config.damping * counted * 0.5 ** (since_s / config.damping_half_life_s))
