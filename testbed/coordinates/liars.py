"""Nodes that lie about where they are: attacks on coordinates.

A liar can give out any coordinate and answer late; it cannot answer early. All claim to be sure of themselves.
"""

import math
from typing import Protocol

import numpy as np

from sbon.cost_space.coordinate import Coordinate

SURE = 0.001
"""The error estimate that liars claim."""
FAR_MS = 3000.0
WANDER_MS = 300.0
CREEP_MS = 1.0


class Liar(Protocol):
    """What some nodes tell instead of the truth."""

    def tell(self, node: int, honest: Coordinate, round_number: int) -> Coordinate:
        """The coordinate that `node` gives out in place of the honest one."""

    def rtt_ms(self, node: int, rtt_ms: float, round_number: int) -> float:
        """What a prober of `node` measures."""


class Inflation:
    """Claims to be very far away, each liar in its own direction."""

    def tell(self, node: int, honest: Coordinate, round_number: int) -> Coordinate:
        """A fixed point far out."""
        direction = np.random.default_rng(node).normal(size=3)
        x, y, z = (direction * FAR_MS / np.linalg.norm(direction)).tolist()
        return Coordinate((x, y, z), 0.0, SURE, honest.load_ms)

    def rtt_ms(self, node: int, rtt_ms: float, round_number: int) -> float:
        """The truth."""
        return rtt_ms


class Deflation(Inflation):
    """Claims to be at the origin, next to everybody, and so pulls others together."""

    def tell(self, node: int, honest: Coordinate, round_number: int) -> Coordinate:
        """The origin."""
        return Coordinate((0.0, 0.0, 0.0), 0.0, SURE, honest.load_ms)


class Oscillation:
    """Is somewhere else every round, and answers as late as it likes."""

    def tell(self, node: int, honest: Coordinate, round_number: int) -> Coordinate:
        """A random point, not far enough out to be absurd."""
        rng = np.random.default_rng((node, round_number))
        x, y, z = rng.uniform(-WANDER_MS, WANDER_MS, 3).tolist()
        return Coordinate((x, y, z), float(rng.uniform(0, 50)), SURE, honest.load_ms)

    def rtt_ms(self, node: int, rtt_ms: float, round_number: int) -> float:
        """Up to a second late."""
        return rtt_ms + float(np.random.default_rng((node, round_number, 1)).uniform(0, 1000))


class Creeping(Inflation):
    """Frog-boiling (Chan-Tin et al., 2011): all liars drift the same way, each round by so little that nothing looks wrong."""

    def tell(self, node: int, honest: Coordinate, round_number: int) -> Coordinate:
        """Where it is by its own account, plus a millisecond for every round so far."""
        x, y, z = honest.vector
        away = CREEP_MS * round_number / math.sqrt(2.0)
        return Coordinate((x + away, y + away, z), honest.height_ms, SURE, honest.load_ms)


class Delay(Inflation):
    """Tells the truth about its place, and answers late."""

    def tell(self, node: int, honest: Coordinate, round_number: int) -> Coordinate:
        """The truth."""
        return honest

    def rtt_ms(self, node: int, rtt_ms: float, round_number: int) -> float:
        """Three times as long and 200 ms more."""
        return 3.0 * rtt_ms + 200.0


ATTACKS: dict[str, type[Liar]] = {
    "inflation": Inflation,
    "deflation": Deflation,
    "oscillation": Oscillation,
    "creeping": Creeping,
    "delay": Delay,
}
