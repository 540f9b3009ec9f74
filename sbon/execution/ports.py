"""Protocols of the machine's services that execution uses: timers, and meters of processor time."""

from typing import Protocol


class Timer(Protocol):
    """A pending call."""

    def cancel(self) -> None:
        """Cancels the call; does nothing if it has been made."""


class Meter(Protocol):
    """Measures the processor time of one piece of work, on the thread that does it."""

    def lap(self, rows: int) -> int:
        """Returns the nanoseconds since the last call or the beginning; the simulation computes them from the rows processed since."""

    def end(self) -> None:
        """Ends the measurement; call it once."""
