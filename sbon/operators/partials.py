"""Tables of partial aggregates that merge in any order to the same answer; see `sbon.operators.aggregates`.

A table is a short list of immutable frames. Partials are appended; when the appended rows outgrow the rest, all frames are folded into one.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from sbon.errors import RemoteProtocolError
from sbon.operators import exact, measures
from sbon.operators.digits import balanced
from sbon.operators.exact import BIN_MAX, BIN_MIN, Digits
from sbon.operators.frames import rows_where, stacked
from sbon.operators.grouping import Groups, in_order, physical, positions
from sbon.operators.ranges import in_ranges
from sbon.types import IntArray

TIME = "t"
"""Column of the event time, microseconds, in prepared rows."""
FOLD_ROWS_MIN = 32_768
FOLD_FRAMES = 64
FOLD_ROWS_MAX = 65_536
"""Rows above which a table is folded in steps, if the caller supports that, until it has PUT_OFF_MAX times as many rows as after the last
fold.
"""
PUT_OFF_MAX = 4

_BIN, _DIGIT = "b", "d"
_DIGIT_MAX = 2**58
"""Largest digit in a table; sums are carried before they reach 2^62."""


class Table:
    """Partials of one kind. `by` names the columns of the group: pane or window, then keys."""

    def __init__(self) -> None:
        self._frames: list[pl.DataFrame] = []
        self.rows = 0
        self.is_sorted = False
        """True if each frame is to be sorted by `by`, with texts in memory of its own. The owner then folds the table, by ranges."""

    def partial(self, rows: pl.DataFrame, groups: Groups) -> pl.DataFrame:
        """Returns partials of prepared rows, numbered by group."""
        raise LookupError(f"{type(self).__name__} gives no partials")

    def merge(self, partials: pl.DataFrame, by: list[str]) -> pl.DataFrame:
        """Merges several partials of a group into one."""
        raise LookupError(f"{type(self).__name__} does not merge")

    def ordered(self, partials: pl.DataFrame, by: list[str]) -> pl.DataFrame:
        """Returns folded partials in a form and order that depend only on the aggregated rows."""
        return partials.sort(by)

    def check(self, partials: pl.DataFrame) -> None:
        """Refuses partials from a peer that have the right columns but impossible values.

        Raises
        ------
        RemoteProtocolError
            The values would make computing the answers fail or grow without bounds.
        """

    def add(self, partials: pl.DataFrame, by: list[str], *, puts_off: bool = False) -> None:
        """Adds partials. A caller that checks `is_due` may put off long folds (`puts_off`), up to a limit."""
        self._frames.append(measures.rows_apart(in_order(partials, by)) if self.is_sorted else partials)
        self.rows += partials.height
        if self.is_sorted:
            return
        late = self.rows > PUT_OFF_MAX * self._frames[0].height or len(self._frames) > PUT_OFF_MAX * FOLD_FRAMES
        if self.is_due and (late or not puts_off or self.rows <= FOLD_ROWS_MAX):
            self.folded(by)

    @property
    def is_due(self) -> bool:
        """Tells whether the table should be folded, because the appended rows have outgrown the rest."""
        if not self._frames or self.is_sorted:
            return False
        first = self._frames[0].height
        return self.rows - first > max(FOLD_ROWS_MIN, first) or len(self._frames) > FOLD_FRAMES

    def fold_in_steps(self, by: list[str]) -> Iterator[None]:
        """Folds as `folded` does, in steps of a few milliseconds; nothing may be added before the last step."""
        merged: list[pl.DataFrame] = []
        for part in in_ranges({"": self._frames}, by):
            if part is not None:
                merged.append(self.merge(part[""], by))
            yield
        self.replace(pl.concat(merged, rechunk=True))

    def pieces(self, column: str) -> list[pl.Series]:
        """Returns a column of the partials, unfolded."""
        return [frame[column] for frame in self._frames]

    @property
    def frames(self) -> Sequence[pl.DataFrame]:
        """Returns all partials, possibly several rows per group; none before the first."""
        return self._frames

    def folded(self, by: list[str]) -> pl.DataFrame | None:
        """Returns all partials as one frame with one row per group; None before the first."""
        if len(self._frames) > 1:
            whole = self.merge(stacked(self._frames), by)
            self.replace(in_order(whole, by) if self.is_sorted else whole)
        return self._frames[0] if self._frames else None

    def keep(self, column: str, wanted: Callable[[IntArray], npt.NDArray[np.bool_]]) -> None:
        """Drops the partials for which `wanted` is false. It gets their values in `column`: integers or times without NULL."""
        kept = [rows_where(frame, wanted(physical(frame[column]))) for frame in self._frames]
        self._frames = [frame for frame in kept if frame.height] or kept[:1]
        self.rows = sum(frame.height for frame in self._frames)

    def replace(self, partials: pl.DataFrame) -> None:
        """Replaces all partials with these."""
        self.replace_all([partials])

    def replace_all(self, frames: Sequence[pl.DataFrame]) -> None:
        """Replaces all partials with those of some frames, at least one."""
        self._frames = list(frames)
        self.rows = sum(frame.height for frame in frames)


class Measure(NamedTuple):
    """One column of the main table: a measure of an operand."""

    kind: str
    operand: str
    by: str = TIME
    """For the first and the last value, the column that orders them."""


class MainTable(Table):
    """Counts, integer sums, bitwise and, or and xor, extremes, firsts and lasts."""

    def __init__(self) -> None:
        super().__init__()
        self._measures: dict[str, Measure] = {}

    def measure(self, kind: str, operand: str, by: str = TIME) -> str:
        """Adds a measure of an operand; returns the name of its column."""
        name = f"{kind}:{operand}" if by == TIME else f"{kind}:{operand}:{by}"
        self._measures.setdefault(name, Measure(kind, operand, by))
        return name

    def partial(self, rows: pl.DataFrame, groups: Groups) -> pl.DataFrame:
        """Returns one row per group."""
        columns = [measures.counted(groups).alias("n")]
        for name, (kind, operand, by) in self._measures.items():
            values = rows[operand]
            if name in groups.known:
                columns.append(groups.known[name].alias(name))
            elif kind == "count":
                columns.append(measures.count_of(groups, values).alias(name))
            else:
                columns += self._measured(groups, kind, name, values, rows[by])
        return groups.keys.hstack(columns)

    def merge(self, partials: pl.DataFrame, by: list[str]) -> pl.DataFrame:
        """Returns one row per group."""
        return self.merged(partials, Groups.of(partials, by))

    def merged(self, partials: pl.DataFrame, groups: Groups) -> pl.DataFrame:
        """Returns one row per group, in the order of their numbers."""
        columns = [measures.total_of(groups, partials["n"]).alias("n")]
        for name, (kind, _, _) in self._measures.items():
            values = partials[name]
            if name in groups.known:
                columns.append(groups.known[name].alias(name))
            elif kind == "count":
                columns.append(measures.total_of(groups, values).alias(name))
            else:
                times = partials[f"{name}:at"] if kind in ("first", "last") else values
                columns += self._measured(groups, kind, name, values, times)
        return groups.keys.hstack(columns)

    def _measured(self, groups: Groups, kind: str, name: str, values: pl.Series, times: pl.Series) -> list[pl.Series]:
        if kind in ("first", "last"):
            edge, at = measures.edge_of(groups, values, times, last=kind == "last")
            return [edge.alias(name), at.alias(f"{name}:at")]
        if kind in ("min", "max"):
            return [measures.extreme_of(groups, values, greatest=kind == "max").alias(name)]
        if kind in measures.BITS:
            return [measures.bits_of(groups, values, kind).alias(name)]
        return [(measures.sum_of if kind == "sum" else measures.special_of)(groups, values).alias(name)]


class ExactTable(Table):
    """The exact sum of a float operand, or of its products with a factor (possibly itself); one row per group and bin.

    See `sbon.operators.exact`. The factor is NULL if the operand is.
    """

    def __init__(self, operand: str, factor: str | None = None) -> None:
        super().__init__()
        self._operand = operand
        self._factor = factor

    def partial(self, rows: pl.DataFrame, groups: Groups) -> pl.DataFrame:
        """Returns digits summed by group and bin; the main table has the values that are not finite."""
        names, ids = list(dict.fromkeys([self._operand, self._factor or self._operand])), groups.ids
        columns = [rows[name] for name in names]
        if any(values.null_count() or not measures.finite(values) for values in columns):
            kept = pl.all_horizontal(pl.col(name).is_finite() for name in names).fill_null(False)
            there = rows.select_seq(kept).to_series()
            columns, ids = [values.filter(there) for values in columns], ids[there.to_numpy()]
        x, y = columns[0].to_numpy(), columns[-1].to_numpy()
        if self._factor is None:
            slots, bins, digits = exact.digit_sums(x, ids, groups.size)
        else:
            slots, bins, digits = exact.product_sums(x, x if len(names) == 1 else y, ids, groups.size)
        return groups.keys_at(slots).hstack([pl.Series(_BIN, bins), pl.Series(_DIGIT, digits)])

    def merge(self, partials: pl.DataFrame, by: list[str]) -> pl.DataFrame:
        """Returns digits summed by group and bin."""
        digits = partials[_DIGIT].to_numpy()
        if digits.size and max(int(digits.max()), -int(digits.min())) * digits.size > _DIGIT_MAX:
            partials = self._carried(partials)
        groups = Groups.of(partials, [*by, _BIN])
        return groups.keys.hstack([measures.total_of(groups, partials[_DIGIT]).alias(_DIGIT)])

    def ordered(self, partials: pl.DataFrame, by: list[str]) -> pl.DataFrame:
        """Orders by group and bin, with balanced digits; each number has exactly one such form."""
        while (carried := self._carried(partials)).height > partials.height:
            groups = Groups.of(carried, [*by, _BIN])
            partials = groups.keys.hstack([measures.total_of(groups, carried[_DIGIT]).alias(_DIGIT)])
        return partials.filter(pl.col(_DIGIT) != 0).sort([*by, _BIN])

    def check(self, partials: pl.DataFrame) -> None:
        """Checks that bins and digits are in the range of floats, and that each group and bin has one digit."""
        bins, digits = partials[_BIN], partials[_DIGIT]
        sane = bins.is_between(BIN_MIN, BIN_MAX) & digits.is_between(-_DIGIT_MAX, _DIGIT_MAX)
        if bins.null_count() or digits.null_count() or not sane.all():
            raise RemoteProtocolError(f"exact sum with a bin beyond {BIN_MIN} to {BIN_MAX} or a digit beyond {_DIGIT_MAX}")
        if partials.drop(_DIGIT).is_duplicated().any():
            raise RemoteProtocolError("exact sum with several digits of one group and bin")

    def digits(self, merged: pl.DataFrame, by: list[str], groups: pl.DataFrame) -> Digits:
        """Returns the digits of the sums of `groups`, each with the position of its group."""
        return positions(groups, merged, by), merged[_BIN].to_numpy(), merged[_DIGIT].to_numpy()

    def _carried(self, partials: pl.DataFrame) -> pl.DataFrame:
        """Returns balanced digits, followed by their carries to the bins above, if any."""
        kept, carry = balanced(partials[_DIGIT].to_numpy())
        left = partials.drop(_DIGIT).hstack([pl.Series(_DIGIT, kept)])
        over = np.flatnonzero(carry)
        if not over.size:
            return left
        return pl.concat([left, partials[over].with_columns_seq(pl.col(_BIN) + 1, pl.Series(_DIGIT, carry[over]))], rechunk=True)


class DistinctTable(Table):
    """The distinct values of an operand, one row per group and value."""

    def __init__(self, operand: str) -> None:
        super().__init__()
        self._operand = operand

    def partial(self, rows: pl.DataFrame, groups: Groups) -> pl.DataFrame:
        """Returns the values that are not NULL."""
        return distinct(groups, rows[self._operand])

    def merge(self, partials: pl.DataFrame, by: list[str]) -> pl.DataFrame:
        """Returns every value once."""
        return measures.rows_apart(partials.unique(maintain_order=True))

    def ordered(self, partials: pl.DataFrame, by: list[str]) -> pl.DataFrame:
        """Orders by group and value."""
        return partials.sort([*by, self._operand])

    def counts(self, merged: pl.DataFrame, by: list[str], groups: pl.DataFrame) -> pl.Series:
        """Returns the number of values of each of `groups`, in their order."""
        return pl.Series(np.bincount(positions(groups, merged, by), minlength=groups.height), dtype=pl.Int64)


def distinct(groups: Groups, values: pl.Series) -> pl.DataFrame:
    """Returns the values of each group that are not NULL, each once, after the group's columns."""
    pairs = Groups.of(pl.DataFrame({"g": groups.ids, values.name: values}).drop_nulls(), ["g", values.name]).keys
    return groups.keys_at(pairs["g"].to_numpy()).hstack([pairs[values.name]])
