"""Lets a source fall silent without holding up windows and joins downstream: the option `idle_after` of CREATE SOURCE.

A watermark follows the rows. Without rows it stands still, and every window and join downstream waits. After `idle_after` without a row,
and until the next row, the watermark follows the wall clock, at a distance of `idle_after` plus the source's declared delay. Rows whose
event time is that of their arrival, or behind it by no more than this distance, are in time; older rows are late, and counted as usual.
Downstream operators need not know: the watermark is part of the source's stream, as always, so it is the same for all readers, also after
moves and resends. The wall clock says nothing about replayed rows of the past, so files are refused.

A source that waits for room downstream is not idle: that time does not count.
"""

from __future__ import annotations

from sbon.connectors.interface import Polled, SourceConnector
from sbon.connectors.watermark import TIME_MAX_US
from sbon.connectors.wrapped import WrappedSource
from sbon.query.params.source import SourceParams
from sbon.watermarks import WATERMARK_MIN

ADVANCE_S = 1.0
"""Longest pause between moves of an idle source's watermark, in seconds; the pause is at most `idle_after`. Shorter: windows close sooner,
more messages."""


class IdleSource(WrappedSource):
    """Wraps a source that has the option `idle_after`."""

    def __init__(self, source: SourceConnector, params: SourceParams) -> None:
        super().__init__(source)
        self._idle_us = params.idle_after_us
        self._delay_us = params.watermark_delay_us
        self._advance_s = min(ADVANCE_S, self._idle_us / 1e6)
        self._us = WATERMARK_MIN
        self._since: float | None = None
        self._expected_at = float("inf")

    def poll(self, now: float, wall: float) -> Polled:
        """Polls the wrapped source. The watermark advances even if the source gives no rows."""
        polled = super().poll(now, wall)
        if polled.finished:
            return polled
        self._us = max(self._us, polled.watermark_us)
        if polled.rows or self._since is None or now > self._expected_at + ADVANCE_S:
            self._since = now
        if (now - self._since) * 1e6 >= self._idle_us:
            self._us = max(self._us, min(round(wall * 1e6) - self._idle_us - self._delay_us, TIME_MAX_US))
        next_poll = self._next_poll(polled, now)
        self._expected_at = max(next_poll, now)
        return polled._replace(watermark_us=self._us, next_poll=next_poll)

    def _next_poll(self, polled: Polled, now: float) -> float:
        """Returns the time of the next poll, no later than the watermark's next move."""
        assert self._since is not None
        own = max(now + self._advance_s, self._since + self._idle_us / 1e6)
        return own if polled.next_poll is None else min(own, polled.next_poll)
