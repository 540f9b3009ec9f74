"""What every operator offers to the engine that runs it.

An operator is a plain object without threads, clocks or I/O. The engine calls it with one batch at a time, never twice at once, on
whichever thread is free. What it returns depends on its input alone: a restored snapshot continues exactly, and a copy that is given the
same input comes to the same state. Migrations rely on it.
"""

import abc
import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Self

import polars as pl

from sbon.errors import RemoteProtocolError
from sbon.operators.snapshots import Parts, pack, unpack
from sbon.operators.values import Values
from sbon.query.plan import WATERMARK_MIN
from sbon.query.schema import Schema


class Operator(abc.ABC):
    """Takes frames and watermarks, returns frames.

    Frames are eager `polars.DataFrame`s in the plan's schema and column order; empty ones are never passed in and need not be returned.
    """

    late_rows: int = 0
    """Rows that came behind the watermark and were left out, since the operator was made; part of the snapshot."""

    spread: int = 1
    """Rows that it may give for one row that it takes; where these are many, it is given few rows at a time."""

    @abc.abstractmethod
    def process(self, port: int, frame: pl.DataFrame) -> Sequence[pl.DataFrame]:
        """Take rows of one input port."""

    def of_values(self, schema: Schema) -> Callable[[Values], Values] | None:
        """What does the same as `process` with a few rows as plain values, for rows of this schema; None: nothing does.

        Only an operator with one input, without state and without an answer to a watermark may have it: `process` may be called for the
        next batch, or for this one on another host.
        """
        return None

    def advance(self, watermark_us: int) -> Sequence[pl.DataFrame]:
        """Take the promise that no input port will bring a row with an event time below `watermark_us`."""
        return [frame for frames in self.advance_in_steps(watermark_us) for frame in frames]

    def advance_in_steps(self, watermark_us: int) -> Iterable[Sequence[pl.DataFrame]]:
        """Do what `advance` does, a few milliseconds' work at a time: each step gives the frames that it has made, if any.

        Until the last step is done, nothing else may be asked of the operator, as it is in the midst of it. A sequence says that nothing is
        left to compute; what takes long is an iterator, which works when it is asked for the next step. Where steps begin and end
        depends on the input alone, as their answers do.
        """
        return ()

    def output_watermark(self, watermark_us: int) -> int:
        """What holds for the output after `advance(watermark_us)`: no later row will have an event time below this."""
        return watermark_us

    def parts(self) -> Parts | None:
        """The whole state as a head and frames; None for an operator without state, or one that overrides `snapshot` and `restore`."""
        return None

    def adopt(self, parts: Parts) -> None:
        """Continue from the parts of an operator with equal parameters.

        Raises
        ------
        RemoteProtocolError
            They are not such a state.
        """
        raise RemoteProtocolError(f"state for {type(self).__name__}, which keeps none")

    def snapshot(self) -> bytes:
        """The whole state, as bytes that `restore` of an operator with equal parameters takes. Never pickled."""
        parts = self.parts()
        return b"" if parts is None else pack(parts)

    def restore(self, state: bytes) -> None:
        """Continue from a snapshot.

        Raises
        ------
        RemoteProtocolError
            The bytes are not such a snapshot.
        """
        if state or not self.is_stateless:
            self.adopt(unpack(state))

    def fork(self) -> Self:
        """An operator in the same state: one of the two may go on while the other's state is read, on any threads.

        Frames are immutable and shared, so that it costs the more the more of other state there is, not the more rows.
        """
        return copy.deepcopy(self)

    @property
    def is_stateless(self) -> bool:
        """It keeps nothing between calls, whatever it is given: there is nothing to copy."""
        kind = type(self)
        return kind.parts is Operator.parts and kind.snapshot is Operator.snapshot

    def rows_ahead(self) -> Sequence[int]:
        """Rows kept of each input port, if what is kept of one depends on how far another is behind it: such a port may be held back.

        Empty where it does not, or where holding one port back could hold back another, too.
        """
        return ()

    @property
    def state_rows(self) -> int:
        """Rows kept between calls."""
        return 0


__all__ = ["WATERMARK_MIN", "Operator"]
