"""A source around another one, which it otherwise leaves as it is. Bases of `idle` and `required`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sbon.misfits import Misfits
from sbon_agent.connectors.base import Polled, SourceConnector


class WrappedSource:
    """Passes on all that a source offers, the optional parts included; `poll` is there to be extended."""

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

    @property
    def threaded(self) -> bool:
        """Whether it should be asked on a thread now."""
        return bool(getattr(self._source, "threaded", False))

    @property
    def dropped_rows(self) -> int:
        """Rows that the other source has left out."""
        return int(self._source.dropped_rows)

    @property
    def remark(self) -> str:
        """What the other source has to say."""
        return str(getattr(self._source, "remark", ""))

    @property
    def stalled(self) -> str:
        """Why the other source has nothing."""
        return str(getattr(self._source, "stalled", ""))

    def start(self, ready: Callable[[], None]) -> None:
        """Begin."""
        self._source.start(ready)

    def stop(self) -> None:
        """End."""
        self._source.stop()

    def poll(self, now: float, wall: float) -> Polled:
        """What the other source gives."""
        if hasattr(self, "batch_rows"):
            self._source.batch_rows = self.batch_rows
        polled: Polled = self._source.poll(now, wall)
        return polled
