"""Interfaces to the machine that execution needs: timers, meters of processor time, and the use of the cores."""

from typing import NamedTuple, Protocol


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


class ProcessorUse(NamedTuple):
    """Recent use of the cores of a machine."""

    load: float
    """`use`, plus the share of time in which work waited for a core: 0 idle, 1 all cores used, 2 at most."""
    use: float
    """Share of all cores' time that all programs together have used, 0 to 1."""
    free_cores: float
    """Cores that other programs have left to this agent, whether it used them or not."""
