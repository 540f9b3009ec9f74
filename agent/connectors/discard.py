"""Connector `discard` (sink): counts rows and forgets them. No options.

`CallbackSink` gives them to a function instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from agent.connectors.base import ConnectorContext
from agent.connectors.options import Options
from sbon.query.plan import SinkParams
from sbon.query.schema import Schema

if TYPE_CHECKING:
    import polars as pl


class DiscardSink:
    """Takes everything; `rows` says how much."""

    def __init__(self, params: SinkParams, schema: Schema, context: ConnectorContext) -> None:
        Options(f"sink {params.name}", params.connector, params.options).finish()
        self.rows = 0
        self.dropped_rows = 0

    def write(self, frame: pl.DataFrame) -> None:
        """Count."""
        self.rows += frame.height

    def close(self) -> None:
        """Nothing is held."""


class CallbackSink:
    """Gives every frame to a function, on whichever thread the engine writes from."""

    def __init__(self, callback: Callable[[pl.DataFrame], None]) -> None:
        self._callback = callback
        self.dropped_rows = 0

    def write(self, frame: pl.DataFrame) -> None:
        """Pass on."""
        self._callback(frame)

    def close(self) -> None:
        """Nothing is held."""
