"""`sbon bench match`: how many rows a second MATCH_RECOGNIZE processes on two cores.

Two processes share the rows of 1,000 keys (Zipf) by key, as two instances of an operator do, in batches with a watermark after each. Each
process is timed by its processor time, so that other work on the machine counts less; the rate is the sum of both processes. Before the
timing, the answers of the first rows are compared with those of plain loops.

The last workload has one key and one process: 1,000 starts a second stay open for an hour, and hardly any of them ends.
"""

import math
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from time import process_time
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from sbon.cli import tables
from sbon.cli.output import count, number, print_note, print_table
from sbon.operators.operator import Operator
from sbon.operators.registry import build
from sbon.query.catalog import Catalog
from sbon.query.params.matched import MatchParams
from sbon.query.params.source import SourceParams
from sbon.query.planner import plan
from sbon.query.sql import CreateSource, SelectQuery, parse

KEYS = 1_000
ROWS_A_SECOND = 100_000
WITHIN_US = 10_000_000
CORES = 2
CHECKED_ROWS = 20_000
HOUR_US = 3_600_000_000

_SOURCE = """CREATE SOURCE ticks (ts TIMESTAMP, symbol BIGINT, kind BIGINT, price DOUBLE, WATERMARK FOR ts AS ts)
    WITH (connector = 'datagen', nodes = 'a')"""


class Workload(NamedTuple):
    """A pattern, and how many rows a second it should take."""

    pattern: str
    """PATTERN and DEFINE."""
    aim_rows_per_s: float
    orders: tuple[str, ...]
    """The pattern for plain loops: a sequence of variables, `+` after those that repeat; several sequences are tried in turn."""
    holds: Callable[[str, "list[tuple[int, int, float]]", int, int, dict[str, list[int]]], bool]
    """Tells whether a row fits a variable: called with variable, rows, place of the row and of the first row, places of each variable."""


def _kinds(name: str, rows: list[tuple[int, int, float]], at: int, first: int, taken: dict[str, list[int]]) -> bool:
    return rows[at][1] == "abc".index(name)


def _stairs(name: str, rows: list[tuple[int, int, float]], at: int, first: int, taken: dict[str, list[int]]) -> bool:
    return name == "s" or (at > 0 and (rows[at][2] < rows[at - 1][2] if name == "d" else rows[at][2] > rows[at - 1][2]))


def _above(name: str, rows: list[tuple[int, int, float]], at: int, first: int, taken: dict[str, list[int]]) -> bool:
    return _kinds(name, rows, at, first, taken) and (name != "b" or rows[at][2] > rows[first][2])


def _mean_above(name: str, rows: list[tuple[int, int, float]], at: int, first: int, taken: dict[str, list[int]]) -> bool:
    if name != "b" or rows[at][1] != 1:
        return _kinds(name, rows, at, first, taken)
    prices = [rows[place][2] for place in (*taken.get("b", ()), at)]
    return math.fsum(prices) / len(prices) > rows[first][2]


_KIND = "DEFINE a AS kind = 0, b AS kind = 1, c AS kind = 2"
WORKLOADS = {
    "a b+ c": Workload(f"PATTERN (a b+ c) WITHIN INTERVAL '10 seconds' {_KIND}", 16e6, ("ab+c",), _kinds),
    "V by PREV": Workload(
        "PATTERN (s d+ u+) WITHIN INTERVAL '10 seconds' DEFINE d AS price < PREV(price), u AS price > PREV(price)",
        12e6,
        ("sd+u+",),
        _stairs,
    ),
    "b.price > a.price": Workload(
        "PATTERN (a b+ c) WITHIN INTERVAL '10 seconds' DEFINE a AS kind = 0, b AS kind = 1 AND b.price > a.price, c AS kind = 2",
        6e6,
        ("ab+c",),
        _above,
    ),
    "AVG in DEFINE": Workload(
        "PATTERN (a b+ c) WITHIN INTERVAL '10 seconds' DEFINE a AS kind = 0, b AS kind = 1 AND AVG(b.price) > a.price, c AS kind = 2",
        3e6,
        ("ab+c",),
        _mean_above,
    ),
    "PERMUTE": Workload(
        f"PATTERN (PERMUTE(a, b, c)) WITHIN INTERVAL '10 seconds' {_KIND}", 6e6, ("abc", "acb", "bac", "bca", "cab", "cba"), _kinds
    ),
}
ONE_KEY = "one key, 1 h"
ONE_KEY_AIM = 0.5e6
BYTES_A_START_AIM = 64.0
_ONE_KEY_PATTERN = "PATTERN (a b* c) WITHIN INTERVAL '1 hour' DEFINE a AS kind = 0, b AS kind < 2, c AS kind = 2"


