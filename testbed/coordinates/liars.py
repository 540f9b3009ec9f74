"""Attacks on coordinates: nodes that publish false ones.

A liar can publish any coordinate and answer late; it cannot answer early. All liars but `Delay` claim a small error estimate.
"""

import math
from typing import Protocol

import numpy as np

from sbon.cost_space.coordinate import Coordinate

SURE = 0.001
"""Error estimate that liars claim."""
FAR_MS = 3000.0
WANDER_MS = 300.0
CREEP_MS = 1.0


class Liar(Protocol):
    """The interface of an attack."""

    def tell(self, node: int, honest: Coordinate, round_number: int) -> Coordinate:
        """Returns the coordinate that `node` publishes instead of the honest one."""

    def rtt_ms(self, node: int, rtt_ms: float, round_number: int) -> float:
        """Returns the RTT that a prober of `node` measures."""


class Inflation:
    """Claims to be very far away, each liar in its own direction."""

    def tell(self, node: int, honest: Coordinate, round_number: int) -> Coordinate:
        """Returns a fixed, distant point."""
        direction = np.random.default_rng(node).normal(size=3)
        x, y, z = (direction * FAR_MS / np.linalg.norm(direction)).tolist()
        return Coordinate((x, y, z), 0.0, SURE, honest.load_ms)

    def rtt_ms(self, node: int, rtt_ms: float, round_number: int) -> float:
        """Returns the true RTT."""
        return rtt_ms


class Deflation(Inflation):
    """Claims to be at the origin, near all nodes, and so pulls the others together."""

    def tell(self, node: int, honest: Coordinate, round_number: int) -> Coordinate:
        """Returns the origin."""
        return Coordinate((0.0, 0.0, 0.0), 0.0, SURE, honest.load_ms)


class Oscillation:
    """Claims a different point every round, and answers with a random delay."""

    def tell(self, node: int, honest: Coordinate, round_number: int) -> Coordinate:
        """Returns a random point, near enough that peers accept it."""
        rng = np.random.default_rng((node, round_number))
        x, y, z = rng.uniform(-WANDER_MS, WANDER_MS, 3).tolist()
        return Coordinate((x, y, z), float(rng.uniform(0, 50)), SURE, honest.load_ms)

    def rtt_ms(self, node: int, rtt_ms: float, round_number: int) -> float:
        """Returns an RTT up to a second too long."""
        return rtt_ms + float(np.random.default_rng((node, round_number, 1)).uniform(0, 1000))


class Creeping(Inflation):
    """Frog-boiling (Chan-Tin et al., 2011): all liars drift in one direction, each round by too little to be noticed."""

    def tell(self, node: int, honest: Coordinate, round_number: int) -> Coordinate:
        """Returns the node's true coordinate, moved by `CREEP_MS` for every round so far."""
        x, y, z = honest.vector
        away = CREEP_MS * round_number / math.sqrt(2.0)
        return Coordinate((x + away, y + away, z), honest.height_ms, SURE, honest.load_ms)


class Delay(Inflation):
    """Publishes its true coordinate, and answers late."""

    def tell(self, node: int, honest: Coordinate, round_number: int) -> Coordinate:
        """Returns the true coordinate."""
        return honest

    def rtt_ms(self, node: int, rtt_ms: float, round_number: int) -> float:
        """Returns three times the RTT plus 200 ms."""
        return 3.0 * rtt_ms + 200.0


ATTACKS: dict[str, type[Liar]] = {
    "inflation": Inflation,
    "deflation": Deflation,
    "oscillation": Oscillation,
    "creeping": Creeping,
    "delay": Delay,
}
