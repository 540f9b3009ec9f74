"""The answers of the queries by other means: each a batch run over all rows at once, in plain polars.

Written from the meaning of the queries, not from how the engine works: joins have no bound on time, sessions are cut at gaps in sorted
rows, and nothing of `sbon.operators` is used.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import TypeAlias

import polars as pl

Tables: TypeAlias = dict[str, pl.LazyFrame]
"""All rows of `person`, `auction` and `bid`."""

WINDOW = timedelta(seconds=10)


def _q0(tables: Tables) -> pl.LazyFrame:
    return tables["bid"].select("auction", "bidder", "price", "ts", "extra")


def _q1(tables: Tables) -> pl.LazyFrame:
    return tables["bid"].select("auction", "bidder", pl.col("price") * 0.908, "ts", "extra")


def _q2(tables: Tables) -> pl.LazyFrame:
    return tables["bid"].filter(pl.col("auction").mod(123) == 0).select("auction", "price")


def _q3(tables: Tables) -> pl.LazyFrame:
    sellers = tables["person"].filter(pl.col("state").is_in(["OR", "ID", "CA"]))
    items = tables["auction"].filter(pl.col("category") == 10).select("seller", auction="id")
    return items.join(sellers, left_on="seller", right_on="id").select("name", "city", "state", id="auction")


def _q4(tables: Tables) -> pl.LazyFrame:
    bids = tables["bid"].select("auction", "price", bid_at="ts")
    pairs = tables["auction"].join(bids, left_on="id", right_on="auction")
    valid = pairs.filter(pl.col("bid_at").is_between("ts", "expires")).with_columns(window_end=_window_end("ts"))
    closed = valid.group_by("window_end", "id", "category").agg(final=pl.col("price").max())
    return closed.group_by("window_end", "category").agg(average=pl.col("final").mean())


def _q5(tables: Tables) -> pl.LazyFrame:
    step = timedelta(seconds=2)
    # Each bid is in the five windows that begin at its own 2 s and at the four before.
    ends = [pl.col("ts").dt.truncate(step) - back * step + WINDOW for back in range(5)]
    each = pl.concat([tables["bid"].select("auction", window_end=end) for end in ends])
    counted = each.group_by("window_end", "auction").agg(num=pl.len().cast(pl.Int64))
    most = pl.col("num").max().over("window_end")
    return counted.filter(pl.col("num") == most).select("window_end", "auction", "num")


def _q7(tables: Tables) -> pl.LazyFrame:
    highest = pl.col("price").max().over(_window_end("ts"))
    return tables["bid"].filter(pl.col("price") == highest).select("auction", "price", "bidder", "ts", "extra")


def _q8(tables: Tables) -> pl.LazyFrame:
    sellers = tables["auction"].select("seller", window_end=_window_end("ts")).unique()
    people = tables["person"].select("id", "name", window_end=_window_end("ts")).unique()
    return people.join(sellers, left_on=["id", "window_end"], right_on=["seller", "window_end"], how="semi")


def _q11(tables: Tables) -> pl.LazyFrame:
    bids = tables["bid"].select("bidder", "ts").sort("bidder", "ts")
    begins = (pl.col("ts").diff().over("bidder") >= WINDOW).fill_null(False)
    numbered = bids.with_columns(session=begins.cum_sum().over("bidder"))
    sessions = numbered.group_by("bidder", "session").agg(
        bids=pl.len().cast(pl.Int64), window_start=pl.col("ts").min(), window_end=pl.col("ts").max() + WINDOW
    )
    return sessions.select("bidder", "bids", "window_start", "window_end")


def _window_end(time: str) -> pl.Expr:
    return pl.col(time).dt.truncate(WINDOW) + WINDOW


_ANSWERS: dict[str, Callable[[Tables], pl.LazyFrame]] = {
    "q0": _q0,
    "q1": _q1,
    "q2": _q2,
    "q3": _q3,
    "q4": _q4,
    "q5": _q5,
    "q7": _q7,
    "q8": _q8,
    "q11": _q11,
}


QUERIES = tuple(_ANSWERS)


def answer(query: str, tables: Tables) -> pl.DataFrame:
    """All rows that a query must give, in no particular order."""
    return _ANSWERS[query](tables).collect()


def equal(found: pl.DataFrame, expected: pl.DataFrame) -> bool:
    """Whether two answers have the same columns and the same rows, as often, in whatever order; floats as near as sums can be."""
    if found.columns != expected.columns or found.height != expected.height:
        return False
    exact = [name for name, dtype in expected.schema.items() if not dtype.is_float()]
    if found.select(exact).schema != expected.select(exact).schema:
        return False
    order = [*exact, *(name for name in expected.columns if name not in exact)]
    one, other = found.sort(order, nulls_last=True), expected.sort(order, nulls_last=True)
    near = [((one[name] - other[name]).abs() <= 1e-9 * other[name].abs()).all() for name in order if name not in exact]
    return one.select(exact).equals(other.select(exact)) and all(near)
