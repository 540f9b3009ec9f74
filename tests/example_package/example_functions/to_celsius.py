"""A function that looks at each batch alone."""

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
    """Degrees Fahrenheit to Celsius, plus an offset; rows without a reading are left out."""
    celsius = (pl.col("fahrenheit") - 32) * 5 / 9 + offset
    return frame.drop_nulls("fahrenheit").select("ts", "sensor", celsius=celsius)
