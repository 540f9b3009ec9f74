"""The reference of the exactly-once stories is right: the rows of the run on one node equal those of plain Python."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import pytest

from sbon_testbed.exactly_once.queries import BEGIN, DISORDER_MS, QUERIES, ROWS, ROWS_PER_S, Row, rows_on_one_node
from tests.connector_world import columns, drain, source


class Reading(NamedTuple):
    """A row of a stream."""

    ts: datetime
    i: int
    key: int
    value: float


def ms(count: float) -> timedelta:
    return timedelta(milliseconds=count)


@cache
def stream(seed: int) -> tuple[Reading, ...]:
    connector = source(
        "datagen",
        columns(ts="time", i="int", key="int", value="float"),
        time="ts",
        rows_per_second="max",
        event_rows_per_second=ROWS_PER_S,
        rows=ROWS,
        seed=seed,
        start=BEGIN.isoformat(),
        disorder=f"{DISORDER_MS} milliseconds",
        fields__i__kind="sequence",
        fields__key__min=0,
        fields__key__max=20,
    )
    return tuple(Reading(*row) for row in drain(connector)[0].rows())


LEFT, RIGHT = 1, 2


def start_of(ts: datetime, size: timedelta) -> datetime:
    return ts - (ts - datetime(1970, 1, 1)) % size


def by(rows: Iterable[Any], key: Callable[[Any], Any]) -> dict[Any, list[Any]]:
    found: dict[Any, list[Any]] = defaultdict(list)
    for row in rows:
        found[key(row)].append(row)
    return found


def windows() -> list[Row]:
    """Returns the expected rows (window_end, key, n, total, top)."""
    groups = by(stream(LEFT), lambda r: (start_of(r.ts, ms(500)) + ms(500), r.key))
    return [(end, key, len(g), sum(r.value for r in g), max(r.value for r in g)) for (end, key), g in groups.items()]


def sessions(rows: Iterable[Reading], gap: timedelta) -> list[list[Reading]]:
    found = []
    for group in by(rows, lambda r: r.key).values():
        last: list[Reading] = []
        for row in sorted(group):
            if last and row.ts - last[-1].ts < gap:
                last.append(row)
            else:
                last = [row]
                found.append(last)
    return found


def pairs_in_windows(outer: bool) -> list[Row]:
    partners = by(stream(RIGHT), lambda r: (start_of(r.ts, ms(50)), r.key))
    found: list[Row] = []
    for row in stream(LEFT):
        at = start_of(row.ts, ms(50))
        mine = partners.get((at, row.key), [])
        found += [(at, row.key, row.i, partner.i) for partner in mine] or ([(at, row.key, row.i, None)] if outer else [])
    return found


def rises() -> list[Row]:
    """Returns (time of the last row, key, rows, first i, greatest value) of each rise: rows with growing values, then a smaller one."""
    found: list[Row] = []
    for key, rows in by(stream(LEFT), lambda r: r.key).items():
        ordered = sorted(rows)
        for first in range(len(ordered)):
            last = first + 1
            while last < len(ordered) and ordered[last].value > ordered[last - 1].value:
                last += 1
            falls = last < len(ordered) and ordered[last].value < ordered[last - 1].value
            if last - first > 1 and falls and ordered[last].ts - ordered[first].ts < ms(400):
                match = ordered[first : last + 1]
                found.append((match[-1].ts, key, len(match), match[0].i, max(r.value for r in match)))
    return found


def near(row: Reading, first: timedelta, last: timedelta) -> list[Reading]:
    return [other for other in by_key()[row.key] if row.ts + first <= other.ts <= row.ts + last]


@cache
def by_key() -> dict[int, list[Reading]]:
    return by(stream(RIGHT), lambda r: r.key)


TWINS: dict[str, Callable[[], list[Row]]] = {
    "windows and a stream": lambda: [
        (end, key, n, top, other.value, other.ts)
        for end, key, n, _, top in windows()
        for other in near(Reading(end, 0, key, 0.0), ms(-100), ms(0))
    ],
    "windows": lambda: [(end, key, n, total) for end, key, n, total, _ in windows() if n > 5],
    "union": lambda: [(r.ts, side, r.i, r.key, r.value) for side, seed in (("l", LEFT), ("r", RIGHT)) for r in stream(seed) if r.key < 8],
    "left join": lambda: [
        (r.ts, r.i, r.key, r.value, value) for r in stream(LEFT) for value in [other.value for other in near(r, ms(-20), ms(20))] or [None]
    ],
    "first of each window": lambda: [
        (r.ts, r.key, r.i, r.value) for r in map(min, by(stream(LEFT), lambda r: (start_of(r.ts, ms(200)), r.key)).values())
    ],
    "first after a pause": lambda: [(s[0].ts, s[0].key, s[0].i, s[0].value) for s in sessions(stream(RIGHT), ms(40))],
    "patterns": rises,
    "greatest windows": lambda: [
        (end, key, n, total)
        for group in by(windows(), lambda w: w[0]).values()
        for end, key, n, total, _ in sorted(group, key=lambda w: -w[3])[:3]
    ],
    "greatest rows": lambda: [
        (at, r.ts, r.key, r.i, r.value, place)
        for (at, _), group in by(stream(RIGHT), lambda r: (start_of(r.ts, ms(500)), r.key)).items()
        for place, r in enumerate(sorted(group, key=lambda r: -r.value)[:2], 1)
    ],
    "sessions": lambda: [
        (s[0].ts, s[-1].ts + ms(30), s[0].key, len(s), sum(r.value for r in s), s[0].i, s[-1].i) for s in sessions(stream(LEFT), ms(30))
    ],
    "join in windows": lambda: pairs_in_windows(outer=False),
    "left join in windows": lambda: pairs_in_windows(outer=True),
    "filter": lambda: [(r.ts, r.i, r.key, 2 * r.value) for r in stream(RIGHT) if r.key != 3],
}


def rounded(rows: Iterable[Row]) -> list[Row]:
    """Rounds sums, as those of plain Python differ in their last bits."""
    cells = [tuple(round(cell, 9) if isinstance(cell, float) else cell for cell in row) for row in rows]
    return sorted(cells, key=lambda row: tuple((cell is None, cell or 0) if not isinstance(cell, str) else (False, cell) for cell in row))


@pytest.mark.parametrize("name", QUERIES)
def test_the_run_on_one_node_gives_the_rows_of_plain_python(name: str):
    assert rounded(rows_on_one_node(name)) == rounded(TWINS[name]())


@pytest.mark.parametrize(("name", "column"), [("left join", 4), ("left join in windows", 3)])
def test_the_outer_side_of_a_left_join_comes_often(name: str, column: int):
    rows = rows_on_one_node(name)
    assert 0.15 < sum(row[column] is None for row in rows) / len(rows) < 0.5


def test_rows_come_out_of_order_of_their_event_times():
    times = [row.ts for row in stream(LEFT)]
    assert sum(one > other for one, other in pairwise(times)) > ROWS / 3
