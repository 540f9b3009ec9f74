"""Orders of the operators of a query: which neighbours may be swapped, and the demand of an order (WhiteWater, section 5.3).

A query is a tree of `Piece`s over columns. A swap exchanges an operator (top) with one of its inputs (bottom); the rows out of the pair
stay the same, so only the two operators and the three streams at them change. Rates, work and bytes are polynomials of x, the multiple of
the profile.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec
import numpy as np

from sbon.cost.chains import chains_of
from sbon.cost.throughput import Demand
from sbon.errors import ShapeError
from sbon.types import FloatArray, OperatorId

NONE = -1
"""Consumer of the last operator."""


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """One operator as searches see it: a source if it has `rates`, a join if it has `span_s`, else one input and one output.

    A set of columns is a bit mask.
    """

    name: OperatorId
    hosts: tuple[int, ...]
    """Rows of the nodes that may run it."""
    per_row_ns: float = 0.0
    """Reference ns per row in."""
    selectivity: float = 1.0
    """Rows out per row in; of a join the share of pairs."""
    span_s: float | None = None
    """Time over which a row of one side of a join meets rows of the other: twice the window of WhiteWater, table 3."""
    reads: int = 0
    """Columns that the operator needs."""
    drops: int = 0
    """Columns that the operator does not pass on."""
    columns: int = 0
    """Columns of a source."""
    rates: tuple[float, ...] = ()
    """Rows per second of a source at each target point of the profile."""
    fixed_bytes: float = 0.0
    """Memory beside that of rows kept."""


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """The operators of a query, and their original order.

    Raises
    ------
    ShapeError
        A piece has the wrong number of inputs or target points, no host, or feeds other than one piece.
    """

    pieces: tuple[Piece, ...]
    below: tuple[tuple[int, ...], ...]
    """Rows of the inputs of each piece: none for a source, two for a join, else one."""
    column_bytes: tuple[float, ...]
    """Bytes of each column in a row."""
    points: tuple[str, ...] = ("",)
    lifts: bool = False
    """An operator with one input may also be moved from below a join to above it. WhiteWater never does (table 6): it helps only where the
    operator costs more than it saves."""

    def __post_init__(self) -> None:
        fed = [row for inputs in self.below for row in inputs]
        if len(self.below) != len(self.pieces) or len(fed) != len(set(fed)) or len(fed) != len(self.pieces) - 1:
            raise ShapeError(f"{len(self.pieces)} operators with {len(fed)} links, expected a tree")
        for piece, inputs in zip(self.pieces, self.below, strict=True):
            wanted = 0 if piece.rates else 2 if piece.span_s is not None else 1
            if len(inputs) != wanted or len(piece.rates) not in (0, len(self.points)):
                raise ShapeError(f"operator {piece.name} with {len(inputs)} inputs and {len(piece.rates)} rates, expected {wanted} inputs")
            if not piece.hosts:
                raise ShapeError(f"operator {piece.name} may run nowhere, expected a node at least")

    def first_order(self) -> "Order":
        """Returns the order that the query was given in."""
        return Order(self)


class Pair(msgspec.Struct, frozen=True):
    """An exchange of an operator with one of its inputs."""

    top: int
    bottom: int
    moved: int
    """Input of the bottom that becomes an input of the top."""


class Swap(msgspec.Struct, frozen=True):
    """A swap in an order, and its effects. p points, k coefficients of 1, x, x^2 ..."""

    operators: tuple[int, ...]
    """Operators whose work or memory changes."""
    work: tuple[FloatArray, ...]
    """Work of each of these operators afterwards, (p, k)."""
    memory: tuple[FloatArray, ...]
    """Memory of each of them afterwards, (p, k)."""
    links: tuple[tuple[int, int], ...]
    """Source and target of streams that end or begin; `Orders.sent_by` gives their bytes."""
    key: int
    """Bits of the order's key that the swap flips."""
    made: Pair
    """Pair that `Order.swapped` takes."""


