"""Runs queries of two producers, one operator and one consumer (SBON, section 4.2) over many virtual hours, and records each operator's
node and link rates each minute.

The operator joins the two streams on their numbers and passes a quarter of the pairs. As in the paper it is one operator: the selection
refers to both sides, so that it cannot run before the join. With one operator between pinned ends the exact optimum is easy to compute: the
operator's cost on each node is one sum.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sbon.config import Layer
from sbon.errors import SbonError
from sbon.types import FloatArray, NodeId, OperatorId
from sbon_testbed.figures.world import SETTLE_S, STEADY_S, LongWorld, Look, MeasuredNetwork, Say

PAYLOAD_BYTES = 1000
"""Bytes of text in a row, about the size of the paper's packets."""
LOOK_S = 60.0
"""Seconds between two observations of the operators' nodes."""


class Pair(NamedTuple):
    """The ends of a query."""

    left: NodeId
    right: NodeId
    consumer: NodeId


class Rates(NamedTuple):
    """Measured bytes a second on the three links of a query."""

    left: float
    right: float
    out: float


@dataclass
class PairRun:
    """The results of queries over the measured time. Arrays are (looks,) or (looks, queries)."""

    pairs: list[Pair]
    span_s: float
    at_s: FloatArray
    host: npt.NDArray[np.int64]
    """Number of the operator's node."""
    rates: list[Rates]
    """Median rates over the run."""
    rates_at: FloatArray
    """Rates as the senders measured them at each observation, (looks, queries, 3)."""
    load_of_all: FloatArray
    """Background load of each node, 0 to 1, (looks, nodes)."""
    moves: list[tuple[float, int]] = field(default_factory=list)
    """Time and query of each observed change of host."""

    @property
    def load_at_host(self) -> FloatArray:
        """Returns the background load of the operators' nodes, (looks, queries)."""
        result: FloatArray = np.take_along_axis(self.load_of_all, self.host, axis=1)
        return result


def draw_pairs(network: MeasuredNetwork, count: int, seed: int) -> list[Pair]:
    """Draws three different nodes for each query."""
    rng = np.random.default_rng([seed, 0x9A15])
    return [Pair(*(network.nodes[int(i)] for i in rng.choice(len(network.nodes), 3, replace=False))) for _ in range(count)]


def sources_sql(number: int, pair: Pair) -> str:
    """Returns the statements that declare a query's two streams, one numbered row a second each."""
    columns = "(ts TIMESTAMP, data INT, payload TEXT, WATERMARK FOR ts AS ts)"
    filled = (
        "rows_per_second = 1, fields.data.kind = 'sequence', fields.payload.kind = 'sequence', fields.payload.modulo = 1, "
        f"fields.payload.prefix = '{'x' * PAYLOAD_BYTES}'"
    )
    return "".join(
        f"CREATE SOURCE {side}{number} {columns} WITH (connector = 'datagen', nodes = '{node}', {filled});\n"
        for side, node in (("p", pair.left), ("q", pair.right))
    )


def query_sql(number: int) -> str:
    """Returns SELECT * FROM P1, P2 WHERE P1.data = P2.data AND mod(P1.data, 4) = 0, with the selection over both sides."""
    columns = ", ".join(f"{side}.{column} AS {side}_{column}" for side in ("p", "q") for column in ("ts", "data", "payload"))
    return (
        f"SELECT {columns} FROM p{number} AS p JOIN q{number} AS q ON p.data = q.data "
        "AND q.ts BETWEEN p.ts - INTERVAL '30 seconds' AND p.ts + INTERVAL '30 seconds' WHERE (p.data + q.data) % 8 = 0;"
    )


