"""Random queries and nodes as in WhiteWater's section 6: sources, filters, projections and window joins."""

import math

import numpy as np

from sbon.cost.throughput import Supply
from sbon.search.orders import Piece, Query

SELECT_NS, PROJECT_NS, JOIN_NS = 20.0, 50.0, 800.0
"""Costs of a row in instructions (section 6); sources cost nothing."""
WINDOW_S = 5.0
LATENCY_S = 0.06
INSTRUCTIONS_PER_S = 1e9
COLUMN_BYTES = 8.0
COLUMNS = 4
"""Number of columns of a source."""


def paper_query(rng: np.random.Generator, *, sources: int, others: int, nodes: int, choices: int) -> tuple[Query, list[tuple[int, ...]]]:
    """Draws a query bottom up: `sources` sources with random rates, one join fewer, and filters and projections.

    Parameters
    ----------
    others : number of operators that are no sources
    nodes : number of nodes in the network
    choices : number of nodes allowed for each operator

    Returns
    -------
    Query, hosts
    """
    pieces: list[Piece] = []
    below: list[tuple[int, ...]] = []
    roots: list[int] = []
    columns: list[int] = []

    def hosts(count: int) -> tuple[int, ...]:
        return tuple(sorted(rng.choice(nodes, min(count, nodes), replace=False).tolist()))

    def add(piece: Piece, inputs: tuple[int, ...], found: int) -> None:
        pieces.append(piece)
        below.append(inputs)
        columns.append(found)
        roots.append(len(pieces) - 1)

    for number in range(sources):
        mask = (1 << COLUMNS) - 1 << COLUMNS * number
        rate = float(10 ** rng.uniform(0.0, 3.0))
        add(Piece(name=f"emit{number}", hosts=hosts(1), rates=(rate,), columns=mask), (), mask)
    joins = min(sources - 1, others)
    kinds = ["join"] * joins + [("select", "project")[int(rng.integers(2))] for _ in range(others - joins)]
    rng.shuffle(kinds)
    for number, kind in enumerate(kinds):
        if kind == "join":
            left, right = (roots.pop(int(rng.integers(len(roots)))) for _ in range(2))
            reads = _one(rng, columns[left]) | _one(rng, columns[right])
            selectivity = float(10 ** rng.uniform(-4.0, -1.0))
            piece = Piece(
                name=f"join{number}", hosts=hosts(choices), per_row_ns=JOIN_NS, selectivity=selectivity, span_s=2 * WINDOW_S, reads=reads
            )
            add(piece, (left, right), columns[left] | columns[right])
            continue
        one = roots.pop(int(rng.integers(len(roots))))
        column = _one(rng, columns[one])
        if kind == "select":
            share = float(rng.uniform(0.05, 1.0))
            add(
                Piece(name=f"select{number}", hosts=hosts(choices), per_row_ns=SELECT_NS, selectivity=share, reads=column),
                (one,),
                columns[one],
            )
        else:
            drops = column if columns[one] & ~column else 0
            add(Piece(name=f"project{number}", hosts=hosts(choices), per_row_ns=PROJECT_NS, drops=drops), (one,), columns[one] & ~drops)
    query = Query(pieces=tuple(pieces), below=tuple(below), column_bytes=(COLUMN_BYTES,) * (COLUMNS * sources))
    return query, [piece.hosts for piece in pieces]


def _one(rng: np.random.Generator, mask: int) -> int:
    places = [place for place in range(mask.bit_length()) if mask >> place & 1]
    return 1 << places[int(rng.integers(len(places)))]


def paper_supply(rng: np.random.Generator, nodes: int, link_bytes_per_s: float = math.inf) -> Supply:
    """Draws nodes of different speeds; all links are alike."""
    local = np.eye(nodes, dtype=bool)
    work = INSTRUCTIONS_PER_S * rng.uniform(0.2, 2.0, nodes)
    return Supply(
        nodes=tuple(f"n{number}" for number in range(nodes)),
        work=work,
        core=work,
        memory=np.full(nodes, math.inf),
        bandwidth=np.where(local, math.inf, link_bytes_per_s),
        propagation_s=np.where(local, 0.0, LATENCY_S),
    )
