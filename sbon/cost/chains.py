"""Computes the multiple of the rates that chains of operators carry on one core. Operators that follow each other on a node are one task,
and a task runs on one thread.

A chain ends where the node changes. On a node with several cores the engine cuts it in two where both parts are worth a thread
(`sbon.chaining`); at the highest rate a batch takes a quantum, so that the operators' shares of the work decide.

A stretch is a part of a chain, without gaps, that might be on one node. A table holds the greatest multiple of each stretch on each node,
so that an assignment is valued by the stretches that it makes.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sbon.chaining import parts
from sbon.cost.multiples import greatest_multiple
from sbon.types import FloatArray, IntArray

BATCH_S = 0.005
"""Work of a chain on one batch at its highest rate: a quantum (`engine.quantum_s`)."""

Chains = tuple[tuple[int, ...], ...]
"""Operators by row that follow each other, upstream first."""
Parts = list[Sequence[int]]
"""Tasks of a stretch: operators by row."""


def chains_of(links: Iterable[tuple[int, int]]) -> Chains:
    """Returns the chains of links that each lead from an operator's only output to an operator's only input.

    Examples
    --------
    >>> chains_of([(2, 0), (0, 1), (4, 3)])
    ((2, 0, 1), (4, 3))
    """
    after = dict(links)
    fed = set(after.values())
    found = []
    for first in after:
        if first not in fed:
            chain = [first]
            while chain[-1] in after:
                chain.append(after[chain[-1]])
            found.append(tuple(chain))
    return tuple(found)


class _Stretch(NamedTuple):
    chain: int
    first: int
    """Place in the chain."""
    last: int


class OneCore:
    """Greatest multiple of each stretch of each chain on one core of each node.

    Parameters
    ----------
    work : (p, o, k), reference ns per second
    chains : operators that follow each other; an operator in no chain is alone
    core : (nodes,), reference ns per second
    """

    def __init__(self, work: FloatArray, chains: Chains, core: FloatArray) -> None:
        alone = sorted(set(range(work.shape[1])).difference(*chains)) if chains else range(work.shape[1])
        self._alone: IntArray = np.array(alone, dtype=np.int64)
        self._chains = [np.array(chain, dtype=np.int64) for chain in chains]
        self._stretches = [
            _Stretch(number, first, last)
            for number, chain in enumerate(chains)
            for first in range(len(chain))
            for last in range(first, len(chain))
        ]
        self._work, self._core = work, core
        self._of_alone = self._far([[[(row,)]] * len(work) for row in self._alone.tolist()])
        pieces = [chains[one.chain][one.first : one.last + 1] for one in self._stretches]
        self._of_stretch = self._far([[self._cut(point, piece) for point in range(len(work))] for piece in pieces])

    def _far(self, cuts: Sequence[Sequence[Parts]]) -> FloatArray:
        """Returns the greatest multiple of each stretch on each node, (stretches, nodes), given its parts at each target point."""
        found = np.full((len(cuts), len(self._core)), np.inf)
        rows = [
            (number, self._work[point][list(part)].sum(axis=0))
            for number, one in enumerate(cuts)
            for point, cut in enumerate(one)
            for part in cut
        ]
        if rows:
            summed = np.array([total for _, total in rows])
            far = greatest_multiple(np.repeat(summed[:, None], len(self._core), axis=1), self._core)
            np.minimum.at(found, [number for number, _ in rows], far)
        return found

    def _cut(self, point: int, group: Sequence[int]) -> Parts:
        """Returns the parts that run as tasks of their own if there are enough threads. Costs are those at the rates at which the whole
        group would fill the fastest core, because joins make the shares of the work depend on the rates."""
        work = self._work[point][list(group)]
        x = float(greatest_multiple(work.sum(axis=0)[None], np.array([self._core.max()]))[0])
        costs = (work * np.power(x if 0 < x < np.inf else 1.0, np.arange(work.shape[1]))).sum(axis=1)
        whole = float(costs.sum())
        found: Parts = []
        begin = 0
        for count in parts((costs / whole * BATCH_S).tolist()) if whole > 0 else [len(group)]:
            found.append(group[begin : begin + count])
            begin += count
        return found

    def qualities(self, node_of: IntArray) -> FloatArray:
        """Returns the least multiple over all operators and chains for each assignment of (configurations, operators):
        (configurations,)."""
        worst = np.full(len(node_of), np.inf)
        if len(self._alone):
            worst = self._of_alone[np.arange(len(self._alone)), node_of[:, self._alone]].min(axis=1)
        places = [node_of[:, chain] for chain in self._chains]
        goes_on = [np.pad(one[:, 1:] == one[:, :-1], ((0, 0), (1, 1))) for one in places]
        for stretch, far in zip(self._stretches, self._of_stretch, strict=True):
            is_one = _is_one(goes_on[stretch.chain], stretch)
            worst[is_one] = np.minimum(worst[is_one], far[places[stretch.chain][is_one, stretch.first]])
        return worst

    def tasks(self, node_of: Sequence[int], point: int) -> Iterator[tuple[tuple[int, ...], float]]:
        """Yields the operators of each task, and its greatest multiple, at one target point of one assignment."""
        for group in groups_of(node_of, self._chains):
            for part in self._cut(point, group):
                total = self._work[point][list(part)].sum(axis=0)
                yield tuple(part), float(greatest_multiple(total[None, :], self._core[[node_of[part[0]]]])[0])


def groups_of(node_of: Sequence[int], chains: Iterable[Iterable[int]]) -> list[tuple[int, ...]]:
    """Returns the groups of operators that form one chain under an assignment; an operator that is alone is a group."""
    found: list[list[int]] = []
    seen: set[int] = set()
    for chain in chains:
        before: int | None = None
        for row in map(int, chain):
            if before is not None and node_of[row] == node_of[before]:
                found[-1].append(row)
            else:
                found.append([row])
            before = row
            seen.add(row)
    found += [[row] for row in range(len(node_of)) if row not in seen]
    return [tuple(group) for group in found]


def _is_one(goes_on: npt.NDArray[np.bool_], stretch: _Stretch) -> npt.NDArray[np.bool_]:
    """Tells in which assignments a stretch is on one node, and the operators before and behind it are not."""
    inside = np.asarray(goes_on[:, stretch.first + 1 : stretch.last + 1].all(axis=1))
    found: npt.NDArray[np.bool_] = inside & ~goes_on[:, stretch.first] & ~goes_on[:, stretch.last + 1]
    return found
