"""The stream of a story as real agents get it: a piece of the story, faster, with its statements and the answers that it must have."""

from typing import NamedTuple

import numpy as np

from sbon.dealing.replay import Trace
from sbon.types import FloatArray, IntArray
from sbon_testbed.cep.stories import INSTANCES

SPEED = 20
"""The stream is so many times as fast as in the paper, and rows cost as many times less."""
FLUSH = 2
"""Kind of the last row, which only lets all windows end."""


class Stream(NamedTuple):
    """Rows as they are sent; the last one has kind `FLUSH`."""

    at_us: IntArray
    """(rows,), microseconds since the beginning, faster than in the paper."""
    kind: IntArray
    within_us: int
    """Length of a window; a row at its very end is not in it."""

    @property
    def at_s(self) -> FloatArray:
        """Returns the instants at which rows are sent: that of the last one, which comes from the future, is that of the row before."""
        at_us = self.at_us.copy()
        at_us[-1] = at_us[-2]
        return at_us / 1e6

    @property
    def openings(self) -> IntArray:
        """Returns the numbers of the rows that open windows."""
        return np.flatnonzero(self.kind == 0)

    def lines(self, start_us: float) -> list[bytes]:
        """Returns the rows as lines of JSON, for a stream that begins at an instant in microseconds since 1970."""
        stamps = (int(start_us) + self.at_us).tolist()
        return [b'{"ts":%d,"id":%d,"kind":%d}\n' % row for row in zip(stamps, range(len(stamps)), self.kind.tolist(), strict=True)]


def piece_of(trace: Trace, seconds: float) -> Trace:
    """Returns the rows in the middle of a stream, over so many seconds; windows that open before are left out.

    Traffic is densest in its middle.
    """
    middle_s = float(trace.at_s[0] + trace.at_s[-1]) / 2
    begin_s = max(float(trace.at_s[0]), middle_s - seconds / 2)
    there = (trace.at_s >= begin_s) & (trace.at_s < begin_s + seconds)
    closes_s = trace.closes_s[there]
    return Trace(trace.at_s[there] - begin_s, trace.kind[there], np.where(closes_s > 0, closes_s - begin_s, 0.0))


def stream_of(trace: Trace) -> Stream:
    """Returns the rows of a trace as they are sent to agents.

    Examples
    --------
    >>> stream = stream_of(Trace(np.array([0.0, 2.0]), np.array([0, 1]), np.array([10.0, 0.0])))
    >>> stream.at_us.tolist(), stream.kind.tolist(), stream.within_us
    ([0, 100000, 1100004], [0, 1, 2], 500002)
    """
    # A row at the end of the scope is in the window, also if its instant is rounded up.
    within_us = round(trace.scope_s / SPEED * 1e6) + 2
    at_us = np.round(trace.at_s / SPEED * 1e6).astype(np.int64)
    last_us = at_us[-1] + 2 * within_us
    return Stream(np.append(at_us, last_us), np.append(trace.kind, FLUSH), within_us)


def expected(stream: Stream) -> dict[int, tuple[int, int]]:
    """Returns for each row that opens a window how many rows the window has, and the sum of their numbers."""
    sums = np.append(0, np.cumsum(np.arange(len(stream.at_us))))
    first = stream.openings
    end = np.searchsorted(stream.at_us, stream.at_us[first] + stream.within_us)
    return dict(zip(first.tolist(), zip((end - first).tolist(), (sums[end] - sums[first]).tolist(), strict=True), strict=True))


def source(node: str, port: int, rows_per_s: float) -> str:
    """Returns the statement that creates the source."""
    options = f"connector = 'tcp', nodes = '{node}', port = {port}, time_unit = 'us', estimated_rows_per_second = {rows_per_s:.1f}"
    return f"CREATE SOURCE story (ts TIMESTAMP, id BIGINT, kind BIGINT, WATERMARK FOR ts AS ts) WITH ({options})"


def sink(node: str, port: int, stream: Stream, bound_s: float) -> str:
    """Returns the statement that runs the query: a window opens with each row of kind 0, and its answer says which rows are in it.

    Parameters
    ----------
    port : port of the program that takes the answers
    bound_s : bound of an instance, faster than in the paper. It is half of `max_latency` (`docs/dealing.md`)
    """
    options = (
        f"connector = 'tcp', mode = 'connect', port = {port}, node = '{node}', dealing = 'window', instances = {INSTANCES}, "
        f"max_latency = '{2e6 * bound_s:.0f} microseconds'"
    )
    return f"""CREATE SINK answers WITH ({options}) AS
    SELECT opening, n, total FROM story MATCH_RECOGNIZE (
        ORDER BY ts, id
        MEASURES opening.id AS opening, COUNT(*) AS n, SUM(id) AS total
        ONE ROW PER MATCH AFTER MATCH SKIP TO NEXT ROW
        PATTERN (opening rest*) WITHIN INTERVAL '{stream.within_us} microseconds'
        DEFINE opening AS kind = 0) AS m"""
