"""Compares two answers to one query."""

import math
from collections.abc import Sequence
from typing import Any

from sbon_testbed.random_queries.data import Row


def same(one: Any, other: Any, tolerance: float) -> bool:
    """Tells whether two values are equal: floats within `tolerance`, but NaN, infinities and the sign of zero exactly."""
    if not (isinstance(one, float) and isinstance(other, float)):
        return type(one) is type(other) and bool(one == other)
    if math.isnan(one) or math.isnan(other) or one == 0.0 or other == 0.0 or math.isinf(one) or math.isinf(other):
        return repr(one) == repr(other) or (tolerance > 1e-9 and abs(one - other) < 1e-9)
    return math.isclose(one, other, rel_tol=tolerance)


def difference(ours: Sequence[Row], theirs: Sequence[Row], tolerances: Sequence[float], *, ordered: bool) -> str:
    """Describes the difference of two answers; empty if there is none."""
    if ordered and len(ours) == len(theirs) and all(alike(one, other, tolerances) for one, other in zip(ours, theirs, strict=True)):
        return ""
    extra, lacking = differing(ours, theirs, tolerances)
    if not extra and not lacking:
        return f"the same rows in another order: {ours[:6]}, expected {list(theirs[:6])}" if ordered else ""
    shown = [f"  engine only: {row}" for row in extra[:5]] + [f"  DuckDB only: {row}" for row in lacking[:5]]
    return "\n".join([f"{len(ours)} rows, expected {len(theirs)}; {len(extra)} too many, {len(lacking)} missing", *shown])


def alike(one: Row, other: Row, tolerances: Sequence[float]) -> bool:
    """Tells whether two rows are equal; each column has its tolerance."""
    return all(map(same, one, other, tolerances))


def differing(ours: Sequence[Row], theirs: Sequence[Row], tolerances: Sequence[float]) -> tuple[list[Row], list[Row]]:
    """Returns the rows that only the first answer has, and those that only the second has."""
    left = list(ours)
    lacking: list[Row] = []
    exact: dict[str, list[int]] = {}
    for place, row in enumerate(left):
        exact.setdefault(repr(row), []).append(place)
    gone: set[int] = set()
    rest: list[Row] = []
    for row in theirs:
        places = exact.get(repr(row))
        if places:
            gone.add(places.pop())
        else:
            rest.append(row)
    for row in rest:
        found = next((place for place, mine in enumerate(left) if place not in gone and alike(mine, row, tolerances)), None)
        if found is None:
            lacking.append(row)
        else:
            gone.add(found)
    return [row for place, row in enumerate(left) if place not in gone], lacking
