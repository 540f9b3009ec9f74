"""Converts temperatures: an example of a function without a state."""

import polars as pl

from sbon.functions import batch_function


@batch_function(
    name="to_celsius",
    version="1",
    inputs={"ts": "time", "sensor": "text", "fahrenheit": "float"},
    outputs={"ts": "time", "sensor": "text", "celsius": "float"},
    event_time="ts",
    arguments={"offset": 0.0},
    selectivity=0.99,
)
def to_celsius(frame: pl.DataFrame, offset: float) -> pl.DataFrame:
    """Converts degrees Fahrenheit to Celsius and adds an offset; leaves out rows without a reading."""
    celsius = (pl.col("fahrenheit") - 32) * 5 / 9 + offset
    return frame.drop_nulls("fahrenheit").select("ts", "sensor", celsius=celsius)
