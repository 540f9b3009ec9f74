"""Watermarks before the first row and after the last."""

WATERMARK_MIN = -(2**62)
"""Watermark before the first row; it promises nothing."""
WATERMARK_END = 2**62
"""Watermark after the last row: the stream has ended."""
