"""Whether a saving that was measured is there: the sequential test before anything moves. Without I/O.

Noise must not move operators to and fro. The first review that finds a saving opens an episode: the following reviews measure the same
candidates again, and something moves when the mean saving exceeds its threshold by some standard errors of the mean. The deviation is
learnt from successive differences, of this operator and of all of this node.
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
"""Operators remembered by each optimiser; beyond it the longest unseen are forgotten, and are merely looked at anew."""
NOISE_WEIGHT_EXPECTED = 8.0
"""Differences that the expected noise is worth to the node."""
NOISE_WEIGHT_NODE = 4.0
"""Differences that the node's noise is worth to an operator of which nothing is known."""
OUTLIER_DEVIATIONS = 2.0
"""A saving counts at most for so many standard deviations above the middle of the last ones: a single late reply is no saving."""
REQUIRED_FRACTION_MAX = 0.9
"""However often an operator has moved, it may still escape a place that is ten times as dear."""

AnyConsidered = TypeVar("AnyConsidered", bound=Considered)


class Certainty(enum.Enum):
    """What the reviews of an episode say about a saving."""

    SURE = enum.auto()
    """It is there."""
    UNSURE = enum.auto()
    """Ask again."""
    NOISE = enum.auto()
    """Asked often enough: it cannot be told from noise."""


def noise_of_a_node(config: OptimiserConfig) -> Noise:
    """What is believed of all operators of a node before anything has been measured."""
    return Noise(config.noise_fraction**2, NOISE_WEIGHT_EXPECTED)


class Trials:
    """The savings of one operator's candidates, as fractions of the cost here, over the reviews of an episode.

    Parameters
    ----------
    config : how sure to be
    common : the noise of all operators of this node, which learns too
    """

    def __init__(self, config: OptimiserConfig, common: Noise) -> None:
        self._config = config
        self._common = common
        self._noise = Noise(common.variance, NOISE_WEIGHT_NODE)
        self._last: dict[NodeId, float] = {}
        self._episode: dict[NodeId, list[float]] = {}
        self._seen: dict[NodeId, list[float]] = {}
        """In this review: the savings of the episode, the new one last."""

    @property
    def watched(self) -> tuple[NodeId, ...]:
        """Candidates of the present episode; () outside of one."""
        return tuple(self._episode)

    def begin(self, answered: Iterable[NodeId]) -> list[NodeId]:
        """Begin a review: which of these candidates count. In an episode only its own do."""
        self._seen = {}
        return sorted(node for node in answered if not self._episode or node in self._episode)

    def see(self, node: NodeId, saving: float) -> tuple[float, int]:
        """A saving in this review; returns the mean of the episode, and how many reviews that is of."""
        samples = self._seen[node] = [*self._episode.get(node, ()), saving]
        return self.mean(samples), len(samples)

    def mean(self, samples: Sequence[float]) -> float:
        """The mean saving of an episode, at least one sample. Single high ones are cut to near the median of the last `confirmations`."""
        recent = sorted(samples[-self._config.confirmations :])
        limit = recent[(len(recent) - 1) // 2] + OUTLIER_DEVIATIONS * math.sqrt(self._noise.variance)
        return sum(min(saving, limit) for saving in samples) / len(samples)

    def learn(self) -> None:
        """All of this review has been seen: take the noise from it."""
        savings = {node: samples[-1] for node, samples in self._seen.items()}
        for node, saving in savings.items():
            if node in self._last:
                self._noise.learn(self._last[node], saving)
                self._common.learn(self._last[node], saving)
        self._last = savings

    def judge(self, hopeful: Sequence[AnyConsidered]) -> tuple[Certainty, AnyConsidered]:
        """How sure the saving of one of these is that seem to save enough, best first and at least one; and which one is meant.

        While it is unsure, these are the candidates of the episode.
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
        """Whether a mean saving of so many reviews exceeds what is required by more than noise explains."""
        if seen < self._config.confirmations:
            return False
        error = math.sqrt(self._noise.variance / seen)
        return saving_fraction - self._config.certainty * error > required_fraction

    def end(self) -> None:
        """The episode is over."""
        self._episode = {}


def raised(config: OptimiserConfig, changes: int, since_s: float | None) -> float:
    """By what factor the required saving is raised after so many earlier changes, the last one `since_s` ago: it falls with time.

    So even places that are really equal are not swapped for ever.
    """
    if since_s is None:
        return 1.0
    counted = min(changes, config.damping_migrations_max)
    return float(1.0 + config.damping * counted * 0.5 ** (since_s / config.damping_half_life_s))
