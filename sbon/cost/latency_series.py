"""Predicts the latency of a placed query's answers over time, where the arrivals of its source are known: the paper's series (Mace,
section VIII.2), and the bounds of each interval."""

import msgspec
import numpy as np

from sbon.cost.figure import Edge
from sbon.cost.latency_case import BURST_S, Case, expected_case
from sbon.cost.latency_prediction import drawn_answers
from sbon.cost.load import add_by_node
from sbon.cost.placed_query import BurstDetail, PlacedQuery, begin_s_of
from sbon.errors import ShapeError
from sbon.types import FloatArray


class LatencySeries(msgspec.Struct, frozen=True, kw_only=True):
    """Latency of the latest answer of each interval of the arrivals, in seconds. All arrays are (intervals,)."""

    width_s: float
    latest_s: FloatArray
    """As expected; 0 where no answer is expected."""
    mace_s: FloatArray
    """Greatest backlog of a node or link, with expected figures: the paper's metric."""
    lower_s: FloatArray
    """The same with the least figures."""
    upper_s: FloatArray
    """No answer of the interval is later."""
    load_s: FloatArray
    """Work of the query's operators on the busiest node, in seconds of one of its cores."""
    free_s: FloatArray
    """Seconds of a core that are expected to be free for it there."""
    epsilon_s: float
    """A batch of each operator: the paper's theorem 2 bounds an answer by Mace, an interval and this."""

    def by(self, width_s: float) -> "LatencySeries":
        """Returns the greatest values of wider intervals; the last one may be shorter.

        Raises
        ------
        ShapeError
            The width is no multiple of the present one.
        """
        each = round(width_s / self.width_s)
        if each < 1 or abs(each * self.width_s - width_s) > 1e-9:
            raise ShapeError(f"intervals of {width_s:g} s, expected a multiple of {self.width_s:g} s")
        starts = np.arange(0, len(self.latest_s), each)
        most = (np.maximum.reduceat(one, starts) for one in (self.latest_s, self.mace_s, self.lower_s, self.upper_s))
        latest, mace, lower, upper = most
        load, free = (np.add.reduceat(one, starts) for one in (self.load_s, self.free_s))
        return LatencySeries(
            width_s=width_s,
            latest_s=latest,
            mace_s=mace,
            lower_s=lower,
            upper_s=upper,
            load_s=load,
            free_s=free,
            epsilon_s=self.epsilon_s,
        )


def covering(query: PlacedQuery) -> PlacedQuery:
    """Returns the query with a prediction that covers all of its arrivals, wherever their greatest burst is."""
    intervals = 2 * max(len(one.rows) for one in query.arrivals.values()) + 2
    return msgspec.structs.replace(query, detail=BurstDetail(intervals=intervals, draws=query.detail.draws))


def predicted_series(query: PlacedQuery) -> LatencySeries:
    """Returns the latency over the known arrivals of the query's only source.

    Raises
    ------
    ShapeError
        The arrivals are of several sources, which the model moves so that their bursts coincide; of none; or of other intervals than
        quarters of a second.
    """
    if len(query.arrivals) != 1:
        raise ShapeError(f"arrivals of {len(query.arrivals)} sources, expected those of one")
    (arrivals,) = query.arrivals.values()
    if arrivals.width_s != BURST_S:
        raise ShapeError(f"arrivals by {arrivals.width_s:g} s, expected {BURST_S:g} s")
    whole, count = covering(query), len(arrivals.rows)
    intervals = whole.detail.intervals

    def there(values: FloatArray) -> FloatArray:
        """Returns the greatest value in each interval of the arrivals; the walk begins before the first."""
        parts = len(values) // intervals
        width_s = BURST_S / parts
        first = round(-begin_s_of(arrivals, len(values), width_s) / width_s)
        found: FloatArray = values[first : first + count * parts].reshape(count, parts).max(axis=1)
        return found

    likely, _ = drawn_answers(whole, expected_case(whole))
    expected, least, most = (Case(whole, edge, BURST_S, intervals) for edge in (Edge.EXPECTED, Edge.LOW, Edge.HIGH))
    load, free = _of_busiest(expected)
    return LatencySeries(
        width_s=BURST_S,
        latest_s=np.where(arrivals.rows > 0, there(likely.likely_s), 0.0),
        mace_s=there(expected.mace_over_time_s()),
        lower_s=there(least.mace_over_time_s()),
        upper_s=there(most.upper_over_time_s()),
        load_s=there(load),
        free_s=there(free),
        epsilon_s=expected.epsilon_s(),
    )


def _of_busiest(case: Case) -> tuple[FloatArray, FloatArray]:
    """Returns the work of the operators on the busiest node, and the capacity there, in seconds of a core: (intervals,) each."""
    count, speed = len(case.names), case.nodes.capacity_per_s
    load_s = np.zeros((len(speed), case.work.shape[1]))
    add_by_node(load_s, case.work / speed[case.node_of][:, None], case.node_of)
    free_s = case.nodes.per_interval(case.width_s, case.work.shape[1]) / speed[:, None]
    busiest = int(np.argmax(load_s[:count].sum(axis=1) / free_s[:count].sum(axis=1)))
    return load_s[busiest], free_s[busiest]
