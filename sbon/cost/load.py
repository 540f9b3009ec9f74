"""Deterministic load: the work that each interval of stimulus times brings, whenever it is really done (Mace, definitions 5 and 6).

A graph of operators turns arrivals of sources into rows at each operator, and rows into work, as if everything upstream answered at once.
Rows and work of an operator are polynomials of the rows at its inputs (sections III-B and VI-C): linear for most, a product of two inputs
for joins within a window, a constant for windows that answer once an interval, with or without rows.

Costs: O(intervals x inputs) in numpy for each operator, once. Operators are then rows of a matrix, and an assignment of operators to nodes
is a sum of rows. `NodeLoad` keeps these sums: a move subtracts one row and adds one, whatever the number of operators and nodes.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from sbon.errors import ShapeError
from sbon.types import FloatArray, IntArray


class Polynomial(msgspec.Struct, frozen=True):
    """A number per interval that depends on the rows at an operator's inputs in this interval."""

    linear: tuple[float, ...]
    """Factor of each input's rows."""
    products: tuple[tuple[int, int, float], ...] = ()
    """Two inputs and the factor of the product of their rows, for joins of windows. An input may be paired with itself."""
    constant: float = 0.0
    """Value in each interval without any rows."""

    def __post_init__(self) -> None:
        factors = (*self.linear, *(factor for _, _, factor in self.products), self.constant)
        if not all(0 <= factor < float("inf") for factor in factors):
            raise ShapeError(f"factors {factors}, expected finite numbers of 0 or more")
        if any(not 0 <= port < len(self.linear) for left, right, _ in self.products for port in (left, right)):
            raise ShapeError(f"products {self.products}, expected inputs 0 to {len(self.linear) - 1}")

    def of(self, rows: Sequence[FloatArray]) -> FloatArray:
        """Returns the value for each interval.

        Parameters
        ----------
        rows : one array (intervals,) for each input

        Examples
        --------
        >>> Polynomial((1.0, 2.0), ((0, 1, 0.5),), 3.0).of([np.array([1.0, 0.0]), np.array([4.0, 2.0])])
        array([14.,  7.])
        """
        if len(rows) != len(self.linear):
            raise ShapeError(f"{len(rows)} inputs, expected {len(self.linear)}")
        found = np.full_like(rows[0], self.constant)
        for factor, one in zip(self.linear, rows, strict=True):
            found += factor * one
        for left, right, factor in self.products:
            found += factor * rows[left] * rows[right]
        return found


class Source(msgspec.Struct, frozen=True):
    """An input that comes from outside."""

    index: int
    """Row of the arrivals."""


class Upstream(msgspec.Struct, frozen=True):
    """An input that comes from another operator."""

    operator: int
    delay_s: float = 0.0
    """Propagation from there, beside any load (section VII-B)."""


Input = Source | Upstream


class OperatorCost(msgspec.Struct, frozen=True):
    """Output rows and work of an operator, as functions of the rows at its inputs."""

    inputs: tuple[Input, ...]
    rows: Polynomial
    """Rows out per interval (selectivities sigma)."""
    work: Polynomial
    """Work per interval (cycles per event omega), in cycles or seconds of a core."""

    def __post_init__(self) -> None:
        if not self.inputs or not len(self.inputs) == len(self.rows.linear) == len(self.work.linear):
            factors = len(self.rows.linear), len(self.work.linear)
            raise ShapeError(f"{len(self.inputs)} inputs, {factors} selectivities and costs, expected the same number of each, 1 or more")


class Series(msgspec.Struct, frozen=True):
    """Rows and work of operators over time."""

    rows: FloatArray
    """(operators, intervals): rows out, by stimulus time."""
    work: FloatArray
    """(operators, intervals): deterministic load."""


def deterministic_load(operators: Sequence[OperatorCost], arrivals: FloatArray) -> Series:
    """Returns the output rows and the work that the arrivals cause at each operator.

    Parameters
    ----------
    operators : upstream first
    arrivals : (sources, intervals), rows

    Raises
    ------
    ShapeError
        An input is neither a source nor an operator before its consumer, or arrivals are negative or not finite.

    Source
    ------
    Mace, definitions 2 and 5, section VI-C.

    Examples
    --------
    >>> select = OperatorCost((Source(0),), Polynomial((0.5,)), Polynomial((2.0,)))
    >>> average = OperatorCost((Upstream(0),), Polynomial((0.0,), constant=1.0), Polynomial((1.0,)))
    >>> deterministic_load([select, average], np.array([[4.0, 8.0]])).work
    array([[ 8., 16.],
           [ 2.,  4.]])
    """
    if arrivals.ndim != 2 or 0 in arrivals.shape:
        raise ShapeError(f"arrivals have the shape {arrivals.shape}, expected (sources, intervals), 1 or more of each")
    if not (np.isfinite(arrivals).all() and (arrivals >= 0).all()):
        raise ShapeError("arrivals are negative or not finite, expected rows per interval")
    shape = (len(operators), arrivals.shape[1])
    rows, work = np.empty(shape), np.empty(shape)
    for number, operator in enumerate(operators):
        inputs = []
        for one in operator.inputs:
            place, count = (one.index, len(arrivals)) if isinstance(one, Source) else (one.operator, number)
            if not 0 <= place < count:
                raise ShapeError(f"operator {number} reads {one}, expected a source below {len(arrivals)} or an operator below {number}")
            inputs.append(arrivals[place] if isinstance(one, Source) else rows[place])
        rows[number] = operator.rows.of(inputs)
        work[number] = operator.work.of(inputs)
    return Series(rows, work)


