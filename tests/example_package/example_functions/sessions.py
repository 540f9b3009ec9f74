"""Numbers a visitor's clicks by session: an example of a function with a state for each key."""

import polars as pl

from sbon.functions import KeyedFunction, keyed_function


@keyed_function(
    name="sessions_of",
    version="1",
    inputs={"ts": "time", "visitor": "int"},
    outputs={"ts": "time", "visitor": "int", "session": "int", "click": "int"},
    states={"last": "time", "session": "int", "clicks": "int"},
    event_time="ts",
    arguments={"gap_s": 1800.0},
)
class SessionsOf(KeyedFunction):
    """Answers each click with its session's number and its place in the session.

    A session ends where the next click is more than `gap_s` later or earlier.
    """

    def __init__(self, gap_s: float) -> None:
        if not gap_s > 0:
            raise ValueError(f"gap_s = {gap_s}, expected more than 0")
        self._gap_us = round(1e6 * gap_s)

    def init(self, keys: pl.DataFrame) -> pl.DataFrame:
        """Returns the states of new visitors: no clicks, so that the first click begins session 1."""
        none = pl.zeros(keys.height, dtype=pl.Int64)
        return pl.select(last=none.cast(pl.Datetime("us")), session=none, clicks=none)

    def update(self, rows: pl.DataFrame, states: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Returns the new states, and each click's session and place in order of arrival."""
        known = states.with_row_index("state").select("state", "last", "session", "clicks")
        clicks = rows.join(known, on="state", how="left", maintain_order="left")
        before = pl.coalesce(pl.col("ts").shift(1).over("state"), pl.col("last"))
        begins = ((pl.col("clicks") == 0) & (pl.int_range(pl.len()).over("state") == 0)) | (
            (pl.col("ts").to_physical() - before.to_physical()).abs() > self._gap_us
        )
        clicks = clicks.with_columns(begun=begins.cast(pl.Int64).cum_sum().over("state"))
        place = pl.int_range(pl.len(), dtype=pl.Int64).over("state", "begun") + 1
        found = clicks.select(
            "state",
            "ts",
            "visitor",
            session=pl.col("session") + pl.col("begun"),
            click=place + pl.when(pl.col("begun") == 0).then(pl.col("clicks")).otherwise(0),
        )
        last = found.group_by("state").agg(pl.col("ts", "session", "click").last()).sort("state")
        return last.select(last="ts", session="session", clicks="click"), found.drop("state")
