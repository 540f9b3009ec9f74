"""Finds frequent words: an example of a function with a state for each key."""

import polars as pl

from sbon.functions import KeyedFunction, keyed_function


@keyed_function(
    name="frequent_words",
    version="1",
    inputs={"ts": "time", "word": "text"},
    outputs={"ts": "time", "word": "text", "n": "int"},
    states={"seen": "int"},
    event_time="ts",
    arguments={"threshold": 10},
    selectivity=0.01,
    commutes=True,
)
class FrequentWords(KeyedFunction):
    """Answers a row for a word when the word occurs for the `threshold`-th time."""

    def __init__(self, threshold: int) -> None:
        if threshold < 1:
            raise ValueError(f"threshold = {threshold}, expected 1 at least")
        self._threshold = threshold

    def init(self, keys: pl.DataFrame) -> pl.DataFrame:
        """Returns the states of new words: none seen yet."""
        return pl.select(seen=pl.zeros(keys.height, dtype=pl.Int64))

    def update(self, rows: pl.DataFrame, states: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Returns the new count of each word, and the rows at which a word reaches the threshold."""
        before = states["seen"].gather(rows["state"])
        n = before + rows.select(pl.int_range(pl.len(), dtype=pl.Int64).over("state")).to_series() + 1
        counts = rows.group_by("state").len().sort("state")["len"].cast(pl.Int64)
        often = rows.select("ts", "word", n.alias("n")).filter(pl.col("n") == self._threshold)
        return pl.DataFrame({"seen": states["seen"] + counts}), often
