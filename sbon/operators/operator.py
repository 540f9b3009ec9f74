"""The interface of operators to the engine that runs them.

An operator is a plain object without threads, clocks or I/O. The engine calls it with one batch at a time (with several only if it is
`effect_free`), on whichever thread is free. Its output depends on its input alone: a restored snapshot continues exactly, and a copy with
the same input reaches the same state. Migrations rely on this.
"""

import abc
import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Self

import polars as pl

from sbon.errors import RemoteProtocolError
from sbon.misfits import Misfits
from sbon.operators.snapshots import Head, Parts, pack, unpack
from sbon.operators.values import Values
from sbon.schema import Schema
from sbon.watermarks import WATERMARK_MIN


class Operator(abc.ABC):
    """Takes frames and watermarks, returns frames.

    Frames are eager `polars.DataFrame`s in the plan's schema and column order; empty ones are never passed in and need not be returned.
    """

    late_rows: int = 0
    """Rows that came behind the watermark and were dropped, since the operator was created; part of the snapshot."""

    untimed_rows: int = 0
    """Rows among them that had no event time, as far as known: counted since the operator came to this host."""

    misfits: Misfits | None = None
    """Rows that the operator could not use, and why, since it came to this host; None for a kind of operator that uses all rows."""

    spread: int = 1
    """Output rows that one input row may give. If this is large, the operator gets few rows at a time."""

    effect_free: bool = False
    """`process` changes no state and `advance` gives no output. So `process` may be called on several threads at the same time, for batches
    in any order.
    """

    deals: bool = False
    """`process` gives one frame for each part of its output (`sbon.query.plan.Part`), in order, even if it is empty."""

    noted: str | None = None
    """If it deals: a text column with a note for the consumer in the first row of each frame, or NULL."""

    @abc.abstractmethod
    def process(self, port: int, frame: pl.DataFrame) -> Sequence[pl.DataFrame]:
        """Takes rows of one input port and returns output frames."""

    def of_values(self, schema: Schema) -> Callable[[Values], Values] | None:
        """Returns a function equivalent to `process` for a few rows of this schema as plain values; None if there is none.

        Only an operator with one input, without state and without output at watermarks may have such a function, because `process` may be
        called for the next batch, or for the same batch on another host.
        """
        return None

    def advance(self, watermark_us: int) -> Sequence[pl.DataFrame]:
        """Takes the promise that no input port will bring a row with an event time below `watermark_us`; returns output frames."""
        return [frame for frames in self.advance_in_steps(watermark_us) for frame in frames]

    def advance_in_steps(self, watermark_us: int) -> Iterable[Sequence[pl.DataFrame]]:
        """Does the work of `advance` in steps of a few milliseconds; each step gives the frames that it has made, if any.

        No other method may be called before the last step is done. A sequence means that nothing is left to compute. Long work is returned
        as an iterator, which computes a step at each call of `next`. The steps and their frames depend on the input alone.
        """
        return ()

    def output_watermark(self, watermark_us: int) -> int:
        """Returns the output watermark after `advance(watermark_us)`: no later row will have an event time below it."""
        return watermark_us

    def parts(self) -> Parts | None:
        """Returns the whole state as a head and frames; None for an operator without state, or one that overrides `snapshot` and
        `restore`."""
        return None

    def pieces(self) -> tuple[Head, Iterator[tuple[str, pl.DataFrame]]] | None:
        """Returns the state as `parts` does, but each frame in one or several pieces, so that the whole state need not be in memory."""
        parts = self.parts()
        return None if parts is None else (parts.head, iter(parts.frames.items()))

    def adopting(self, head: Head) -> Callable[[str, pl.DataFrame], None] | None:
        """Returns a function that takes the frames of a state a piece at a time; None if `adopt` must get whole frames.

        Raises
        ------
        RemoteProtocolError
            As from `adopt`; from the returned function, too.
        """
        return None

    def adopt(self, parts: Parts) -> None:
        """Continues from the parts of an operator with equal parameters.

        Raises
        ------
        RemoteProtocolError
            The parts are not the state of such an operator.
        """
        raise RemoteProtocolError(f"state for {type(self).__name__}, which keeps none")

    def snapshot(self) -> bytes:
        """Returns the whole state as bytes for `restore` of an operator with equal parameters. Never pickled."""
        parts = self.parts()
        return b"" if parts is None else pack(parts)

    def restore(self, state: bytes) -> None:
        """Continues from a snapshot.

        Raises
        ------
        RemoteProtocolError
            The bytes are not such a snapshot.
        """
        if state or not self.is_stateless:
            self.adopt(unpack(state))

    def fork(self) -> Self:
        """Returns an operator in the same state. One of the two may continue while the other's state is read, on any threads.

        Frames are immutable and shared, so the cost depends on the size of the other state, not on the number of rows.
        """
        return copy.deepcopy(self)

    def begins_again(self) -> None:
        """Learns that it was made again, empty, because its former copy was lost in a crash."""

    @property
    def is_stateless(self) -> bool:
        """Tells whether the operator never keeps anything between calls, so that there is nothing to copy."""
        kind = type(self)
        return kind.parts is Operator.parts and kind.snapshot is Operator.snapshot

    def rows_ahead(self) -> Sequence[int]:
        """Returns the number of rows kept of each input port, if it depends on how far another port is behind; the engine may hold back
        such a port.

        Empty if there is no such dependence, or if holding back one port could hold back another port as well.
        """
        return ()

    @property
    def state_rows(self) -> int:
        """Returns the number of rows kept between calls."""
        return 0


__all__ = ["WATERMARK_MIN", "Operator"]
