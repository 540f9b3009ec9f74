"""Cuts tables that are too large for one step into ranges that follow each other in the order of some columns.

Sorting or grouping a million rows occupies a thread for a good part of a second. Done range by range, the answer and its order are the
same, and each range takes a few milliseconds.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from sbon.operators.grouping import physical

RANGE_ROWS = 65_536
"""Most rows of a range, of all tables together, unless more are equal in all columns of the order."""
PIECE_ROWS = 65_536
"""Rows that are examined, or put into ranges, in one step."""
RANGES_MAX = 64
"""Most ranges made at once; ranges that are still too large are split again."""
SAMPLES = 32
"""Values sampled for each range to choose its bounds."""

Table = Sequence[pl.DataFrame]
Range = dict[str, pl.DataFrame]
Places = npt.NDArray[np.intp]


def in_ranges(tables: Mapping[str, Table], by: Sequence[str]) -> Iterator[Range | None]:
    """Yields ranges of rows of all tables, in the order in which `by` sorts them, and None after steps that complete no range.

    Rows that are equal in `by` are in one range, in their given order. Every range has a row.

    Parameters
    ----------
    tables : each in frames of one schema, at least one, which may be empty
    by : columns that all of them have
    """
    rows = _rows(tables)
    if rows <= RANGE_ROWS or not by:
        if rows:
            yield {name: _one(frames) for name, frames in tables.items()}
        return
    bounds = _bounds(tables, by[0], min(RANGES_MAX, -(-2 * rows // RANGE_ROWS)))
    yield None
    if bounds.len() == 1:
        for _, piece in _pieces(tables):
            if not _equal(piece, by[0], bounds).all():
                break
            yield None
        else:
            yield from in_ranges(tables, by[1:])
            return
    places: list[Places] = []
    for _, piece in _pieces(tables):
        places.append(_places(bounds, piece[by[0]]))
        yield None
    counts = np.zeros(bounds.len() + 1, np.int64)
    for place in places:
        counts += np.bincount(place, minlength=counts.size)
    number = _together(counts)
    found: list[dict[str, list[pl.DataFrame]]] = [
        {name: [frames[0].clear()] for name, frames in tables.items()} for _ in set(number.tolist())
    ]
    for (name, piece), place in zip(_pieces(tables), places, strict=True):
        for index, frame in _apart(piece, number[place]):
            found[index][name].append(frame)
        yield None
    for index, chosen in enumerate(found):
        if _rows(chosen) > RANGE_ROWS:
            last = int(np.flatnonzero(number == index)[-1])
            yield from _smaller({name: _packed(frames) for name, frames in chosen.items()}, by, bounds[last : last + 1])
        elif _rows(chosen):
            yield {name: _one(frames) for name, frames in chosen.items()}
        chosen.clear()  # lets the consumer's range be freed


def _smaller(tables: Mapping[str, Table], by: Sequence[str], bound: pl.Series) -> Iterator[Range | None]:
    """Splits a range that is still too large: the rows below its upper bound, if it has one, then the rows equal to the bound, by the next
    columns.
    """
    if not bound.len():
        yield from in_ranges(tables, by)
        return
    below: dict[str, list[pl.DataFrame]] = {name: [frames[0].clear()] for name, frames in tables.items()}
    equal: dict[str, list[pl.DataFrame]] = {name: [frames[0].clear()] for name, frames in tables.items()}
    for name, piece in _pieces(tables):
        same = _equal(piece, by[0], bound)
        if same.all():
            equal[name].append(piece)
        else:
            below[name].append(piece.filter(~same))
            equal[name].append(piece.filter(same))
        yield None
    yield from in_ranges(below, by)
    yield from in_ranges(equal, by[1:])


def _rows(tables: Mapping[str, Table]) -> int:
    return sum(frame.height for frames in tables.values() for frame in frames)


def _one(frames: Table) -> pl.DataFrame:
    return frames[0] if len(frames) == 1 else pl.concat(frames, rechunk=True)


def _packed(frames: Table) -> list[pl.DataFrame]:
    """Combines many small frames into pieces large enough for a step."""
    packed: list[pl.DataFrame] = []
    small: list[pl.DataFrame] = []
    for frame in frames:
        small.append(frame)
        if sum(one.height for one in small) >= PIECE_ROWS:
            packed.append(_one(small))
            small = []
    return [*packed, _one(small)] if small else packed


def _pieces(tables: Mapping[str, Table]) -> Iterator[tuple[str, pl.DataFrame]]:
    """Yields all rows, in pieces of one step each."""
    for name, frames in tables.items():
        for frame in frames:
            for piece in frame.iter_slices(PIECE_ROWS):
                if piece.height:
                    yield name, piece


def _bounds(tables: Mapping[str, Table], column: str, ranges: int) -> pl.Series:
    """Returns distinct values of a column, in order, that split the rows about evenly; at least one."""
    every = max(1, _rows(tables) // (SAMPLES * ranges))
    frames = [frame for frames in tables.values() for frame in frames if frame.height]
    sample = pl.concat([frame[column].gather_every(every) for frame in frames], rechunk=True).sort()
    at = np.linspace(0, sample.len() - 1, ranges + 1).astype(np.int64)[1:]
    return sample[at].unique(maintain_order=True)


def _equal(piece: pl.DataFrame, column: str, bound: pl.Series) -> pl.Series:
    """Tells which rows have this value; NULL equals NULL."""
    return piece[column].eq_missing(bound.new_from_index(0, piece.height))


def _places(bounds: pl.Series, values: pl.Series) -> Places:
    """Returns for each value the number of bounds below it."""
    if values.dtype == pl.Int64() and not values.null_count() and not bounds.null_count():
        return np.searchsorted(physical(bounds), physical(values))
    return bounds.search_sorted(values, side="left").to_numpy().astype(np.intp)


def _together(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.uint16]:
    """Returns the range of each place; neighbouring places share one as long as they fit."""
    number = np.zeros(counts.size, np.uint16)
    rows = current = 0
    for place, count in enumerate(counts.tolist()):
        if rows and rows + count > RANGE_ROWS:
            current, rows = current + 1, 0
        rows += count
        number[place] = current
    return number


def _apart(piece: pl.DataFrame, numbers: npt.NDArray[np.uint16]) -> Iterator[tuple[int, pl.DataFrame]]:
    """Yields the rows of each range, with its number."""
    ordered = piece[pl.Series(np.argsort(numbers, kind="stable").astype(np.uint32))]
    start = 0
    for number, end in enumerate(np.cumsum(np.bincount(numbers)).tolist()):
        if end > start:
            yield number, ordered.slice(start, end - start)
        start = end
