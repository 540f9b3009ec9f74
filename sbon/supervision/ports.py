"""Protocols of the agent's services that supervision uses: time, and messages to other agents."""

from collections.abc import Callable
from typing import Protocol

from sbon.errors import SbonError
from sbon.execution.ports import Timer
from sbon.types import NodeId
from sbon.wire.messages import Message


class Clock(Protocol):
    """Monotonic time, and calls at a given time."""

    def now(self) -> float:
        """Returns monotonic seconds."""

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        """Calls once at the monotonic time `when` (soon, if it has passed)."""

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Calls once, after the callbacks already due."""


class Messages(Protocol):
    """Requests to agents by name."""

    me: NodeId

    def request(self, node: NodeId, message: Message, done: Callable[[Message | SbonError], None], timeout_s: float = ...) -> None:
        """Sends a request; `done` gets the answer or the error, once."""

    def tell(self, node: NodeId, message: Message) -> None:
        """Sends a request and ignores the answer."""
