"""Equi-join of two streams within tumbling or hopping windows.

Rows of both sides are kept until the watermark closes their window, and then joined once. A large window is joined bucket by bucket (see
`held_rows`), and other operators may run in between; many small windows that close together are joined in one go, with the window as a
further key.

The pairs of a window and their order depend only on the rows of each side in order of arrival, not on batches or on how the two sides
interleave. Rows with a NULL key have no partner.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import polars as pl

from sbon.errors import RemoteProtocolError
from sbon.operators.frames import computed, evaluated, polars_type
from sbon.operators.hashes import slices
from sbon.operators.held_rows import BUCKETS, HeldRows, Run, bucket
from sbon.operators.pairing import in_time, paired, without_null
from sbon.operators.snapshots import Parts, opened, parts_of
from sbon.operators.two_sided import TwoSidedJoin, condition_on_pairs
from sbon.query.limits import SPAN_US_MAX
from sbon.query.params.joined import WindowJoinParams
from sbon.schema import ColumnType
from sbon.watermarks import WATERMARK_END, WATERMARK_MIN

JOIN_ROWS_MAX = 65_536
"""Most rows of one side that are joined at once; windows with more are joined bucket by bucket."""
STEP_ROWS = 32_768
"""Approximate rows of a side in one step of a bucket-by-bucket join: several buckets, or a part of one."""
FRAME_ROWS_MAX = 65_536
"""Most rows of one output frame."""

_WINDOW = "w"
_ROW = "n"
_SIDES = ("left", "right")


class WindowJoin(TwoSidedJoin[HeldRows]):
    """Emits pairs of rows with equal keys in each window; a left join also emits left rows without a pair. See `WindowJoinParams`."""

    def __init__(self, params: WindowJoinParams) -> None:
        taken = [tuple(dict.fromkeys(column for _, side, column in params.columns if side == port)) for port in (0, 1)]
        self._params = params
        self._outer = params.outer is not None
        left = HeldRows("l", params.left_time, params.left_keys, taken[0])
        super().__init__(left, HeldRows("r", params.right_time, params.right_keys, taken[1]), params.apart)
        self._watermark = WATERMARK_MIN
        self._output: list[pl.Expr] = []
        self._residual: pl.Expr | None = None
        self.late_rows = 0

    def process(self, port: int, frame: pl.DataFrame) -> Sequence[pl.DataFrame]:
        """Keeps rows until their windows close."""
        side = self._side_of(port, frame)
        prepared = computed(frame, side.prepared)
        rows = in_time(prepared, side.time, max(WATERMARK_MIN, self._open_from(self._watermark)))
        self.late_rows += frame.height - rows.height
        self.untimed_rows += prepared[side.time].null_count()
        if port == 1 or not self._outer:
            rows = without_null(rows, side.keys)
        if not rows.is_empty():
            side.keep(rows)
        return ()

    def advance_in_steps(self, watermark_us: int) -> Iterable[Sequence[pl.DataFrame]]:
        """Emits the pairs of the windows that have closed, bucket by bucket if they are large."""
        before = self._open_from(self._watermark)
        self._watermark = max(watermark_us, self._watermark)
        after = self._open_from(self._watermark)
        return () if before == after or not self.state_rows else self._close_up_to(after, before)

    def _close_up_to(self, after: int, before: int) -> Iterator[Sequence[pl.DataFrame]]:
        yield from self._close(before, after - self._params.slide_us)
        for side in self._sides:
            side.evict(after)
            yield ()

    def output_watermark(self, watermark_us: int) -> int:
        """Returns the end of the first window that is still open."""
        if watermark_us <= WATERMARK_MIN or watermark_us >= WATERMARK_END:
            return watermark_us
        return max(WATERMARK_MIN, self._open_from(watermark_us) + self._params.size_us)

    def parts(self) -> Parts:
        """Returns the rows of both sides, in their runs, with the columns of their inputs."""
        frames: dict[str, pl.DataFrame] = {}
        for name, side in zip(_SIDES, self._sides, strict=True):
            if side.input is None:
                continue
            frames[f"{name} input"] = side.input
            frames |= {f"{name} {number}": run.rows for number, run in enumerate(side.runs)}
            tail = side.tail
            if tail is not None:
                frames[f"{name} tail"] = tail
        return parts_of(self._params, self._watermark, self.late_rows, frames)

    def adopt(self, parts: Parts) -> None:
        """Continues from a snapshot."""
        snapshot, frames = opened(parts, self._params)
        for name, side in zip(_SIDES, self._sides, strict=True):
            own = {label: frames.pop(label) for label in list(frames) if label.startswith(f"{name} ")}
            side.input = None
            if own and f"{name} input" not in own:
                raise RemoteProtocolError(f"join snapshot with frames {sorted(own)}, expected {name} input")
            if own:
                side.compile(own.pop(f"{name} input"))
                for label, frame in own.items():
                    side.restored_like(frame, label)
            tail = own.pop(f"{name} tail", None)
            if set(own) != {f"{name} {number}" for number in range(len(own))}:
                raise RemoteProtocolError(f"join snapshot with frames {sorted(own)}, expected runs by number")
            side.restore([own[f"{name} {number}"] for number in range(len(own))], tail)
        if frames:
            raise RemoteProtocolError(f"join snapshot with frames {sorted(frames)}, expected left and right")
        self._watermark, self.late_rows, self._output = snapshot.watermark_us, snapshot.late_rows, []

    def _open_from(self, watermark_us: int) -> int:
        """Returns the start of the first window that has not closed."""
        if watermark_us >= WATERMARK_END:
            return WATERMARK_END + SPAN_US_MAX
        slide = self._params.slide_us
        return (watermark_us - self._params.size_us - self._params.allowed_lateness_us) // slide * slide + slide

    def _close(self, first: int, last: int) -> Iterator[Sequence[pl.DataFrame]]:
        """Yields the answers of the windows that start from `first` to `last`, in steps."""
        size, slide = self._params.size_us, self._params.slide_us
        sides = [side.between(first, last + size) for side in self._sides]
        if not sides[0] or not (sides[1] or self._outer):
            return
        # Skips windows without rows at both ends of the stretch.
        for runs in sides[:1] if self._outer else sides:
            first = max(first, (min(run.first_us for run in runs) - size) // slide * slide + slide)
            last = min(last, max(run.last_us for run in runs) // slide * slide)
        most = max(sum(run.rows.height for run in runs) for runs in sides)
        if first > last:
            return
        if first == last and most > JOIN_ROWS_MAX:
            left, right = (side.in_buckets(first, first + size) for side in self._sides)
            yield ()
            for buckets in self._in_steps(left, right, most):
                yield from self._joined(*buckets, first) if buckets else [()]
        elif first == last or most * -(-size // slide) <= JOIN_ROWS_MAX:
            yield from self._close_together(first, last)
        else:
            yield ()
            middle = (first + (last - first) // 2) // slide * slide
            yield from self._close(first, middle)
            yield from self._close(middle + slide, last)

    def _in_steps(self, left: list[Run], right: list[Run], most: int) -> Iterator[tuple[list[pl.DataFrame], list[pl.DataFrame]] | None]:
        """Yields the rows of both sides for each join step, and None for a step that only splits buckets. `most` is the row count of
        the larger side.

        The number of steps and their order depend on the input alone.
        """
        together, parts = max(1, BUCKETS * STEP_ROWS // most), -(-most // (2 * BUCKETS * STEP_ROWS))
        for start in range(0, BUCKETS, together):
            sides = [
                [rows for index in range(start, min(start + together, BUCKETS)) for rows in bucket(runs, index)] for runs in (left, right)
            ]
            if parts == 1:
                yield sides[0], sides[1]
                continue
            yield None
            yield from zip(*(side.apart(rows, parts) for side, rows in zip(self._sides, sides, strict=True)), strict=True)

    def _close_together(self, first: int, last: int) -> Iterator[Sequence[pl.DataFrame]]:
        """Yields the answers of windows with few rows."""
        sides: list[list[pl.DataFrame]] = []
        for side in self._sides:
            rows = [run.rows for run in side.between(first, last + self._params.size_us)]
            if first < last:
                rows = [self._spread(part, side.time, first, last) for part in rows]
            sides.append(rows)
        if sides[0] and (sides[1] or self._outer):
            # In the order of windows, and bucket by bucket within each.
            left = pl.concat(sides[0], rechunk=True)
            place = self._sides[0].buckets(left).astype(np.int64)
            windows = (last - first) // self._params.slide_us + 1
            if windows > 1:
                place += (left[_WINDOW].to_numpy() - first) // self._params.slide_us * BUCKETS
            if windows * BUCKETS <= 2**16:
                place = place.astype(np.uint16)  # 16-bit numbers are sorted without comparisons
            order = pl.Series(np.argsort(place, kind="stable").astype(np.uint32))
            yield from self._joined([left[order]], sides[1], first if first == last else None)

    def _spread(self, rows: pl.DataFrame, time: str, first: int, last: int) -> pl.DataFrame:
        """Repeats each row for every window that contains it and starts within `first` to `last`."""
        size, slide, at = self._params.size_us, self._params.slide_us, pl.col(time)
        if size == slide:
            return rows.with_columns_seq((at // slide * slide).alias(_WINDOW))
        earliest = ((at - size) // slide * slide + slide).clip(lower_bound=first)
        latest = (at // slide * slide).clip(upper_bound=last)
        held = rows.filter(earliest <= latest)
        return held.with_columns_seq(pl.int_ranges(earliest, latest + 1, slide).alias(_WINDOW)).explode(_WINDOW)

    def _joined(self, left: list[pl.DataFrame], right: list[pl.DataFrame], start: int | None) -> Iterator[Sequence[pl.DataFrame]]:
        """Yields the pairs of some rows, in the order of the left rows. All rows belong to the window that starts at `start`; if it is
        None, each belongs to the window in its column `_WINDOW`.
        """
        if not left or not (right or self._outer):
            return
        rows = left[0] if len(left) == 1 else pl.concat(left, rechunk=True)
        if not self._output:
            self._prepare_output()
        if not right:
            answer = self._named(self._alone(rows), start)
        else:
            others = right[0] if len(right) == 1 else pl.concat(right, rechunk=True)
            by = [] if start is not None else [_WINDOW]
            on = [[*side.keys, *by] for side in self._sides]  # rows of several windows pair within their window
            if self._residual is not None:
                answer = self._joined_where(self._residual, rows, others, on, start)
            else:
                answer = self._named(paired(rows, others, on[0], on[1], "left" if self._outer else "inner"), start)
        if not answer.is_empty():
            for frame in answer.iter_slices(FRAME_ROWS_MAX):
                yield (frame,)

    def _joined_where(
        self, residual: pl.Expr, left: pl.DataFrame, right: pl.DataFrame, on: list[list[str]], start: int | None
    ) -> pl.DataFrame:
        """Returns the pairs that meet a condition; for a left join, also the left rows without such a pair."""
        pairs = paired(left.with_row_index(_ROW), right, on[0], on[1], "inner")
        answer = self._named(pairs, start)
        kept = evaluated(answer, residual.fill_null(False))
        answer = answer.filter(kept)
        if not self._outer:
            return answer
        numbers = pairs[_ROW].filter(kept).to_numpy()
        alone = np.ones(left.height, np.bool_)
        alone[numbers] = False
        rest = self._alone(left.filter(pl.Series(alone)))
        order = np.argsort(np.concatenate([numbers, np.flatnonzero(alone)]), kind="stable").astype(np.uint32)
        return pl.concat([answer, self._named(rest, start)], rechunk=True)[pl.Series(order)]

    def _alone(self, left: pl.DataFrame) -> pl.DataFrame:
        """Returns left rows with NULLs for the right side's columns, if a row of the right side has ever come."""
        return left.with_columns_seq(pl.lit(None, dtype).alias(name) for name, dtype in self._sides[1].schema.items())

    def _named(self, rows: pl.DataFrame, start: int | None) -> pl.DataFrame:
        """Returns joined rows with the columns of the output."""
        begin = pl.col(_WINDOW) if start is None else pl.lit(start, pl.Int64())
        bounds = [begin.alias("window_start"), (begin + self._params.size_us).alias("window_end")]
        times = [bound.cast(pl.Datetime("us")) for bound in bounds]
        names = ["window_start", "window_end", *(name for name, _, _ in self._params.columns)]
        named = rows.with_columns_seq([*times, *self._output]).select_seq(names)
        if self._params.slice_column is None:
            return named
        of_keys = slices([rows[name] for name in self._sides[0].keys]) if rows.height else np.zeros(0, np.uint8)
        return named.with_columns_seq(pl.Series(self._params.slice_column, of_keys.astype(np.int64)))

    def _input_known(self) -> None:
        self._output = []  # prepared when needed: for a left join, the right input may stay unknown

    def _prepare_output(self) -> None:
        """Checks types and compiles the residual predicate, once the left input is known, and the right one unless this is a left join."""
        left, right = self._sides
        outer = iter(self._params.outer or ())
        types = {"window_start": ColumnType.TIME, "window_end": ColumnType.TIME}
        output = []
        for name, port, column in self._params.columns:
            side = self._sides[port]
            expected = next(outer) if port == 1 and self._outer else None
            if side.input is None:
                assert expected is not None
                output.append(pl.lit(None, polars_type(expected)).alias(name))
                types[name] = expected
                continue
            if expected not in (None, side.types[column]):
                raise RemoteProtocolError(f"right side of a left join with {column!r} of type {side.types[column]}, expected {expected}")
            output.append(side.output[column].alias(name))
            types[name] = side.types[column]
        if right.input is not None and left.key_types != right.key_types:
            raise RemoteProtocolError(f"join keys of types {left.key_types} and {right.key_types}, expected equal types")
        self._residual = condition_on_pairs(self._params.residual, types)
        self._output = output
