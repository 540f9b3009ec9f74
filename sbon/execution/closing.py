"""Splits the answers of an operator to a watermark into several quanta, so that other operators run in between while a large window closes.

The batch that brought the watermark counts as processed, because the operator has taken it in. The operator stays busy until its last
answer is out, so that it is neither copied nor moved in between; its watermark rises only then.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import polars as pl


class Quantum(NamedTuple):
    """Limits of one quantum, after which an operator lets others run."""

    seconds: float
    """Time since the task began."""
    rows: int
    """Rows that the operator has produced in the task."""


class Closing:
    """Answers to one watermark that are still to be computed.

    Parameters
    ----------
    steps : result of `Operator.advance_in_steps`
    watermark_us : the watermark that they answer
    rows : number of rows that were put off before, and that the answers work on
    """

    __slots__ = ("_steps", "done", "path", "rows", "stimulus_s", "watermark_us")

    def __init__(self, steps: "Iterator[Sequence[pl.DataFrame]]", watermark_us: int, rows: int = 0) -> None:
        self._steps = steps
        self.rows = rows
        self.watermark_us = watermark_us
        self.done = False
        """True once the last answer has been taken."""
        self.stimulus_s = 0.0
        """Stimulus time of the batch that brought the watermark: its answers are equally urgent."""
        self.path = 0
        """Path id of that batch."""

    def part(self, rows_max: int, is_over: Callable[[], bool]) -> "list[pl.DataFrame]":
        """Returns the answers of the next steps, at least one step, until `rows_max` rows are reached or the time is over."""
        given: list[pl.DataFrame] = []
        rows = 0
        for frames in self._steps:
            given += frames
            rows += sum(frame.height for frame in frames)
            if rows >= rows_max or is_over():
                return given
        self.done = True
        return given