def run_pairs(
    network: MeasuredNetwork,
    pairs: Sequence[Pair],
    span_s: float,
    seed: int,
    *,
    migrate: bool,
    weigh_load: bool,
    loads: Sequence[FloatArray] | None,
    say: Say,
    settings: Layer | None = None,
    settle_s: float = SETTLE_S,
    steady_s: float = STEADY_S,
) -> PairRun:
    """Runs the queries for `span_s` virtual seconds, during which the network goes through its slices.

    Until the first query begins, runs of one seed are the same whether operators may migrate or not, and so are the first placements.
    """
    given = {} if settings is None else settings
    optimiser = {**given.get("optimiser", {}), "enabled": migrate}
    placement = {**given.get("placement", {}), **({} if weigh_load else {"load_weight": 0.0})}
    overlay = LongWorld(network, seed, {**given, "optimiser": optimiser, "placement": placement}, loads)
    try:
        overlay.settle(settle_s)
        queries = _submit(overlay, pairs)
        overlay.run(steady_s)
        overlay.begin(span_s)
        return _watch(overlay, pairs, queries, span_s, migrate, say)
    finally:
        overlay.close()


def _submit(overlay: LongWorld, pairs: Sequence[Pair]) -> list[str]:
    world = overlay.world
    for number, pair in enumerate(pairs):
        world.submit(sources_sql(number, pair))
    overlay.run(30.0)
    return [world.submit(query_sql(number), pair.consumer) for number, pair in enumerate(pairs)]


def _watch(overlay: LongWorld, pairs: Sequence[Pair], queries: Sequence[str], span_s: float, migrate: bool, say: Say) -> PairRun:
    looks: list[Look] = []
    loads: list[list[float]] = []
    operators = [_the_operator(overlay.look(), query) for query in queries]
    count = round(span_s / LOOK_S)
    for number in range(count):
        # Observes in the middle of each minute, because the network changes on full minutes.
        overlay.run(LOOK_S / 2 if number == 0 else LOOK_S)
        looks.append(overlay.look())
        loads.append([overlay.load_of(node) for node in overlay.network.nodes])
        say(f"{len(pairs)} queries, operators {'may' if migrate else 'may not'} migrate, virtual minutes", number + 1, count)
    return _gathered(overlay.network, pairs, operators, span_s, looks, np.array(loads))


def _the_operator(look: Look, query: str) -> OperatorId:
    found = [operator for operator in look.unpinned if operator.rpartition(".")[0] == query]
    if len(found) != 1:
        raise SbonError(f"query {query} has {len(found)} unpinned operators, expected one; does its plan split the join?")
    return found[0]


def _gathered(
    network: MeasuredNetwork,
    pairs: Sequence[Pair],
    operators: Sequence[OperatorId],
    span_s: float,
    looks: Sequence[Look],
    loads: FloatArray,
) -> PairRun:
    number = {node: index for index, node in enumerate(network.nodes)}
    host = np.zeros((len(looks), len(pairs)), dtype=np.int64)
    rates_at = np.zeros((len(looks), len(pairs), 3))
    moves: list[tuple[float, int]] = []
    for row, look in enumerate(looks):
        into, out = _by_operator(look)
        for column, operator in enumerate(operators):
            # An operator that is migrating counts at its old node.
            host[row, column] = number[look.where[operator]] if operator in look.where else host[row - 1, column]
            if row and host[row, column] != host[row - 1, column]:
                moves.append((look.at_s, column))
            rates_at[row, column, :2] = _sides(into.get(operator, {}), pairs[column])
            rates_at[row, column, 2] = out.get(operator, 0.0)
    # 0 is no rate: a sender that has just arrived has not measured one yet.
    rates = [
        Rates(*(float(np.median(values[values > 0])) if (values > 0).any() else 0.0 for values in rates_at[:, column].T))
        for column in range(len(pairs))
    ]
    return PairRun(list(pairs), span_s, np.array([look.at_s for look in looks]), host, rates, rates_at, loads, moves)


def _by_operator(look: Look) -> tuple[dict[OperatorId, dict[NodeId, float]], dict[OperatorId, float]]:
    """Returns the rates into each operator by sending node, and its output rate."""
    into: dict[OperatorId, dict[NodeId, float]] = {}
    out: dict[OperatorId, float] = {}
    for carried in look.links:
        source, _, rest = carried.link.partition(">")
        into.setdefault(rest.rpartition(":")[0], {})[carried.source] = carried.bytes_per_s
        out[source] = carried.bytes_per_s
    return into, out


def _sides(into: Mapping[NodeId, float], pair: Pair) -> tuple[float, float]:
    return into.get(pair.left, 0.0), into.get(pair.right, 0.0)
