"""Checks all connections of an agent every half keep-alive interval: sends pings, and closes silent and idle connections."""

from collections.abc import Collection, Mapping

from sbon.peer_settings import PeerConfig
from sbon.peers.connection import Connection
from sbon.peers.remotes import Remote
from sbon.ports import Network, Timer
from sbon.types import Address


class Checks:
    """The timer that checks connections, running while there are any.

    Parameters
    ----------
    connections : live view of the agent's connections
    remotes : live view of the addresses that the agent dials
    """

    def __init__(self, host: Network, config: PeerConfig, connections: Collection[Connection], remotes: Mapping[Address, Remote]) -> None:
        self._host, self._config = host, config
        self._connections, self._remotes = connections, remotes
        self._timer: Timer | None = None
        self._due_at_s = 0.0
        self._stopped = False

    def begin(self) -> None:
        """Starts the checks, if they do not run yet. Call it for each new connection."""
        if self._timer is None:
            self._check_after(self._host.now())

    def stop(self) -> None:
        """Stops the checks for good."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _check_after(self, now: float) -> None:
        self._due_at_s = now + self._config.keepalive_s / 2
        self._timer = self._host.call_at(self._due_at_s, self._check)

    def _check(self) -> None:
        now = self._host.now()
        # If this process woke late, unread bytes may show that the peers are alive: restart their timeouts.
        late = now - self._due_at_s > self._config.keepalive_s
        self._timer = None
        if self._connections and not self._stopped:
            self._check_after(now)
        for connection in list(self._connections):
            if late:
                connection.excuse(now)
            connection.check(now)
            if self._is_idle(connection, now):
                connection.close("idle")

    def _is_idle(self, connection: Connection, now: float) -> bool:
        """Tells whether a dialled connection has carried nothing for `idle_s`, and is no longer needed."""
        if not connection.dialled or not connection.is_ready or connection.requests.are_open:
            return False
        remote = self._remotes.get(connection.address)
        return now - connection.used_at_s >= self._config.idle_s and (remote is None or not remote.is_needed)
