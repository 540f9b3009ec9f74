"""Watermarks before the first row and after the last, and the event times that a watermark bounds."""

from sbon.query.params.kinds import Params
from sbon.query.params.source import SourceParams

WATERMARK_MIN = -(2**62)
"""Watermark before the first row; it promises nothing."""
WATERMARK_END = 2**62
"""Watermark after the last row: the stream has ended."""


def newest_us(params: Params, watermark_us: int) -> int:
    """Returns an event time that no row has exceeded which a source has given up to a watermark.

    Examples
    --------
    >>> source = SourceParams("s", "file", (), (), "ts", watermark_delay_us=5)
    >>> newest_us(source, 100), newest_us(source, WATERMARK_MIN) == WATERMARK_MIN, newest_us(source, WATERMARK_END) == WATERMARK_END
    (105, True, True)
    """
    if not isinstance(params, SourceParams) or not WATERMARK_MIN < watermark_us < WATERMARK_END:
        return watermark_us
    return min(watermark_us + params.watermark_delay_us, WATERMARK_END)
