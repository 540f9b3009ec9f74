"""One address that this agent dials, and the requests to it. `sbon.peers.peers` uses it."""

from collections.abc import Callable
from functools import partial

from sbon.errors import LinkError, SbonError, UnsupportedError
from sbon.peers.connection import Connection
from sbon.ports import Timer
from sbon.types import Address, NodeId


class Request:
    """A request in progress. It ends exactly once, with the reply, its time-out or an error."""

    def __init__(
        self, remote: "Remote", payload: bytes, done: Callable[[bytes | SbonError], None], expect: NodeId | None, protocol: int = 0
    ) -> None:
        self.payload = payload
        self.expect = expect
        """The agent that must answer; None for any."""
        self.protocol = protocol
        """The least protocol version that the agent must speak."""
        self.connection: Connection | None = None
        """Connection on which the request was sent; None before."""
        self.timer: Timer | None = None
        self._remote, self._done = remote, done

    def finish(self, result: bytes | SbonError) -> None:
        """Passes the result to the caller; calls after the first do nothing."""
        if self not in self._remote.requests:
            return
        del self._remote.requests[self]
        if self.timer is not None:
            self.timer.cancel()
        self._done(result)


class Remote:
    """One address that this agent dials."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.wanted = False
        self.told = False
        """True if the owner has been told that the connection is ready."""
        self.connection: Connection | None = None
        self.requests: dict[Request, None] = {}
        self.failures = 0
        self.reason = ""
        """Reason why the last dial failed."""
        self.timer: Timer | None = None
        self.dialled_at_s = float("-inf")

    @property
    def where(self) -> str:
        """Returns the address as text, for messages."""
        return f"{self.address[0]}:{self.address[1]}"

    @property
    def is_needed(self) -> bool:
        """True if the connection is wanted, or requests await replies."""
        return self.wanted or bool(self.requests)

    @property
    def waiting(self) -> list[Request]:
        """Returns the requests that have not been sent, in order."""
        return [request for request in self.requests if request.connection is None]

    @property
    def ready(self) -> Connection | None:
        """Returns the connection if its handshake is done, else None."""
        return self.connection if self.connection is not None and self.connection.is_ready else None

    def flush(self, call_soon: Callable[[Callable[[], None]], None]) -> None:
        """Sends waiting requests while the connection has room. Requests for another agent or a newer protocol fail, later."""
        connection = self.ready
        if connection is None:
            return
        for request in self.waiting:
            if request.expect not in (None, connection.node):
                error = LinkError(f"the agent at {self.where} is {connection.node}, expected {request.expect}")
                call_soon(partial(request.finish, error))
                continue
            if connection.version < request.protocol:
                old = UnsupportedError(f"{connection.node} speaks protocol {connection.version}, but this needs {request.protocol}")
                call_soon(partial(request.finish, old))
                continue
            if not connection.may_send(len(request.payload)):
                return
            request.connection = connection
            connection.ask(request.payload, request)
