"""Smooths the readings of each sensor: an example of a function that keeps a state."""

import json

import polars as pl

from sbon.functions import StatefulFunction, batch_function


@batch_function(
    name="smooth",
    version="2",
    inputs={"ts": "time", "sensor": "text", "fahrenheit": "float"},
    outputs={"ts": "time", "sensor": "text", "level": "float"},
    event_time="ts",
    arguments={"factor": float},
)
class Smooth(StatefulFunction):
    """Exponential smoothing: each reading moves its sensor's level towards the reading by `factor`."""

    def __init__(self, factor: float) -> None:
        if not 0 < factor <= 1:
            raise ValueError(f"factor = {factor}, expected above 0 and at most 1")
        self._factor = factor
        self._levels: dict[str, float] = {}

    def process(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Returns the level after each reading. The Python loop runs per sensor, not per row."""
        smoothed = []
        for (sensor,), rows in frame.drop_nulls().group_by(["sensor"], maintain_order=True):
            before = self._levels.get(str(sensor))
            values = rows["fahrenheit"] if before is None else pl.concat([pl.Series("fahrenheit", [before]), rows["fahrenheit"]])
            levels = values.ewm_mean(alpha=self._factor, adjust=False).tail(rows.height)
            self._levels[str(sensor)] = float(levels[-1])
            smoothed.append(rows.select("ts", "sensor", levels.alias("level")))
        return pl.concat(smoothed) if smoothed else frame.clear().select("ts", "sensor", pl.lit(None, pl.Float64).alias("level"))

    def snapshot(self) -> bytes:
        """Returns the levels as JSON."""
        return json.dumps(self._levels, sort_keys=True).encode()

    def restore(self, state: bytes) -> None:
        """Restores the levels from a snapshot."""
        self._levels = json.loads(state)