class NodeLoad:
    """The deterministic load of nodes under an assignment of operators, kept while operators move (definition 6).

    Parameters
    ----------
    work : (operators, intervals)
    node_of : (operators,), each 0 to nodes - 1
    nodes : how many there are
    already : (nodes, intervals), load beside that of the operators; 0 if left out

    Raises
    ------
    ShapeError
        The shapes do not fit, or a node does not exist.

    Examples
    --------
    >>> load = NodeLoad(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([0, 0]), 2)
    >>> load.move(1, 1)
    >>> load.of_nodes
    array([[1., 2.],
           [3., 4.]])
    """

    def __init__(self, work: FloatArray, node_of: IntArray, nodes: int, already: FloatArray | None = None) -> None:
        if work.ndim != 2 or node_of.shape != work.shape[:1]:
            raise ShapeError(f"work {work.shape}, nodes of operators {node_of.shape}, expected (operators, intervals) and (operators,)")
        if node_of.size and not (node_of.min() >= 0 and node_of.max() < nodes):
            raise ShapeError(f"operators on nodes {node_of.min()} to {node_of.max()}, expected 0 to {nodes - 1}")
        if already is not None and already.shape != (nodes, work.shape[1]):
            raise ShapeError(f"load that is there already {already.shape}, expected {(nodes, work.shape[1])}")
        self.work = work
        self.node_of = node_of.copy()
        self.of_nodes = np.zeros((nodes, work.shape[1])) if already is None else already.copy()
        """(nodes, intervals)"""
        add_by_node(self.of_nodes, work, node_of)

    def move(self, operator: int, node: int) -> None:
        """Assigns an operator to another node."""
        self.of_nodes[self.node_of[operator]] -= self.work[operator]
        self.of_nodes[node] += self.work[operator]
        self.node_of[operator] = node

    def operators_on(self, node: int) -> IntArray:
        """Returns the operators that are assigned to a node, in their order."""
        return np.flatnonzero(self.node_of == node)


def add_by_node(of_nodes: FloatArray, work: FloatArray, node_of: IntArray) -> None:
    """Adds the work of each operator to its node, in place: one pass over the operators, sorted by node."""
    if not node_of.size:
        return
    order = np.argsort(node_of, kind="stable")
    there, first = np.unique(node_of[order], return_index=True)
    of_nodes[there] += np.add.reduceat(work[order], first, axis=0)


class Expanded(msgspec.Struct, frozen=True):
    """A graph in which streams between nodes are operators on links, and the assignment that goes with it."""

    operators: tuple[OperatorCost, ...]
    node_of: IntArray
    """(operators,): nodes first, then links."""
    links: tuple[tuple[int, int], ...]
    """Pairs of nodes, in the order of their numbers: the first has the number `nodes`."""
    number: tuple[int, ...]
    """Index in this graph of each operator of the original graph."""


def with_links(
    operators: Sequence[OperatorCost], node_of: IntArray, nodes: int, bytes_per_row: Sequence[float], propagation_s: FloatArray
) -> Expanded:
    """Returns the graph with an operator on a link for each stream that leaves its node: bytes are its work.

    Two streams between the same nodes share one link; links in the two directions are two.

    Parameters
    ----------
    node_of : (operators,)
    bytes_per_row : size of each operator's output rows
    propagation_s : (nodes, nodes), one way

    Raises
    ------
    ShapeError
        The shapes do not fit.

    Source
    ------
    Mace, section VII-B.

    Examples
    --------
    >>> keep = Polynomial((1.0,))
    >>> chain = [OperatorCost((Source(0),), keep, keep), OperatorCost((Upstream(0),), keep, keep)]
    >>> found = with_links(chain, np.array([0, 1]), 2, [100.0, 10.0], np.array([[0.0, 0.05], [0.05, 0.0]]))
    >>> found.links, found.number, found.operators[1].work.linear, found.operators[2].inputs
    (((0, 1),), (0, 2), (100.0,), (Upstream(operator=1, delay_s=0.05),))
    """
    if node_of.shape != (len(operators),) or len(bytes_per_row) != len(operators) or propagation_s.shape != (nodes, nodes):
        raise ShapeError(
            f"{len(operators)} operators, nodes of {node_of.shape}, rows' bytes of {len(bytes_per_row)}, propagation {propagation_s.shape}"
        )
    links: dict[tuple[int, int], int] = {}
    made: list[OperatorCost] = []
    where: list[int] = []
    number: list[int] = []
    for operator, node in zip(operators, node_of.tolist(), strict=True):
        inputs: list[Input] = []
        for one in operator.inputs:
            if isinstance(one, Upstream) and int(node_of[one.operator]) != node:
                pair = (int(node_of[one.operator]), node)
                where.append(nodes + links.setdefault(pair, len(links)))
                made.append(OperatorCost((Upstream(number[one.operator]),), Polynomial((1.0,)), Polynomial((bytes_per_row[one.operator],))))
                inputs.append(Upstream(len(made) - 1, one.delay_s + float(propagation_s[pair])))
            else:
                inputs.append(Upstream(number[one.operator], one.delay_s) if isinstance(one, Upstream) else one)
        made.append(OperatorCost(tuple(inputs), operator.rows, operator.work))
        where.append(node)
        number.append(len(made) - 1)
    return Expanded(tuple(made), np.array(where, dtype=np.int64), tuple(links), tuple(number))
