"""What is known of one address that is dialled, and the requests that go there."""

from collections.abc import Callable

from sbon.errors import SbonError
from sbon.types import Address, NodeId
from sbon_agent.host import Timer
from sbon_agent.network.connection import Connection


class Request:
    """A request on its way: it ends exactly once, by the reply, its time-out or a loss."""

    def __init__(self, remote: "Remote", payload: bytes, done: Callable[[bytes | SbonError], None], expect: NodeId | None) -> None:
        self.payload = payload
        self.expect = expect
        """The agent that is meant; None: whoever answers."""
        self.connection: Connection | None = None
        """Where it has gone out; None: it waits for a connection."""
        self.timer: Timer | None = None
        self._remote, self._done = remote, done

    def finish(self, result: bytes | SbonError) -> None:
        """Tell who asked; only the first call does."""
        if self not in self._remote.requests:
            return
        del self._remote.requests[self]
        if self.timer is not None:
            self.timer.cancel()
        self._done(result)


class Remote:
    """One address that we dial."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.wanted = False
        self.told = False
        """That the connection is ready has been reported."""
        self.connection: Connection | None = None
        self.requests: dict[Request, None] = {}
        self.failures = 0
        self.reason = ""
        """Why the last dial failed."""
        self.timer: Timer | None = None
        self.dialled_at_s = float("-inf")

    @property
    def where(self) -> str:
        """The address, for messages."""
        return f"{self.address[0]}:{self.address[1]}"

    @property
    def waiting(self) -> list[Request]:
        """Requests that have not been sent, in order."""
        return [request for request in self.requests if request.connection is None]

    @property
    def ready(self) -> Connection | None:
        """The connection, if its handshake is done."""
        return self.connection if self.connection is not None and self.connection.is_ready else None
