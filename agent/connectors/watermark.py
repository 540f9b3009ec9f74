"""The watermark of a source: how far its event times have come."""

from __future__ import annotations

from sbon.query.plan import WATERMARK_END, WATERMARK_MIN, SourceParams

TIME_MAX_US = 253_402_300_799_999_999
"""The year 9999. A row from beyond it must not make every other row late."""


class Watermark:
    """Stays the declared delay behind the newest event time seen, and never goes back."""

    def __init__(self, params: SourceParams) -> None:
        self.us = WATERMARK_MIN
        self._delay_us = params.watermark_delay_us

    def seen(self, newest_us: int | None) -> int:
        """A batch with this newest event time (None: without any) has left."""
        self.us = max(self.us, self.after(newest_us))
        return self.us

    def after(self, newest_us: int | None) -> int:
        """Where a batch with this newest event time alone would bring it; callable from any thread."""
        if newest_us is None or newest_us > TIME_MAX_US:
            return WATERMARK_MIN
        return max(newest_us - self._delay_us, WATERMARK_MIN)

    def end(self) -> int:
        """Nothing will follow."""
        self.us = WATERMARK_END
        return self.us
