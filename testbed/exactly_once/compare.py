"""Compares a sink's rows with those of a run on one node, and their order if the query defines one."""

from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from itertools import pairwise

from sbon_testbed.exactly_once.queries import QUERIES, Row, Rows, rows_on_one_node


def difference(name: str, rows: Rows, first: datetime, *, whole: bool = True) -> str:
    """Describes the first error in a sink's rows; empty if there is none.

    Parameters
    ----------
    name : name of the query
    first : only rows whose event time (first column) is not before this are compared
    whole : False if the query was ended early, so that later rows may be missing
    """
    found, expected = _from(first, rows), _from(first, rows_on_one_node(name))
    had, wanted = Counter(found), Counter(expected)
    missing, extra = (wanted - had).total() if whole else 0, (had - wanted).total()
    if missing or extra:
        return f"{missing} of {len(expected)} rows missing, {extra} too many, from {first} on"
    query = QUERIES[name]
    if query.rises is not None and any(one[query.rises] > other[query.rises] for one, other in pairwise(found)):
        return f"column {query.rises} falls from one row to the next"
    if query.same is not None:
        order = _parted(expected, query.same)
        for part, mine in _parted(found, query.same).items():
            if mine != order[part][: len(mine)]:
                return f"{len(mine)} rows are in another order, those with {part}" if part else f"{len(mine)} rows are in another order"
    return ""


def _parted(rows: Iterable[Row], columns: tuple[int, ...]) -> dict[Row, list[Row]]:
    found: dict[Row, list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row[column] for column in columns), []).append(row)
    return found


def _from(first: datetime, rows: Rows) -> list[Row]:
    return [row for row in rows if row[0] >= first]
