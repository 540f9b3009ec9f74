"""Keeps the sources of a host in step if their rows meet in a join. `sbon.engine.polling` uses it.

A join keeps the rows of the input that is ahead in event time until the other input has caught up. The more it keeps, the more each of its
batches costs. After a moment in which nothing was processed (the machine was busy, a consumer gave no credit), all sources have rows
waiting. If they just took turns, those with little work behind them would catch up first, and the join would keep their rows. A query that
uses most of a core would then need more than it, and would never catch up.

So while a source has rows waiting, those that its rows are joined with go at most `STEP_S` ahead of it. One that is further ahead gets its
turns later, and gives few rows. The newest event times are compared, not the watermarks: a source whose rows may come in disorder has its
watermark behind them for good, and is not behind because of that.

Rows that come from other hosts are kept in step by the joins (`sbon.engine.alignment`).
"""

from collections.abc import Callable, Iterable

from sbon.execution.instance import Instance
from sbon.execution.life import State
from sbon.query.params.source import newest_us

STEP_S = 0.1
"""Event time, in seconds, by which a source may go ahead of another one. Longer: larger batches. Shorter: fewer rows wait in the join."""
LEAD_S_MAX = 1.0
"""Most seconds by which a turn is put off. Longer: a source that is ahead takes less of a busy machine. Shorter: its rows wait less if they
have other uses than the join."""
ROWS_AHEAD = 8192
"""Rows that a source may give in any turn, however far it is ahead: it never stops for good because another one does, and batches of
sources with few rows in a second of event time stay large enough. More: larger batches, more rows wait in the join."""


class _Course:
    """The density of a source's rows in event time, measured between two polls at least half of `STEP_S` apart."""

    __slots__ = ("_at_us", "_rows", "rows_per_s")

    def __init__(self, source: Instance) -> None:
        self._at_us, self._rows = source.watermark_out_us, source.figures.rows_out
        self.rows_per_s = float("inf")

    def polled(self, source: Instance) -> None:
        """Measures again if event time has advanced far enough."""
        took_s = (source.watermark_out_us - self._at_us) / 1e6
        if took_s >= STEP_S / 2:
            self.rows_per_s = (source.figures.rows_out - self._rows) / took_s
            self._at_us, self._rows = source.watermark_out_us, source.figures.rows_out


class Leads:
    """The sources of this host that had more rows than they gave.

    Parameters
    ----------
    joins : returns the joins on this host that the rows of a source reach
    """

    def __init__(self, joins: Callable[[Instance], Iterable[Instance]]) -> None:
        self._joins = joins
        self._waiting: dict[Instance, _Course] = {}

    def polled(self, source: Instance) -> None:
        """Notes whether a source has more rows (`polls.has_more`) after a poll."""
        if not source.polls.has_more:
            self._waiting.pop(source, None)
        elif (course := self._waiting.get(source)) is not None:
            course.polled(source)
        else:
            self._waiting[source] = _Course(source)

    def put_off_s(self, source: Instance) -> float:
        """Returns by how many seconds the next turn of a source is put off, at most `LEAD_S_MAX`; 0 if it is not ahead."""
        behind_us = self._behind_us(source)
        return 0.0 if behind_us is None else min(LEAD_S_MAX, (_newest_us(source) - behind_us) / 1e6)

    def rows_max(self, source: Instance, rows: int) -> int:
        """Returns how many of these rows a source may give in its turn."""
        behind_us = self._behind_us(source)
        if behind_us is None:
            return rows
        left_s = STEP_S - (_newest_us(source) - behind_us) / 1e6
        if left_s <= 0:
            return min(rows, ROWS_AHEAD)
        course = self._waiting.get(source)
        return rows if course is None else int(min(rows, max(ROWS_AHEAD, course.rows_per_s * left_s)))

    def _behind_us(self, source: Instance) -> int | None:
        """Returns the newest event time of the source furthest behind, of those with rows waiting; None if a source is ahead of none."""
        found_us: int | None = None
        joins: set[Instance] | None = None
        for other in [one for one in self._waiting if one is not source]:
            if other.state is not State.RUNNING:
                del self._waiting[other]
                continue
            other_us = _newest_us(other)
            if other_us >= (_newest_us(source) if found_us is None else found_us):
                continue
            joins = set(self._joins(source)) if joins is None else joins
            if joins and not joins.isdisjoint(self._joins(other)):
                found_us = other_us
        return found_us


def _newest_us(source: Instance) -> int:
    """Returns an event time, in microseconds, that no row exceeds which the source has given."""
    return newest_us(source.spec.params, source.watermark_out_us)
