"""Plain twins of the stateful operators: they keep every row, try all combinations, and sum with `math.fsum` and fractions."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any

import polars as pl

from sbon.operators.operator import Operator

Row = tuple[Any, ...]
Event = tuple[str, int, Any]
"""("rows", port, frame) or ("watermark", 0, watermark_us)."""


TYPES = {"t": pl.Int64(), "k": pl.String(), "f": pl.Float64(), "i": pl.Int64(), "v": pl.Int64()}


def frame(rows: Sequence[Any], names: str) -> pl.DataFrame:
    """Returns rows as a frame. `names` lists the columns: time t, key k, float f, integers i and v."""
    return pl.DataFrame(rows, schema={name: TYPES[name] for name in names}, orient="row").with_columns(pl.col("t").cast(pl.Datetime("us")))


def batches(rows: Sequence[Any], names: str, cuts: Sequence[int]) -> list[Event]:
    """Splits the rows into batches at `cuts`."""
    places = sorted({0, len(rows), *(cut % (len(rows) + 1) for cut in cuts)})
    return [("rows", 0, frame(rows[a:b], names)) for a, b in pairwise(places)]


def run(operator: Operator, events: Iterable[Event]) -> list[pl.DataFrame]:
    """Feeds an operator; returns all its output frames in order."""
    frames: list[pl.DataFrame] = []
    for kind, port, value in events:
        frames.extend(operator.process(port, value) if kind == "rows" else operator.advance(value))
    return frames


def rows_of(frames: Sequence[pl.DataFrame]) -> list[Row]:
    """Returns all rows, with times and intervals in microseconds."""
    rows: list[Row] = []
    for frame in frames:
        physical = frame.select(pl.col(name).to_physical() for name in frame.columns)
        rows.extend(physical.rows())
    return rows


def content(operator: Operator) -> Any:
    """Returns an operator's state for comparison, as rows: equal frames may differ in bytes, for example in unused NULL masks."""
    parts = operator.parts()
    assert parts is not None
    return parts.head, {name: (frame.schema, frame.rows()) for name, frame in parts.frames.items()}


def window_twin(
    rows: Sequence[tuple[int | None, str | None, float | None, int | None]], size: int, slide: int, lateness: int, watermark: int | None
) -> dict[tuple[int, str | None], dict[str, Any]]:
    """Returns answers by (window start, key) over rows (time, key, float, int), of windows closed by the watermark; None: of all."""
    groups: dict[tuple[int, str | None], list[Row]] = defaultdict(list)
    for row in rows:
        if row[0] is None:
            continue
        start = row[0] // slide * slide
        while start > row[0] - size:
            groups[start, row[1]].append(row)
            start -= slide
    closed = {g: rows for g, rows in groups.items() if watermark is None or g[0] + size + lateness <= watermark}
    return {group: _aggregates(rows) for group, rows in closed.items()}


def session_twin(
    rows: Sequence[tuple[int | None, str | None, float | None, int | None]], gap: int, ended: int | None
) -> dict[tuple[int, int, str | None], dict[str, Any]]:
    """Returns answers by (session start, session end, key), of sessions that end by `ended`; None: of all."""
    answers: dict[tuple[int, int, str | None], dict[str, Any]] = {}
    for key in {row[1] for row in rows}:
        timed = sorted((row for row in rows if row[0] is not None and row[1] == key), key=lambda row: row[0] or 0)
        session: list[Row] = []
        for row in [*timed, None]:
            if session and (row is None or row[0] - session[-1][0] >= gap):
                start, end = session[0][0], session[-1][0] + gap
                if ended is None or end <= ended:
                    answers[start, end, key] = _aggregates(session)
                session = []
            if row is not None:
                session.append(row)
    return answers


def _aggregates(rows: Sequence[Row]) -> dict[str, Any]:
    floats = [row[2] for row in rows if row[2] is not None]
    integers = [row[3] for row in rows if row[3] is not None]
    timed = sorted((row[0], row[3]) for row in rows if row[3] is not None)
    n = len(floats)
    mean = sum(map(Fraction, floats)) / n if n else Fraction(0)
    return {
        "rows": len(rows),
        "count_f": n,
        "sum_f": math.fsum(floats) if n else None,
        "avg_f": float(mean) if n else None,
        "min_f": min(floats, default=None),
        "max_f": max(floats, default=None),
        "stddev_f": math.sqrt(float(sum((Fraction(x) - mean) ** 2 for x in floats) / (n - 1))) if n > 1 else None,
        "sum_i": sum(integers) if integers else None,
        "avg_i": sum(integers) / len(integers) if integers else None,
        "distinct_i": len(set(integers)),
        "approx_distinct_i": len(set(integers)),
        "first_i": timed[0][1] if timed else None,
        "last_i": timed[-1][1] if timed else None,
    }


def join_twin(left: Sequence[Row], right: Sequence[Row], before: int, after: int) -> list[Row]:
    """Returns sorted pairs (left time, key, left value, right time, right value) of rows (time, key, value)."""
    pairs = [
        (lt, lk, lv, rt, rv)
        for lt, lk, lv in left
        for rt, rk, rv in right
        if lk is not None and lk == rk and lt is not None and rt is not None and lt - before <= rt <= lt + after
    ]
    return sorted(pairs, key=repr)


def left_join_twin(
    left: Sequence[Row], right: Sequence[Row], before: int, after: int, matches: Callable[[Any, Any], bool] = lambda one, other: True
) -> list[Row]:
    """Returns, sorted, the pairs of `join_twin` whose values match, and left rows without a pair, with NULLs for the right side."""
    answers: list[Row] = []
    for row in left:
        if row[0] is not None:
            pairs = [pair for pair in join_twin([row], right, before, after) if matches(pair[2], pair[4])]
            answers += pairs or [(*row, None, None)]
    return sorted(answers, key=repr)
