"""Base of operators whose rows wait until the watermark has passed them, so that their order of arrival does not matter.

A snapshot has the columns of the input, the waiting rows, and the operator's further state.
"""

import abc
from collections.abc import Sequence
from typing import Generic, TypeVar

import polars as pl

from sbon.errors import RemoteProtocolError
from sbon.operators.frames import computed
from sbon.operators.operator import Operator
from sbon.operators.pairing import in_time
from sbon.operators.partials import TIME
from sbon.operators.snapshots import Parts, opened, parts_of
from sbon.operators.waiting import Waiting
from sbon.query.params.kinds import Params
from sbon.watermarks import WATERMARK_MIN

_INPUT, _WAITING = "input", "waiting"


P = TypeVar("P", bound=Params)


class PatientOperator(Operator, Generic[P]):
    """Keeps rows until the watermark has passed them. A row behind it, or without an event time, is late."""

    _time = TIME
    """Column of the event times of prepared rows, in µs."""

    def __init__(self, params: P) -> None:
        self._params = params
        self._watermark = WATERMARK_MIN
        self._input: pl.DataFrame | None = None
        """Columns of the input; None before the first batch."""
        self._prepared: list[pl.Expr] = []
        """Columns that are kept for each waiting row."""
        self._waiting = Waiting(self._time)
        self.late_rows = 0

    @abc.abstractmethod
    def _compile(self, frame: pl.DataFrame) -> None:
        """Compiles `_prepared` for the column types of the first batch, which later batches share.

        Raises
        ------
        RemoteProtocolError
            A column that the operator needs is missing.
        """

    def _passed(self, watermark_us: int) -> int:
        """Returns the instant below which rows are due."""
        return max(WATERMARK_MIN, watermark_us)

    def _kept(self) -> dict[str, pl.DataFrame]:
        """Returns the state other than the waiting rows, as frames by name."""
        return {}

    def _kept_columns(self, prepared: pl.DataFrame) -> dict[str, pl.Schema | None]:
        """Returns the columns of each frame of `_kept`, given prepared rows; None for a frame that the operator checks itself."""
        return {}

    def process(self, port: int, frame: pl.DataFrame) -> Sequence[pl.DataFrame]:
        """Keeps rows until the watermark has passed them."""
        if self._input is None:
            self._begin(frame)
        elif frame.schema != self._input.schema:
            raise RemoteProtocolError(f"input with columns {dict(frame.schema)}, expected {dict(self._input.schema)}")
        prepared = computed(frame, self._prepared)
        rows = in_time(prepared, self._time, self._passed(self._watermark))
        self.late_rows += frame.height - rows.height
        self.untimed_rows += prepared[self._time].null_count()
        self._waiting.add(rows)
        return ()

    def _begin(self, frame: pl.DataFrame) -> None:
        self._compile(frame)
        self._input = frame.clear()

    def parts(self) -> Parts:
        """Returns the columns of the input, the waiting rows, and the operator's further state."""
        frames = self._rows_kept()
        if self._input is not None:
            frames |= self._kept()
        return parts_of(self._params, self._watermark, self.late_rows, frames)

    def _rows_kept(self) -> dict[str, pl.DataFrame]:
        """Returns the columns of the input, and the waiting rows."""
        frames: dict[str, pl.DataFrame] = {}
        if self._input is not None:
            frames[_INPUT] = self._input
            if (waiting := self._waiting.frame()) is not None:
                frames[_WAITING] = waiting
        return frames

    def adopt(self, parts: Parts) -> None:
        """Continues from a snapshot."""
        self._adopted(parts)

    def _adopted(self, parts: Parts) -> dict[str, pl.DataFrame]:
        """Takes the watermark and the waiting rows of a snapshot, and returns its other frames."""
        head, found = opened(parts, self._params)
        frames = dict(found)
        self._input, self._waiting = None, Waiting(self._time)
        self._watermark, self.late_rows = head.watermark_us, head.late_rows
        if _INPUT in frames:
            self._begin(frames.pop(_INPUT))
        for name, rows in frames.items():
            self._check(name, rows)
        if _WAITING in frames:
            self._waiting.add(frames.pop(_WAITING))
        return frames

    def _take(self, name: str, rows: pl.DataFrame) -> bool:
        """Takes a piece of a snapshot whose head has been taken; returns False for a frame that the subclass must take."""
        if name == _INPUT and self._input is None:
            self._begin(rows)
            return True
        self._check(name, rows)
        if name == _WAITING:
            self._waiting.add(rows)
        return name == _WAITING

    def _check(self, name: str, rows: pl.DataFrame) -> None:
        """Checks the columns of a frame of a snapshot."""
        expected: dict[str, pl.Schema | None] = {}
        if self._input is not None:
            prepared = self._empty()
            expected = {_WAITING: prepared.schema, **self._kept_columns(prepared)}
        if name not in expected:
            raise RemoteProtocolError(f"snapshot with rows {name!r}, expected {' and '.join(expected) or 'the columns of the input'}")
        columns = expected[name]
        if columns is not None and (rows.schema != columns or (self._time in columns and rows[self._time].null_count())):
            raise RemoteProtocolError(f"{name} rows of a snapshot have {dict(rows.schema)}, expected {dict(columns)} and event times")

    def _empty(self) -> pl.DataFrame:
        """Returns an empty frame of prepared rows."""
        assert self._input is not None
        return self._input.select_seq(self._prepared)