class Orders(Protocol):
    """The interface of an order to searches; `Order` is one."""

    work: FloatArray
    memory: FloatArray
    key: int

    def streams(self) -> tuple[Sequence[tuple[int, int]], Sequence[FloatArray]]: ...
    def demand(self) -> Demand: ...
    def moves(self) -> Sequence[Pair]: ...
    def swap(self, pair: Pair) -> Swap: ...
    def sent_by(self, swap: Swap) -> Sequence[FloatArray]: ...
    def swapped(self, swap: Swap) -> "Orders": ...


class Order:
    """One order of a query's operators.

    Parameters
    ----------
    query : the query whose operators are ordered
    below : inputs of each operator; the original ones if left out
    """

    def __init__(self, query: Query, below: Sequence[Sequence[int]] | None = None) -> None:
        self.query = query
        self._bytes: dict[int, float] = {}
        self.below = [list(inputs) for inputs in (query.below if below is None else below)]
        count = len(query.pieces)
        self.above = [NONE] * count
        for target, inputs in enumerate(self.below):
            for source in inputs:
                self.above[source] = target
        joins = sum(piece.span_s is not None for piece in query.pieces)
        points, terms = len(query.points), joins + 2
        self.columns = [0] * count
        self.out = np.zeros((count, points, terms))
        """Rows per second out, (operators, p, k)."""
        self.work = np.zeros((count, points, terms))
        """Reference ns per second, (operators, p, k)."""
        self.memory = np.zeros((count, points, terms))
        """Bytes, (operators, p, k)."""
        for row in self._upstream_first():
            piece = query.pieces[row]
            if piece.rates:
                self.out[row, :, 1], self.columns[row] = piece.rates, piece.columns
            else:
                inputs = self.below[row]
                self.out[row] = self._rows(piece, [self.out[one] for one in inputs])
                self.columns[row] = _columns(piece, [self.columns[one] for one in inputs])
            self.work[row], self.memory[row] = self._asked(row, self.below[row])
        self.key = 0
        """Hash of which operator feeds which, equal for equal orders."""
        for source, target in self.links():
            self.key ^= _edge(source, target)
        self._moves: list[Pair] | None = None
        self._known: dict[Pair, Swap] = {}

    def _upstream_first(self) -> Iterator[int]:
        stack = [(self.above.index(NONE), False)]
        while stack:
            row, is_ready = stack.pop()
            if is_ready:
                yield row
            else:
                stack.append((row, True))
                stack.extend((one, False) for one in self.below[row])

    def _rows(self, piece: Piece, inputs: list[FloatArray]) -> FloatArray:
        """Returns the rows out of an operator over streams of (p, k) rows (WhiteWater, table 3)."""
        if piece.span_s is None:
            return inputs[0] * piece.selectivity
        left, right = inputs
        terms = left.shape[1]
        # The degree of a stream is at most 1 plus the number of joins before it, so no term is cut off.
        found = np.stack([np.convolve(one, other)[:terms] for one, other in zip(left, right, strict=True)])
        found *= piece.span_s * piece.selectivity
        return found

    def _asked(self, row: int, inputs: list[int]) -> tuple[FloatArray, FloatArray]:
        """Returns work and memory of an operator over the present streams of other operators (WhiteWater, tables 3 and 4)."""
        return self._asked_of(row, [(self.out[one], self.columns[one]) for one in inputs])

    def _asked_of(self, row: int, inputs: list[tuple[FloatArray, int]]) -> tuple[FloatArray, FloatArray]:
        piece = self.query.pieces[row]
        work = self.out[row] * piece.per_row_ns if not inputs else inputs[0][0] * piece.per_row_ns
        memory = np.zeros_like(work)
        memory[:, 0] = piece.fixed_bytes
        if piece.span_s is not None:
            work = work + inputs[1][0] * piece.per_row_ns
            for rows, columns in inputs:
                memory = memory + rows * (0.5 * piece.span_s * self.row_bytes(columns))
        return work, memory

    def row_bytes(self, columns: int) -> float:
        """Returns the bytes of a row of these columns."""
        found = self._bytes.get(columns)
        if found is None:
            found = self._bytes[columns] = sum(size for place, size in enumerate(self.query.column_bytes) if columns >> place & 1)
        return found

    def sent(self, row: int) -> FloatArray:
        """Returns the bytes per second out of an operator, (p, k)."""
        found: FloatArray = self.out[row] * self.row_bytes(self.columns[row])
        return found

    def links(self) -> list[tuple[int, int]]:
        """Returns source and target of all streams."""
        return [(source, target) for source, target in enumerate(self.above) if target != NONE]

    def streams(self) -> tuple[list[tuple[int, int]], list[FloatArray]]:
        """Returns source and target of each stream, and its bytes per second, (p, k)."""
        links = self.links()
        return links, [self.sent(source) for source, _ in links]

    def demand(self) -> Demand:
        """Returns the demand of the order, for `sbon.cost.throughput`."""
        pieces, links = self.query.pieces, self.links()
        points, terms = self.work.shape[1:]
        return Demand(
            operators=tuple(piece.name for piece in pieces),
            work=self.work.transpose(1, 0, 2),
            memory=self.memory.transpose(1, 0, 2),
            ends=np.array(links, dtype=np.int64).reshape(-1, 2),
            sent=np.array([self.sent(source) for source, _ in links]).reshape(-1, points, terms).transpose(1, 0, 2),
            tuple_ns=np.array([piece.per_row_ns for piece in pieces]),
            points=self.query.points,
            chains=chains_of((source, target) for source, target in links if len(self.below[target]) == 1),
        )

    def moves(self) -> list[Pair]:
        """Returns all swaps that do not change the answer."""
        if self._moves is None:
            self._moves = [pair for top in range(len(self.below)) for pair in self._of(top)]
        return self._moves

    def _of(self, top: int) -> Iterator[Pair]:
        for bottom in self.below[top]:
            for moved in allowed(self, top, bottom):
                yield Pair(top, bottom, moved)

    def swap(self, pair: Pair) -> Swap:
        """Returns the changes by a swap."""
        found = self._known.get(pair)
        if found is None:
            found = self._known[pair] = self._made(pair)
        return found

    def _made(self, pair: Pair) -> Swap:
        top, bottom, moved = pair.top, pair.bottom, pair.moved
        rows, columns = self._between(pair)
        # The new lower operator has the moved input in place of the bottom; the new upper one has the lower one in place of the moved
        # input.
        streams = [(self.out[one], self.columns[one]) for one in self._lower(pair)]
        work, memory = self._asked_of(top, streams)
        upper = [(rows, columns) if one == moved else (self.out[one], self.columns[one]) for one in self.below[bottom]]
        other_work, other_memory = self._asked_of(bottom, upper)
        consumer = self.above[top]
        links = [(bottom, top), (moved, bottom), (top, bottom), (moved, top)]
        if consumer != NONE:
            links += [(top, consumer), (bottom, consumer)]
        key = 0
        for source, target in links:
            key ^= _edge(source, target)
        return Swap((top, bottom), (work, other_work), (memory, other_memory), tuple(links), key, pair)

    def sent_by(self, swap: Swap) -> list[FloatArray]:
        """Returns the bytes per second of each stream that a swap ends (less than 0) or begins, (p, k)."""
        pair = swap.made
        rows, columns = self._between(pair)
        whole, part = self.sent(pair.top), self.sent(pair.moved)
        return [-self.sent(pair.bottom), -part, rows * self.row_bytes(columns), part, -whole, whole][: len(swap.links)]

    def _lower(self, pair: Pair) -> list[int]:
        return [pair.moved if one == pair.bottom else one for one in self.below[pair.top]]

    def _between(self, pair: Pair) -> tuple[FloatArray, int]:
        """Returns rows and columns of the stream between the two operators after a swap."""
        upper, lower = self.query.pieces[pair.top], self.query.pieces[pair.bottom]
        inputs = self._lower(pair)
        if lower.span_s is None and upper.span_s is not None and lower.selectivity > 0:
            rows = self.out[pair.top] / lower.selectivity
        else:
            rows = self._rows(upper, [self.out[one] for one in inputs])
        return rows, _columns(upper, [self.columns[one] for one in inputs])

    def swapped(self, swap: Swap) -> "Order":
        """Returns the order after a swap of this one."""
        pair = swap.made
        top, bottom, moved = pair.top, pair.bottom, pair.moved
        found = Order.__new__(Order)
        found.query, found.key, found._bytes = self.query, self.key ^ swap.key, self._bytes
        found.below, found.above, found.columns = list(self.below), list(self.above), list(self.columns)
        found.out, found.work, found.memory = self.out.copy(), self.work.copy(), self.memory.copy()
        found.below[top] = self._lower(pair)
        found.below[bottom] = [top if one == moved else one for one in self.below[bottom]]
        consumer = self.above[top]
        if consumer != NONE:
            found.below[consumer] = [bottom if one == top else one for one in self.below[consumer]]
        found.above[moved], found.above[top], found.above[bottom] = top, bottom, consumer
        rows, columns = self._between(pair)
        found.out[bottom], found.columns[bottom] = self.out[top], self.columns[top]
        found.out[top], found.columns[top] = rows, columns
        found.work[top], found.work[bottom] = swap.work
        found.memory[top], found.memory[bottom] = swap.memory
        found._moves, found._known = None, {}
        # Swaps elsewhere stay as they are.
        inner = {top, bottom, moved, *found.below[top], *found.below[bottom]}
        near = inner | {consumer}
        if self._moves is not None:
            kept = [one for one in self._moves if one.top not in near and one.bottom not in near and one.moved not in inner]
            again = near | {found.above[one] for one in near if one != NONE}
            fresh = [one for upper in again if upper != NONE for one in found._of(upper)]
            there = set(kept)
            found._moves = sorted(there.union(fresh), key=_place)
            found._known = {pair: self._known[pair] for pair in kept if pair in self._known}
        return found


