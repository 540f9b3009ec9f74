"""What every operator offers to the engine that runs it.

An operator is a plain object without threads, clocks or I/O. The engine calls it with one batch at a time, never twice at once, on
whichever thread is free. What it returns depends on its input alone, so that a restored snapshot continues exactly.
"""

import abc
from collections.abc import Sequence

import polars as pl

from sbon.query.plan import WATERMARK_MIN


class Operator(abc.ABC):
    """Takes frames and watermarks, returns frames.

    Frames are eager `polars.DataFrame`s in the plan's schema and column order; empty ones are never passed in and need not be returned.
    """

    late_rows: int = 0
    """Rows that came behind the watermark and were left out, since the operator was made; part of the snapshot."""

    @abc.abstractmethod
    def process(self, port: int, frame: pl.DataFrame) -> Sequence[pl.DataFrame]:
        """Take rows of one input port."""

    def advance(self, watermark_us: int) -> Sequence[pl.DataFrame]:
        """Take the promise that no input port will bring a row with an event time below `watermark_us`."""
        return ()

    def output_watermark(self, watermark_us: int) -> int:
        """What holds for the output after `advance(watermark_us)`: no later row will have an event time below this."""
        return watermark_us

    def snapshot(self) -> bytes:
        """The whole state, as bytes that `restore` of an operator with equal parameters takes. Never pickled."""
        return b""

    def restore(self, state: bytes) -> None:
        """Continue from a snapshot.

        Raises
        ------
        RemoteProtocolError
            The bytes are not such a snapshot.
        """

    @property
    def state_rows(self) -> int:
        """Rows kept between calls."""
        return 0


__all__ = ["WATERMARK_MIN", "Operator"]
