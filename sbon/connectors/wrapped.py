"""A source that wraps another one and passes everything on. `idle` and `required` extend it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sbon.connectors.interface import Polled, SourceConnector
from sbon.misfits import Misfits

if TYPE_CHECKING:
    import polars as pl


class WrappedSource:
    """Passes on all that a source offers, including the optional parts; subclasses extend `poll`."""

    def __init__(self, source: SourceConnector) -> None:
        self._source: Any = source
        self.misfits: Misfits | None = getattr(source, "misfits", None)
        if hasattr(source, "batch_rows"):
            self.batch_rows = source.batch_rows
        if hasattr(source, "due_rows"):
            self.due_rows: Callable[[float], int] = source.due_rows
        if hasattr(source, "open"):
            self.open: Callable[[], None] = source.open
        if hasattr(source, "acknowledged"):
            self.acknowledged: Callable[[int], None] = source.acknowledged
        if hasattr(source, "sample"):
            self.sample: Callable[[int], pl.DataFrame] = source.sample

    @property
    def threaded(self) -> bool:
        """Tells whether the wrapped source should be polled on a thread now."""
        return bool(getattr(self._source, "threaded", False))

    @property
    def dropped_rows(self) -> int:
        """Returns the number of rows that the wrapped source has left out."""
        return int(self._source.dropped_rows)

    @property
    def remark(self) -> str:
        """Returns the note of the wrapped source."""
        return str(getattr(self._source, "remark", ""))

    @property
    def stalled(self) -> str:
        """Returns the reason why the wrapped source has no rows; empty if it has."""
        return str(getattr(self._source, "stalled", ""))

    def start(self, ready: Callable[[], None]) -> None:
        """Starts the wrapped source."""
        self._source.start(ready)

    def stop(self) -> None:
        """Stops the wrapped source."""
        self._source.stop()

    def poll(self, now: float, wall: float) -> Polled:
        """Polls the wrapped source."""
        if hasattr(self, "batch_rows"):
            self._source.batch_rows = self.batch_rows
        polled: Polled = self._source.poll(now, wall)
        return polled