def _place(pair: Pair) -> tuple[int, int, int]:
    return pair.top, pair.bottom, pair.moved


def _edge(source: int, target: int) -> int:
    """Returns 63 bits for a stream, by two rounds of splitmix64."""
    value = (source + 1) * 1_000_003 + target + 2
    for factor in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB):
        value = (value ^ value >> 30) * factor & 0xFFFFFFFFFFFFFFFF
    return (value ^ value >> 31) >> 1


def _columns(piece: Piece, inputs: list[int]) -> int:
    found = 0
    for columns in inputs:
        found |= columns
    return found & ~piece.drops


def allowed(order: Order, top: int, bottom: int) -> Iterator[int]:
    """Yields the inputs of `bottom` that may become inputs of `top` if the two are swapped.

    Source
    ------
    WhiteWater, table 6. An operator must not drop a column that an operator behind it after the swap reads.
    """
    pieces = order.query.pieces
    upper, lower = pieces[top], pieces[bottom]
    if lower.rates:
        return
    if upper.span_s is None:
        if upper.drops & lower.reads:
            return
        for moved in order.below[bottom]:
            if not (upper.reads | upper.drops) & ~order.columns[moved]:
                yield moved
    elif lower.span_s is None:
        if order.query.lifts:
            yield order.below[bottom][0]
    else:
        other = next(one for one in order.below[top] if one != bottom)
        for moved in order.below[bottom]:
            # All columns that the upper join reads must come from the moved input or from the join's other side.
            if not upper.reads & ~(order.columns[moved] | order.columns[other]):
                yield moved
