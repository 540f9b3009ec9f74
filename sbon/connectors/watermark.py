"""The watermark of a source: how far its event times have come. All sources with event times use it."""

from __future__ import annotations

from sbon.query.params.source import SourceParams
from sbon.watermarks import WATERMARK_END, WATERMARK_MIN

TIME_MAX_US = 253_402_300_799_999_999
"""End of the year 9999, in microseconds. A later row must not make every other row late."""


class Watermark:
    """Watermark that stays the declared delay behind the newest event time, and never goes back."""

    def __init__(self, params: SourceParams) -> None:
        self.us = WATERMARK_MIN
        self._delay_us = params.watermark_delay_us

    def seen(self, newest_us: int | None) -> int:
        """Advances after a batch with this newest event time (None: without any); returns the watermark."""
        self.us = max(self.us, self.after(newest_us))
        return self.us

    def after(self, newest_us: int | None) -> int:
        """Returns the watermark that a batch with this newest event time would give by itself; callable from any thread."""
        if newest_us is None or newest_us > TIME_MAX_US:
            return WATERMARK_MIN
        return max(newest_us - self._delay_us, WATERMARK_MIN)

    def end(self) -> int:
        """Moves to the end: nothing will follow."""
        self.us = WATERMARK_END
        return self.us
