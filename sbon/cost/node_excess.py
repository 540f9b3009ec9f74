"""Computes how far nodes and links are behind at the end of each interval: the excess, and Mace, the greatest excess.

Source: Mace, definition 9.
"""

import msgspec
import numpy as np

from sbon.cost.excess import WorkClock, cumulative_excess
from sbon.cost.load import add_by_node
from sbon.errors import ShapeError
from sbon.types import FloatArray, IntArray


class Nodes(msgspec.Struct, frozen=True):
    """Capacities of nodes and links."""

    capacity_per_s: FloatArray
    """(nodes,): work per second of one core, or bytes per second of a link; above 0."""
    cores: IntArray
    """(nodes,): operators that run at once; 1 for a link."""
    left: FloatArray | None = None
    """(nodes, intervals): share of the capacity that other programs leave, 0 to 1; all of it if left out."""

    def per_interval(self, width_s: float, intervals: int) -> FloatArray:
        """Returns the work that all cores of each node can do in each interval: (nodes, intervals)."""
        whole = np.repeat((self.capacity_per_s * self.cores * width_s)[:, None], intervals, axis=1)
        return whole if self.left is None else whole * self.left

    def of_one_core(self, width_s: float, intervals: int) -> FloatArray:
        """Returns the work that one operator can do in each interval: (nodes, intervals)."""
        one = np.repeat((self.capacity_per_s * width_s)[:, None], intervals, axis=1)
        return one if self.left is None else one * np.minimum(1.0, self.left * self.cores[:, None])


def excess_s(work: FloatArray, node_of: IntArray, nodes: Nodes, width_s: float) -> FloatArray:
    """Returns how far each node is behind at the end of each interval.

    A node of c cores is behind by the greater of two: all its load at c cores, and the load of one operator at one core, since an operator
    never runs twice at once.

    Parameters
    ----------
    work : (operators, intervals)
    node_of : (operators,)
    width_s : width of an interval

    Returns
    -------
    FloatArray
        (nodes, intervals), s; infinite where work is left and the capacity stays 0.

    Raises
    ------
    ShapeError
        The shapes do not fit.

    Source
    ------
    Mace, definitions 6, 8 and 9, section X.

    Examples
    --------
    >>> two = Nodes(np.array([1.0, 1.0]), np.array([1, 2]))
    >>> excess_s(np.array([[3.0, 1.0], [3.0, 1.0], [2.0, 0.0]]), np.array([0, 1, 1]), two, 2.0)
    array([[1., 0.],
           [1., 0.]])
    """
    check_shapes(work, node_of, nodes, width_s)
    count, intervals = len(nodes.cores), work.shape[1]
    of_nodes = np.zeros((count, intervals))
    add_by_node(of_nodes, work, node_of)
    ends_s = width_s * np.arange(1, intervals + 1)
    found = in_seconds(cumulative_excess(of_nodes, nodes.per_interval(width_s, intervals)), nodes, width_s, ends_s, whole=True)
    several = np.flatnonzero(nodes.cores[node_of] > 1)
    if several.size:
        single = nodes.of_one_core(width_s, intervals)[node_of[several]]
        one = in_seconds(cumulative_excess(work[several], single), nodes, width_s, ends_s, whole=False, node_of=node_of[several])
        np.maximum.at(found, node_of[several], one)
    return found


def mace(excess: FloatArray) -> FloatArray:
    """Returns the greatest excess of any node in each interval.

    Parameters
    ----------
    excess : (nodes, intervals), s

    Source
    ------
    Mace, definition 9.

    Examples
    --------
    >>> mace(np.array([[1.0, 2.0], [0.0, 5.0]])).tolist(), float(mace(np.array([[1.0, 2.0], [0.0, 5.0]])).max())
    ([1.0, 5.0], 5.0)
    """
    found: FloatArray = excess.max(axis=0)
    return found


def in_seconds(
    excess: FloatArray, nodes: Nodes, width_s: float, ends_s: FloatArray, *, whole: bool, node_of: IntArray | None = None
) -> FloatArray:
    """Returns the time in s that the excess of each row takes from the end of each interval, on all cores of its node or on one."""
    node_of = np.arange(len(nodes.cores)) if node_of is None else node_of
    if nodes.left is None:
        speed = nodes.capacity_per_s * (nodes.cores if whole else 1)
        found: FloatArray = excess / speed[node_of][:, None]
        return found
    per_interval = nodes.per_interval(width_s, len(ends_s)) if whole else nodes.of_one_core(width_s, len(ends_s))
    found = np.empty_like(excess)
    for row, node in enumerate(node_of):
        clock = WorkClock(per_interval[node] / width_s, width_s)
        found[row] = np.where(excess[row] > 0, clock.instant_of(clock.work_by(ends_s) + excess[row]) - ends_s, 0.0)
    return found


def check_shapes(work: FloatArray, node_of: IntArray, nodes: Nodes, width_s: float) -> None:
    """Checks arrays that belong together.

    Parameters
    ----------
    work : seconds of work, (operators, intervals)
    node_of : the node of each operator, (operators,)
    width_s : width of an interval, in seconds

    Raises
    ------
    ShapeError
        They do not fit each other, or a capacity or the width is not above 0.
    """
    count = len(nodes.cores)
    if work.ndim != 2 or 0 in work.shape or node_of.shape != work.shape[:1]:
        raise ShapeError(f"work {work.shape}, nodes of operators {node_of.shape}, expected (operators, intervals) and (operators,)")
    if not (node_of.min() >= 0 and node_of.max() < count) or nodes.capacity_per_s.shape != (count,):
        raise ShapeError(f"operators on nodes {node_of.min()} to {node_of.max()}, capacities {nodes.capacity_per_s.shape}, {count} nodes")
    if nodes.left is not None and nodes.left.shape != (count, work.shape[1]):
        raise ShapeError(f"capacity that is left {nodes.left.shape}, expected {(count, work.shape[1])}")
    if not (0 < width_s < np.inf and (nodes.capacity_per_s > 0).all() and (nodes.cores >= 1).all()):
        raise ShapeError(f"width {width_s} s, expected above 0, as all capacities, and cores of 1 or more")
