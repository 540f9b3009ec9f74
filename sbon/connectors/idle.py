"""A source that may fall silent without holding up windows and joins behind it: the option `idle_after` of CREATE SOURCE.

A watermark follows the rows; without rows it stands still, and every window and join behind it waits. After `idle_after` without a row, and
until the next one, it follows the wall clock, at a distance of `idle_after` plus the source's declared delay. Rows that then carry the time
of their arrival, or are only that much out of order, are in time; older ones are late, and counted like any others. Nothing downstream has
to know: the source's own stream says how far its event time has come, as always, and so it is the same for all readers, whatever moves or
is sent again. For replayed rows of the past the wall clock means nothing; files are refused.

A source that waits for room downstream is not idle: that time does not count.
"""

from __future__ import annotations

from sbon.connectors.interface import Polled, SourceConnector
from sbon.connectors.watermark import TIME_MAX_US
from sbon.connectors.wrapped import WrappedSource
from sbon.query.params.source import SourceParams
from sbon.watermarks import WATERMARK_MIN

ADVANCE_S = 1.0
"""Longest pause between moves of an idle source's watermark, in seconds; it is no longer than `idle_after`. Shorter: windows close sooner,
more messages."""


class IdleSource(WrappedSource):
    """Another source, with the option `idle_after`."""

    def __init__(self, source: SourceConnector, params: SourceParams) -> None:
        super().__init__(source)
        self._idle_us = params.idle_after_us
        self._delay_us = params.watermark_delay_us
        self._advance_s = min(ADVANCE_S, self._idle_us / 1e6)
        self._us = WATERMARK_MIN
        self._since: float | None = None
        self._expected_at = float("inf")

    def poll(self, now: float, wall: float) -> Polled:
        """Returns what the other source gives, with a watermark that continues without it."""
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
