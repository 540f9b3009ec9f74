"""What an operator has still to give for a watermark: a large window is closed over several quanta, and others run in between.

The batch that brought the watermark counts as processed, for the operator has taken it in; but the operator stays busy until its last
answer is out, so that nobody copies or moves it in the midst of this, and its watermark does not rise before.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import polars as pl


class Quantum(NamedTuple):
    """When an operator that has much to give should let others run."""

    seconds: float
    """Since the task began."""
    rows: int
    """That it has given in it."""


class Closing:
    """Answers to one watermark that are yet to be computed.

    Parameters
    ----------
    steps : of `Operator.advance_in_steps`
    watermark_us : which they answer
    """

    __slots__ = ("_steps", "done", "path", "stimulus_s", "watermark_us")

    def __init__(self, steps: "Iterator[Sequence[pl.DataFrame]]", watermark_us: int) -> None:
        self._steps = steps
        self.watermark_us = watermark_us
        self.done = False
        """The last answer has been taken."""
        self.stimulus_s = 0.0
        """Of the batch that brought the watermark: the rest is as urgent."""
        self.path = 0
        """By which that came."""

    def part(self, rows_max: int, is_over: Callable[[], bool]) -> "list[pl.DataFrame]":
        """The answers of the next steps, at least one, until there are so many rows or the time is over."""
        given: list[pl.DataFrame] = []
        rows = 0
        for frames in self._steps:
            given += frames
            rows += sum(frame.height for frame in frames)
            if rows >= rows_max or is_over():
                return given
        self.done = True
        return given
