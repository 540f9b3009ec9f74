"""Drives a state machine without I/O: carries out its actions, and wakes it in time.

    event -> machine -> actions -> perform(action) for each -> timer at machine.next_wake()

A shell decides nothing. Its owner turns messages, results of threads and news of members into events of the machine.
"""

from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar

from sbon.ports import Clock, Timer

A = TypeVar("A")


class Machine(Protocol[A]):
    """A state machine with timers."""

    def wake(self, now: float) -> list[A]:
        """Handles the timers that are due."""

    def next_wake(self) -> float | None:
        """Returns when to call `wake`; None: not before the next event."""


class Shell(Generic[A]):
    """Carries out the actions of one machine."""

    def __init__(self, host: Clock, machine: Machine[A], perform: Callable[[A], None]) -> None:
        self._host = host
        self._machine = machine
        self._perform = perform
        self._timer: Timer | None = None
        self._at: float | None = None
        self._closed = False

    def do(self, wanted: Iterable[A]) -> None:
        """Carries out actions in their order. Call it after each event, even if the event led to no action."""
        for action in wanted:
            self._perform(action)
        when = None if self._closed else self._machine.next_wake()
        if when != self._at:
            self._cancel()
            self._at = when
            self._timer = None if when is None else self._host.call_at(when, self._wake)

    def close(self) -> None:
        """Stops waking the machine."""
        self._closed = True
        self._cancel()

    def _wake(self) -> None:
        self._at = self._timer = None
        self.do(self._machine.wake(self._host.now()))

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._at = self._timer = None
