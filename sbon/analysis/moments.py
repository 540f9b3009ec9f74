"""Latencies between all nodes in each moment of a log, assembled from the agents' measurements.

A pair's latency in a moment is half of the least round trip that either measured then. Without a measurement, it is that of the pair's
last measured moment, if within an hour; else the coordinates' prediction; else it is unknown, and nothing is placed across it. The number
of pairs from each origin is counted.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

import numpy as np
import numpy.typing as npt
import polars as pl

from sbon.analysis.hindsight import Moment
from sbon.analysis.workbench import MOMENT
from sbon.types import FloatArray

REMEMBERED = timedelta(hours=1)
CHUNK = 16
"""Moments read at a time, which bounds the memory."""


class LatencyBook:
    """Iterates over a log's moments in order.

    Parameters
    ----------
    pairs : measured RTTs, with the columns moment, a, b, rtt_ms
    positions : coordinates, with the columns moment, agent, vector_ms, height_ms
    """

    def __init__(self, pairs: pl.LazyFrame, positions: pl.LazyFrame) -> None:
        self._pairs = pairs
        self._positions = positions
        names = pl.concat(
            [pairs.select("a").rename({"a": "n"}), pairs.select("b").rename({"b": "n"}), positions.select(pl.col("agent").alias("n"))]
        )
        self.names: list[str] = names.unique().collect()["n"].sort().to_list()
        self.row = {name: index for index, name in enumerate(self.names)}
        count = len(self.names)
        self._last_ms: FloatArray = np.full((count, count), np.inf)
        self._last_at = np.full((count, count), -np.inf)
        self.measured = self.remembered = self.predicted = self.unknown = 0
        """Number of pairs of present nodes by the origin of their latency, over all moments."""

    def moments(self, moments: Sequence[datetime]) -> Iterator[tuple[datetime, Moment]]:
        """Yields the latencies in each of these moments, which must be in order."""
        for begin in range(0, len(moments), CHUNK):
            chunk = moments[begin : begin + CHUNK]
            inside = pl.col(MOMENT).is_between(chunk[0], chunk[-1])
            pairs = (
                self._pairs.filter(inside)
                .select(MOMENT, self._row("a"), self._row("b"), "rtt_ms")
                .collect()
                .partition_by(MOMENT, as_dict=True)
            )
            positions = self._positions.filter(inside).collect().partition_by(MOMENT, as_dict=True)
            for moment in chunk:
                yield moment, self._at(moment, pairs.get((moment,)), positions.get((moment,)))

    def _row(self, column: str) -> pl.Expr:
        return pl.col(column).replace_strict(self.row, return_dtype=pl.Int64).alias(column)

    def _at(self, moment: datetime, pairs: pl.DataFrame | None, positions: pl.DataFrame | None) -> Moment:
        at_s = moment.timestamp()
        count = len(self.names)
        there = np.zeros(count, dtype=np.bool_)
        fresh = np.zeros((count, count), dtype=np.bool_)
        if pairs is not None:
            a, b = pairs["a"].to_numpy(), pairs["b"].to_numpy()
            for one, other in ((a, b), (b, a)):
                self._last_ms[one, other] = pairs["rtt_ms"].to_numpy()
                self._last_at[one, other] = at_s
                fresh[one, other] = True
                there[one] = True
        recent = self._last_at >= at_s - REMEMBERED.total_seconds()
        rtt = np.where(recent, self._last_ms, np.inf)
        guessed = self._by_coordinates(positions, there) if positions is not None else np.full_like(rtt, np.inf)
        use_guess = ~recent & np.isfinite(guessed)
        rtt[use_guess] = guessed[use_guess]
        rows = np.flatnonzero(there)
        self._count(fresh[np.ix_(rows, rows)], recent[np.ix_(rows, rows)], use_guess[np.ix_(rows, rows)])
        one_way = rtt[np.ix_(rows, rows)] / 2
        np.fill_diagonal(one_way, 0.0)
        return Moment({self.names[row]: index for index, row in enumerate(rows)}, one_way)

    def _by_coordinates(self, positions: pl.DataFrame, there: npt.NDArray[np.bool_]) -> FloatArray:
        """Returns predicted RTTs, (nodes, nodes); infinite without coordinates. Marks nodes with a coordinate as present."""
        count = len(self.names)
        dimensions = max(positions["vector_ms"].list.len().to_list(), default=0)
        same = positions.filter(pl.col("vector_ms").list.len() == dimensions)
        rows = [self.row[name] for name in same["agent"]]
        vectors = np.full((count, dimensions), np.nan)
        heights = np.full(count, np.nan)
        vectors[rows] = np.array(same["vector_ms"].to_list()).reshape(len(rows), dimensions)
        heights[rows] = same["height_ms"].to_numpy()
        there[rows] = True
        square = np.zeros((count, count))
        for axis in range(dimensions):
            square += (vectors[:, axis, None] - vectors[None, :, axis]) ** 2
        guessed = np.sqrt(square) + heights[:, None] + heights[None, :]
        return np.where(np.isfinite(guessed), guessed, np.inf)

    def _count(self, fresh: npt.NDArray[np.bool_], recent: npt.NDArray[np.bool_], guessed: npt.NDArray[np.bool_]) -> None:
        upper = np.triu(np.ones_like(fresh), 1)
        self.measured += int((fresh & upper).sum())
        self.remembered += int((recent & ~fresh & upper).sum())
        self.predicted += int((guessed & upper).sum())
        self.unknown += int((~recent & ~guessed & upper).sum())
