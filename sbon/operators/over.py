"""Aggregates of each row and the rows before it: SUM(x) OVER (PARTITION BY k ORDER BY ts ROWS BETWEEN n PRECEDING AND CURRENT ROW).

Rows wait until the watermark has passed them, because only then the rows before them are known. They leave in the order of their event
times. Rows of one instant are ordered by partition, then by the columns `ties`, so that the order does not depend on batches or links. The
last rows of each partition, as far as the largest frame reaches back, are kept for as long as the operator runs.

Every frame is aggregated by itself, with the aggregates of windows (`sbon.operators.aggregates`). A running sum would depend, in its last
bits, on all rows that have ever been in it.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import polars as pl

from sbon.errors import RemoteProtocolError
from sbon.operators.aggregates import Aggregates
from sbon.operators.compile import columns_of, compile_column
from sbon.operators.grouping import Groups
from sbon.operators.measures import rows_apart
from sbon.operators.operands import Operands, one_zero
from sbon.operators.partials import TIME
from sbon.operators.patient import PatientOperator
from sbon.operators.snapshots import Parts
from sbon.query.params.ordered import OverParams
from sbon.schema import ColumnType
from sbon.types import IntArray
from sbon.watermarks import WATERMARK_MIN

FRAME_ROWS = 65_536
"""Frame rows that are aggregated in one step."""

_ROW = "row"
_BEFORE = "before"


class Over(PatientOperator[OverParams]):
    """Adds to each row the aggregates of its frame. A row behind the watermark, or without an event time, is late."""

    def __init__(self, params: OverParams) -> None:
        super().__init__(params)
        self._types: dict[str, ColumnType] = {}
        self._operands: list[str | None] = []
        self._partition: list[str] = []
        self._order: list[str] = []
        self._before: pl.DataFrame | None = None
        """The last rows of each partition that the watermark has passed, in order; columns of the partition and the operands."""
        self._begins_us = self._begun_us = WATERMARK_MIN
        """The instants of `begins_at`: the latest, and that from which `_before` has rows."""

    @property
    def state_rows(self) -> int:
        """Returns the number of waiting rows and of the last rows of all partitions."""
        return self._waiting.rows + (0 if self._before is None else self._before.height)

    def advance_in_steps(self, watermark_us: int) -> Iterable[Sequence[pl.DataFrame]]:
        """Emits the rows that the watermark has passed, in steps of about FRAME_ROWS rows in their frames."""
        self._watermark = max(watermark_us, self._watermark)
        rows = self._waiting.take(self._watermark)
        if rows is None:
            return ()
        if self._begins_us > WATERMARK_MIN:
            rows = rows.filter(pl.col(TIME) >= self._begins_us)
        ordered = rows.sort([TIME, *self._partition, *self._order], nulls_last=True, maintain_order=True)
        return self._answered(ordered)

    def begins_at(self, begin_us: int, *, is_whole: bool) -> None:
        """Leaves out, from now on, rows before an instant, and rows whose frames reach back before it: earlier rows may be missing.

        Parameters
        ----------
        is_whole : True if the operator has no row from before that instant
        """
        self._begins_us = max(begin_us, self._begins_us)
        if is_whole:
            self._begun_us = self._begins_us

    def _answered(self, rows: pl.DataFrame) -> Iterator[Sequence[pl.DataFrame]]:
        """Yields the rows, in order, with their aggregates; the last rows of each partition are stored first."""
        new = rows.select_seq(*self._carried(), pl.int_range(pl.len()).alias(_ROW))
        self._forget_earlier()
        known = new.clear() if self._before is None else self._before.with_columns_seq(pl.lit(-1, pl.Int64).alias(_ROW))
        if self._partition and known.height:
            touched = known.join(new, on=self._partition, how="semi", nulls_equal=True, maintain_order="left")
            rest = known.join(new, on=self._partition, how="anti", nulls_equal=True, maintain_order="left")
        else:
            touched, rest = known, known.clear()
        both = pl.concat([touched, new], rechunk=True)
        ids = Groups.of(both, self._partition).ids
        order = np.argsort(ids, kind="stable")
        both, ids = both[pl.Series(order)], ids[order]
        places = np.arange(ids.size)
        starts = np.maximum.accumulate(np.where(np.append(True, ids[1:] != ids[:-1]), places, 0))
        ends = np.append(np.flatnonzero(ids[1:] != ids[:-1]) + 1, ids.size)
        end_of = ends[np.searchsorted(ends, places, side="right")]
        most = max(self._params.preceding)
        last = both.filter(pl.Series(end_of - places <= most)).drop(_ROW)
        self._before = rows_apart(pl.concat([rest.drop(_ROW), last], rechunk=True)) if most else None
        numbers = both[_ROW].to_numpy()
        place_of = np.empty(rows.height, np.int64)
        place_of[numbers[numbers >= 0]] = np.flatnonzero(numbers >= 0)
        if self._begins_us > WATERMARK_MIN:
            is_full = place_of - starts[place_of] >= most
            rows, place_of = rows.filter(pl.Series(is_full)), place_of[is_full]
        step = max(1, FRAME_ROWS // (most + 1))
        for first in range(0, rows.height, step):
            part = rows.slice(first, step)
            yield (self._with_aggregates(part, both, place_of[first : first + step], starts),)

    def _with_aggregates(self, rows: pl.DataFrame, both: pl.DataFrame, places: IntArray, starts: IntArray) -> pl.DataFrame:
        """Returns rows with their aggregates, given their places in `both` and the start of each row's partition there."""
        assert self._input is not None
        columns = [pl.col(f"c{index}").alias(name) for index, name in enumerate(self._input.columns)]
        answers: list[pl.Series] = [pl.Series()] * len(self._params.aggregates)
        for preceding in sorted(set(self._params.preceding)):
            wanted = [index for index, rows_before in enumerate(self._params.preceding) if rows_before == preceding]
            found = self._aggregated(wanted, both, places, np.maximum(places - preceding, starts[places]))
            for place, index in enumerate(wanted):
                answers[index] = found[f"a{place}"].alias(self._params.aggregates[index].name)
        return rows.select_seq(columns).with_columns_seq(answers)

    def _aggregated(self, wanted: Sequence[int], both: pl.DataFrame, places: IntArray, firsts: IntArray) -> pl.DataFrame:
        """Computes some aggregates over the rows from the first of each frame to its own row."""
        sizes = places - firsts + 1
        of_row = np.repeat(np.arange(places.size), sizes)
        begins = np.cumsum(sizes) - sizes
        taken = np.arange(of_row.size) - begins[of_row] + firsts[of_row]
        operands = [self._operands[index] for index in wanted]
        names = list(dict.fromkeys(name for name in operands if name))
        # No aggregate here uses the event time, but the table of partials expects the column.
        time = pl.Series(TIME, np.zeros(taken.size, np.int64))
        frames = both.select_seq(names)[pl.Series(taken)].with_columns_seq(time) if names else time.to_frame()
        groups = Groups(of_row, places.size, pl.DataFrame({_ROW: np.arange(places.size)}))
        asked = [self._params.aggregates[index] for index in wanted]
        aggregates = Aggregates(asked, [Operands(name, None) for name in operands], self._types)
        aggregates.add(frames, groups, [_ROW])
        merged = {name: pl.concat(table.frames, rechunk=True) for name, table in aggregates.tables.items()}
        return aggregates.answers(merged, [_ROW])

    def _carried(self) -> list[str]:
        """Returns the columns that are kept for the last rows."""
        return [*self._partition, *dict.fromkeys(name for name in self._operands if name)]

    def _forget_earlier(self) -> None:
        """Forgets the rows before the instant from which on frames count."""
        if self._begun_us < self._begins_us:
            self._before, self._begun_us = None, self._begins_us

    def _kept(self) -> dict[str, pl.DataFrame]:
        self._forget_earlier()
        return {} if self._before is None else {_BEFORE: self._before}

    def _kept_columns(self, prepared: pl.DataFrame) -> dict[str, pl.Schema | None]:
        return {_BEFORE: prepared.select_seq(self._carried()).schema}

    def adopt(self, parts: Parts) -> None:
        """Continues from a snapshot."""
        self._before = self._adopted(parts).get(_BEFORE)

    def _compile(self, frame: pl.DataFrame) -> None:
        """Compiles prepared rows: event time, then the columns as c0, c1, ..., then operands as o0, o1, ..."""
        columns = columns_of(frame)
        params = self._params
        if columns.get(params.time_column) is not ColumnType.TIME:
            raise RemoteProtocolError(f"event time {params.time_column!r} is no time column of the input")
        names = {name: f"c{index}" for index, name in enumerate(columns)}
        missing = [name for name in (*params.partition, *params.ties) if name not in names]
        if missing:
            raise RemoteProtocolError(f"column {missing[0]!r} is not among the input columns {', '.join(columns)}")
        twice = [aggregate.name for aggregate in params.aggregates if aggregate.name in names]
        if twice:
            raise RemoteProtocolError(f"aggregate {twice[0]!r} is named as a column of the input")
        self._prepared = [pl.col(params.time_column).cast(pl.Int64).alias(TIME)]
        self._prepared += [one_zero(pl.col(name), kind).alias(names[name]) for name, kind in columns.items()]
        self._types, self._operands = {}, []
        for aggregate in params.aggregates:
            if aggregate.operand is None:
                self._operands.append(None)
                continue
            value, kind, _ = compile_column(aggregate.operand, columns)
            name = f"o{len(self._operands)}"
            self._prepared.append(value.alias(name))
            self._types[name] = kind
            self._operands.append(name)
        self._partition = [names[name] for name in params.partition]
        self._order = [names[name] for name in params.ties]