def measure(rows: int, batch_rows: int, names: list[str], tell: Callable[[str], None]) -> dict[str, Any]:
    """Returns the rates in rows a second on two cores, and the cost of the open starts of one key."""
    result: dict[str, Any] = {"rows": rows, "batch_rows": batch_rows, "keys": KEYS, "cores": CORES, "patterns": {}}
    frame = ticks(rows)
    for name in names:
        if name == ONE_KEY:
            continue
        tell(f"{name}: answers")
        _check(name, frame[:CHECKED_ROWS])
        tell(f"{name}: {rows:,} rows")
        with ProcessPoolExecutor(CORES, mp_context=get_context("spawn")) as pool:
            parts = list(pool.map(_timed, [name] * CORES, [rows] * CORES, [batch_rows] * CORES, range(CORES)))
        rate = sum(part["rows"] / part["cpu_s"] for part in parts)
        aim = WORKLOADS[name].aim_rows_per_s
        matches = sum(part["matches"] for part in parts)
        result["patterns"][name] = {
            "rows_per_s": round(rate),
            "aim_rows_per_s": round(aim),
            "of_aim": round(rate / aim, 3),
            "matches": matches,
        }
    if ONE_KEY in names:
        tell(f"{ONE_KEY}: {2 * 3_600_000:,} rows")
        result["one_key"] = _one_key(batch_rows)
    return result


def ticks(rows: int) -> pl.DataFrame:
    """Returns rows in the order of their times: keys by Zipf's law, kinds 0 to 3, prices around 100."""
    rng = np.random.default_rng(1)
    odds = 1 / np.arange(1, KEYS + 1)
    return pl.DataFrame(
        {
            "ts": np.arange(rows) * 1_000_000 // ROWS_A_SECOND,
            "symbol": rng.choice(KEYS, rows, p=odds / odds.sum()),
            "kind": rng.choice(4, rows, p=(0.1, 0.5, 0.1, 0.3)),
            "price": 100 + 0.01 * rng.integers(-500, 501, rows),
        }
    ).with_columns(pl.col("ts").cast(pl.Datetime("us")))


def _operator(pattern: str, partition: str = "PARTITION BY symbol") -> tuple[Operator | None, Operator]:
    """Returns the operator that prepares rows for the pattern (None if not needed), and the operator of the pattern."""
    measures = "MEASURES FIRST(ts) AS began, LAST(ts) AS ended, COUNT(*) AS n"
    statement = f"{_SOURCE}; SELECT * FROM ticks MATCH_RECOGNIZE ({partition} ORDER BY ts {measures} {pattern}) AS m"
    source, query = parse(statement)
    assert isinstance(source, CreateSource)
    assert isinstance(query, SelectQuery)
    catalog = Catalog()
    catalog.put("source", source.name, sql=source.sql, owner="a", stamp=1, source=source.definition)
    made = plan(query, catalog, {"a": {}}, "a", "q").operators
    params = [one.params for one in made]
    place = next(at for at, one in enumerate(params) if isinstance(one, MatchParams))
    before = params[place - 1]
    return (None if isinstance(before, SourceParams) else build(before)), build(params[place])


def _batches(frame: pl.DataFrame, before: Operator | None, batch_rows: int) -> list[tuple[pl.DataFrame, int]]:
    """Returns prepared batches of rows, each with the watermark after it."""
    found = []
    for begin in range(0, frame.height, batch_rows):
        batch = frame[begin : begin + batch_rows]
        mark = int(batch["ts"].cast(pl.Int64).max()) + 1  # type: ignore[arg-type]
        found += [(made, mark) for made in ([batch] if before is None else before.process(0, batch))]
    return found


def _answers(operator: Operator, batches: list[tuple[pl.DataFrame, int]]) -> Iterator[pl.DataFrame]:
    for batch, mark in batches:
        yield from operator.process(0, batch)
        yield from operator.advance(mark)


def _timed(name: str, rows: int, batch_rows: int, part: int) -> dict[str, Any]:
    """Measures one process with its share of the keys."""
    os.environ["POLARS_MAX_THREADS"] = "1"
    frame = ticks(rows).filter(pl.col("symbol") % CORES == part)
    before, operator = _operator(WORKLOADS[name].pattern)
    batches = _batches(frame, before, batch_rows)
    began = process_time()
    matches = sum(answer.height for answer in _answers(operator, batches))
    return {"rows": frame.height, "matches": matches, "cpu_s": process_time() - began}


