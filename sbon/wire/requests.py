"""Interface for requests to agents by name; the library asks other agents through it."""

from collections.abc import Callable
from typing import Protocol

from sbon.errors import SbonError
from sbon.types import NodeId
from sbon.wire.messages import Message


class Messages(Protocol):
    """Requests to agents by name."""

    me: NodeId

    def request(self, node: NodeId, message: Message, done: Callable[[Message | SbonError], None], timeout_s: float = ...) -> None:
        """Sends a request; `done` gets the answer or the error, once."""

    def tell(self, node: NodeId, message: Message) -> None:
        """Sends a request and ignores the answer."""
