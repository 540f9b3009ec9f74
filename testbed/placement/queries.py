"""Queries to place: the paper's aggregate, trees of joins, and a mixture with chains and diamonds."""

from typing import Literal, TypeAlias

import numpy as np

from sbon.cost.problem import PlacementLink, PlacementProblem
from sbon.types import NodeId, OperatorId

Shape: TypeAlias = Literal["aggregate", "join-tree", "mixed"]

PRODUCER_BYTES_PER_S = 2000.0
"""2 KB/s for each producer (SBON, section 4.1)."""
MIXED_OPERATORS_MAX = 12


def draw_query(shape: Shape, nodes: list[NodeId], rng: np.random.Generator) -> PlacementProblem:
    """Draws a query of this shape with its producers and its consumer on random nodes; all different if there are enough nodes."""
    if shape == "aggregate":
        return aggregate(nodes, rng)
    if shape == "join-tree":
        return join_tree(nodes, rng, int(rng.integers(2, 9)))
    kind = int(rng.integers(3))
    if kind == 0:
        return chain(nodes, rng, int(rng.integers(1, MIXED_OPERATORS_MAX + 1)))
    if kind == 1:
        return join_tree(nodes, rng, int(rng.integers(2, MIXED_OPERATORS_MAX + 2)))
    return diamonds(nodes, rng, int(rng.integers(1, MIXED_OPERATORS_MAX // 4 + 1)))


def aggregate(nodes: list[NodeId], rng: np.random.Generator) -> PlacementProblem:
    """Draws a query of four producers, one 8:1 aggregator and one consumer (SBON, section 4.1)."""
    pinned = _pin(["p0", "p1", "p2", "p3", "c"], nodes, rng)
    inputs = [PlacementLink(f"p{index}", "a", PRODUCER_BYTES_PER_S) for index in range(4)]
    return PlacementProblem(pinned, ("a",), (*inputs, PlacementLink("a", "c", 4 * PRODUCER_BYTES_PER_S / 8)))


def join_tree(nodes: list[NodeId], rng: np.random.Generator, producers: int) -> PlacementProblem:
    """Draws joins of two random streams each until one stream is left; a join's output is 5 to 100 % of its inputs."""
    pinned = _pin([*(f"p{index}" for index in range(producers)), "c"], nodes, rng)
    streams: list[tuple[OperatorId, float]] = [(f"p{index}", PRODUCER_BYTES_PER_S) for index in range(producers)]
    operators: list[OperatorId] = []
    links: list[PlacementLink] = []
    while len(streams) > 1:
        left, right = (streams.pop(int(rng.integers(len(streams)))) for _ in range(2))
        join = f"j{len(operators)}"
        operators.append(join)
        links += [PlacementLink(*stream[:1], join, stream[1]) for stream in (left, right)]
        streams.append((join, (left[1] + right[1]) * float(rng.uniform(0.05, 1.0))))
    return PlacementProblem(pinned, tuple(operators), (*links, PlacementLink(streams[0][0], "c", streams[0][1])))


def chain(nodes: list[NodeId], rng: np.random.Generator, length: int) -> PlacementProblem:
    """Draws a chain of operators, each of which passes 20 to 100 % of its input."""
    rate = PRODUCER_BYTES_PER_S
    operators = tuple(f"o{index}" for index in range(length))
    links = []
    for source, target in zip(("p", *operators), (*operators, "c"), strict=True):
        links.append(PlacementLink(source, target, rate))
        rate *= float(rng.uniform(0.2, 1.0))
    return PlacementProblem(_pin(["p", "c"], nodes, rng), operators, tuple(links))


def diamonds(nodes: list[NodeId], rng: np.random.Generator, count: int) -> PlacementProblem:
    """Draws a chain of diamonds: each splits a stream into two branches and joins them again with another producer's stream."""
    pinned = _pin(["p", *(f"q{index}" for index in range(count)), "c"], nodes, rng)
    operators: list[OperatorId] = []
    links: list[PlacementLink] = []
    source, rate = "p", PRODUCER_BYTES_PER_S
    for index in range(count):
        split, left, right, join = (f"{kind}{index}" for kind in ("s", "l", "r", "j"))
        operators += [split, left, right, join]
        links.append(PlacementLink(source, split, rate))
        arriving = 0.0
        for way in (left, right):
            links += [PlacementLink(split, way, rate), PlacementLink(way, join, passed := rate * float(rng.uniform(0.05, 0.6)))]
            arriving += passed
        links.append(PlacementLink(f"q{index}", join, PRODUCER_BYTES_PER_S))
        source, rate = join, (arriving + PRODUCER_BYTES_PER_S) * float(rng.uniform(0.1, 0.8))
    return PlacementProblem(pinned, tuple(operators), (*links, PlacementLink(source, "c", rate)))


def _pin(operators: list[OperatorId], nodes: list[NodeId], rng: np.random.Generator) -> dict[OperatorId, NodeId]:
    chosen = rng.choice(len(nodes), size=len(operators), replace=len(operators) > len(nodes))
    return {operator: nodes[int(index)] for operator, index in zip(operators, chosen, strict=True)}