def _check(name: str, frame: pl.DataFrame) -> None:
    """Compares answers with those of plain loops."""
    workload = WORKLOADS[name]
    before, operator = _operator(workload.pattern)
    batches = _batches(frame, before, 1_000)
    batches[-1] = batches[-1][0], 2**62
    found = [row[-3:] for answer in _answers(operator, batches) for row in answer.rows()]
    found = sorted((began, ended, n) for began, ended, n in found)
    expected = []
    times = frame["ts"].cast(pl.Int64)
    for part in frame.with_columns(times).partition_by("symbol"):
        rows = part.select("ts", "kind", "price").rows()
        start = 0
        while start < len(rows):
            ends = (_matched(workload, rows, start, start, order, 0, {}) for order in workload.orders)
            end = next((end for end in ends if end is not None), None)
            if end is not None:
                expected.append((rows[start][0], rows[end - 1][0], end - start))
            start = start + 1 if end is None else end
    told = [(_us(began), _us(ended), n) for began, ended, n in found]
    if sorted(told) != sorted(expected):
        raise AssertionError(f"{name}: {len(told)} matches, expected {len(expected)} as plain loops give")


def _us(time: Any) -> int:
    return int(pl.Series([time], dtype=pl.Datetime("us")).cast(pl.Int64)[0])


def _matched(
    workload: Workload, rows: list[tuple[int, int, float]], start: int, at: int, order: str, place: int, taken: dict[str, list[int]]
) -> int | None:
    """Returns the place after the preferred match that begins at row `start`, found by backtracking; None if there is none."""
    if place == len(order):
        return at
    name, repeats = order[place], order[place + 1 : place + 2] == "+"
    if at >= len(rows) or rows[at][0] - rows[start][0] >= WITHIN_US or not workload.holds(name, rows, at, start, taken):
        return None
    more = {**taken, name: [*taken.get(name, []), at]}
    if repeats:
        longer = _matched(workload, rows, start, at + 1, order, place, more)
        if longer is not None:
            return longer
    return _matched(workload, rows, start, at + 1, order, place + 1 + repeats, more)


def _one_key(batch_rows: int) -> dict[str, Any]:
    """Measures one key: each row is a start that stays open for an hour, 1,000 a second; row 5,000,000 ends all of them."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_one_key_timed, batch_rows).result()


def _one_key_timed(batch_rows: int) -> dict[str, Any]:
    import psutil

    os.environ["POLARS_MAX_THREADS"] = "1"
    before, operator = _operator(_ONE_KEY_PATTERN, partition="")
    process = psutil.Process()
    total, answers, spent, most = 2 * 3_600_000, 0, 0.0, 0
    resident = process.memory_info().rss
    peak = resident
    for begin in range(0, total, batch_rows):
        at = np.arange(begin, min(total, begin + batch_rows))
        kinds = np.where(at == 5_000_000, 2, 0)
        frame = pl.DataFrame({"ts": at * 1_000, "symbol": np.zeros(at.size, np.int64), "kind": kinds, "price": at * 0.01})
        batches = _batches(frame.with_columns(pl.col("ts").cast(pl.Datetime("us"))), before, batch_rows)
        began = process_time()
        answers += sum(answer.height for answer in _answers(operator, batches))
        spent += process_time() - began
        most = max(most, operator.state_rows)
        peak = max(peak, process.memory_info().rss)
    return {
        "rows": total,
        "rows_per_s": round(total / spent),
        "aim_rows_per_s": round(ONE_KEY_AIM),
        "of_aim": round(total / spent / ONE_KEY_AIM, 3),
        "open_starts": most,
        "matches": answers,
        "bytes_a_start": round((peak - resident) / max(1, most), 1),
        "aim_bytes_a_start": BYTES_A_START_AIM,
    }


def show(result: dict[str, Any]) -> None:
    """Prints a line for each pattern."""
    lines = [
        [name, count(one["rows_per_s"]), count(one["aim_rows_per_s"]), number(one["of_aim"]), count(one["matches"])]
        for name, one in [*result["patterns"].items(), *([(ONE_KEY, result["one_key"])] if "one_key" in result else [])]
    ]
    titles = ("rows/s", "aim", "of aim", "matches")
    columns = (tables.Column("pattern"), *(tables.Column(title, right=True) for title in titles))
    print_table(columns, lines, title=f"{result['rows']:,} rows, {result['keys']:,} keys, {result['cores']} cores")
    if "one_key" in result:
        one = result["one_key"]
        print_note(f"{ONE_KEY}: {one['open_starts']:,} open starts, {one['bytes_a_start']} bytes each (aim {one['aim_bytes_a_start']:g})")
