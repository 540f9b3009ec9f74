"""State of one address that this agent dials, and of the requests to it. `sbon.peers.peers` uses it."""

from collections.abc import Callable

from sbon.errors import SbonError
from sbon.peers.connection import Connection
from sbon.ports import Timer
from sbon.types import Address, NodeId


class Request:
    """A request in progress: it ends exactly once, with the reply, its time-out or an error."""

    def __init__(
        self, remote: "Remote", payload: bytes, done: Callable[[bytes | SbonError], None], expect: NodeId | None, protocol: int = 0
    ) -> None:
        self.payload = payload
        self.expect = expect
        """The agent that must answer; None for any."""
        self.protocol = protocol
        """The least protocol version that the agent must speak."""
        self.connection: Connection | None = None
        """Connection on which it was sent; None while it waits for one."""
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
        """Why the last dial failed."""
        self.timer: Timer | None = None
        self.dialled_at_s = float("-inf")

    @property
    def where(self) -> str:
        """Returns the address as text, for messages."""
        return f"{self.address[0]}:{self.address[1]}"

    @property
    def waiting(self) -> list[Request]:
        """Returns the requests that have not been sent, in order."""
        return [request for request in self.requests if request.connection is None]

    @property
    def ready(self) -> Connection | None:
        """Returns the connection if its handshake is done, else None."""
        return self.connection if self.connection is not None and self.connection.is_ready else None
