"""Reference answers of the queries, each a batch run over all rows at once, in plain polars.

They follow the meaning of the queries, not the engine: joins have no bound on time, sessions are cut at gaps in sorted rows, and nothing
of `sbon.operators` is used.
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


def _q9(tables: Tables) -> pl.LazyFrame:
    bids = tables["bid"].select("auction", "bidder", "price", bid_ts="ts")
    pairs = tables["auction"].join(bids, left_on="id", right_on="auction")
    valid = pairs.filter(pl.col("bid_ts").is_between("ts", "expires"))
    won = valid.sort(pl.col("price").neg(), "bid_ts").group_by("id", maintain_order=True).first()
    return won.select("id", "item_name", "seller", "category", "ts", "expires", "bidder", "price", "bid_ts")


def _q6(tables: Tables) -> pl.LazyFrame:
    won = _q9(tables).collect().sort("id")
    rows: list[tuple[int, int, float]] = []
    prices: dict[int, list[int]] = {}
    for seller, auction, price in won.select("seller", "id", "price").iter_rows():
        last = prices.setdefault(seller, [])
        last.append(price)
        rows.append((seller, auction, sum(last[-11:]) / len(last[-11:])))
    return pl.LazyFrame(rows, schema={"seller": pl.Int64, "id": pl.Int64, "average": pl.Float64}, orient="row")


def _q10(tables: Tables) -> pl.LazyFrame:
    time = pl.col("ts").dt
    return tables["bid"].select("auction", "bidder", "price", "ts", "extra", dt=time.strftime("%Y-%m-%d"), hm=time.strftime("%H:%M"))


def _q14(tables: Tables) -> pl.LazyFrame:
    euros, hour = pl.col("price") * 0.908, pl.col("ts").dt.hour()
    part = pl.when(hour.is_between(8, 18)).then(pl.lit("day")).when(hour.is_in([7, 19])).then(pl.lit("other")).otherwise(pl.lit("night"))
    return (
        tables["bid"]
        .filter(euros > 1_000_000, euros < 50_000_000)
        .select(
            "auction", "bidder", euros, part.alias("part_of_day"), "ts", "extra", c_count=_whole(pl.col("extra").str.count_matches("c"))
        )
    )


def _q15(tables: Tables) -> pl.LazyFrame:
    return _by_day(tables).group_by("day").agg(**_bids(), **_different("bidder"), **_different("auction"))


def _q16(tables: Tables) -> pl.LazyFrame:
    minute = pl.col("ts").dt.strftime("%H:%M").max()
    return _by_day(tables).group_by("channel", "day").agg(minute=minute, **_bids(), **_different("bidder"), **_different("auction"))


def _q17(tables: Tables) -> pl.LazyFrame:
    price = pl.col("price")
    prices = {"min_price": price.min(), "max_price": price.max(), "avg_price": price.mean(), "sum_price": price.sum()}
    return _by_day(tables).group_by("auction", "day").agg(**_bids(), **prices)


def _q18(tables: Tables) -> pl.LazyFrame:
    latest = pl.col("ts") == pl.col("ts").max().over(_window_end("ts"), "bidder", "auction")
    return tables["bid"].filter(latest).select("auction", "bidder", "price", "channel", "url", "ts", "extra")


def _q19(tables: Tables) -> pl.LazyFrame:
    ordered = tables["bid"].sort(pl.col("price").neg(), "ts")
    ranked = ordered.with_columns(place=_whole(pl.int_range(1, pl.len() + 1).over(_window_end("ts"), "auction")))
    return ranked.filter(pl.col("place") <= 10).select("auction", "bidder", "price", "channel", "url", "ts", "extra", "place")


def _q20(tables: Tables) -> pl.LazyFrame:
    items = tables["auction"].filter(pl.col("category") == 10)
    items = items.select("id", *(pl.col(name).alias(f"auction_{name}") for name in ("extra", "ts")), *_ITEM)
    pairs = tables["bid"].join(items, left_on="auction", right_on="id").rename({"auction_ts": "opened"})
    bid = ("auction", "bidder", "price", "channel", "url", "ts", "extra")
    return pairs.select(*bid, *_ITEM[:4], "opened", *_ITEM[4:], "auction_extra")


def _q21(tables: Tables) -> pl.LazyFrame:
    large = pl.col("channel").replace_strict({"Search": "0", "Social": "1", "Portal": "2", "Store": "3"}, default=None)
    number = large.fill_null(pl.col("url").str.extract("(&|^)channel_id=([^&]*)", 2))
    return tables["bid"].select("auction", "bidder", "price", "channel", channel_id=number).filter(pl.col("channel_id").is_not_null())


def _q22(tables: Tables) -> pl.LazyFrame:
    parts = pl.col("url").str.split("/").list
    folders = {f"dir{place}": parts.get(place + 2, null_on_oob=True) for place in (1, 2, 3)}
    return tables["bid"].select("auction", "bidder", "price", "channel", **folders)


_ITEM = ("item_name", "description", "initial_bid", "reserve", "expires", "seller", "category")
_CLASSES = {
    "low": pl.col("price") < 10_000,
    "middle": pl.col("price").is_between(10_000, 999_999),
    "high": pl.col("price") >= 1_000_000,
}


def _by_day(tables: Tables) -> pl.LazyFrame:
    return tables["bid"].with_columns(day=pl.col("ts").dt.strftime("%Y-%m-%d"))


def _bids() -> dict[str, pl.Expr]:
    return {"total_bids": _whole(pl.len())} | {f"{name}_bids": _whole(chosen.sum()) for name, chosen in _CLASSES.items()}


def _different(column: str) -> dict[str, pl.Expr]:
    """Returns the numbers of different values, in total and in each class of price."""
    classes = {f"{name}_{column}s": _whole(pl.col(column).filter(chosen).n_unique()) for name, chosen in _CLASSES.items()}
    return {f"total_{column}s": _whole(pl.col(column).n_unique())} | classes


def _whole(number: pl.Expr) -> pl.Expr:
    return number.cast(pl.Int64)


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
    "q6": _q6,
    "q9": _q9,
    "q10": _q10,
    "q11": _q11,
    "q14": _q14,
    "q15": _q15,
    "q16": _q16,
    "q17": _q17,
    "q18": _q18,
    "q19": _q19,
    "q20": _q20,
    "q21": _q21,
    "q22": _q22,
}


def answer(query: str, tables: Tables) -> pl.DataFrame:
    """Returns all rows that a query of `catalogue.OFFERED` must give, in no particular order."""
    return _ANSWERS[query](tables).collect()
