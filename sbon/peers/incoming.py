"""Limits the connections that an agent accepts, so that a source of many connections does not keep others out."""

import structlog

from sbon.admission import FairSlots, LineLimit, source_of
from sbon.peer_settings import PeerConfig
from sbon.peers.connection import Connection
from sbon.ports import Network

log = structlog.get_logger()


class Incoming:
    """The accepted connections of one agent, in their handshake or established.

    Parameters
    ----------
    complaints : limits log lines about one source
    counters : counters of the connections' owner
    """

    def __init__(self, host: Network, config: PeerConfig, complaints: LineLimit, counters: dict[str, int]) -> None:
        self._host, self._complaints, self._counters = host, complaints, counters
        self._handshaking: FairSlots[Connection] = FairSlots(config.handshaking_max, config.handshaking_per_source_max)
        self._established: FairSlots[Connection] = FairSlots(config.incoming_max, config.incoming_max)

    def __len__(self) -> int:
        """Number of established connections."""
        return len(self._established)

    def accepted(self, connection: Connection) -> None:
        """Adds a connection that begins its handshake."""
        self._enter(self._handshaking, connection, "handshakes")

    def established(self, connection: Connection) -> None:
        """Moves a connection whose handshake is done to the established ones."""
        self._handshaking.leave(connection)
        self._enter(self._established, connection, "connections")

    def finished(self, connection: Connection) -> None:
        """Frees the place of a connection, if it has one."""
        self._handshaking.leave(connection)
        self._established.leave(connection)

    def _enter(self, places: FairSlots[Connection], connection: Connection, kind: str) -> None:
        """Gives a connection a place, and closes the connection that it displaces, if any."""
        displaced = places.enter(connection, source_of(connection.address[0]))
        if displaced is None:
            return
        self._counters[f"{kind}_displaced"] += 1
        source = source_of(displaced.address[0])
        if self._complaints.allows(source, self._host.now()):
            advice = "if that address is no agent of yours, keep it from the port with a firewall"
            log.warning("peer.displaced", source=source, open=len(places), kind=kind, advice=advice)
        displaced.finish(f"too many {kind} are open: the oldest gives way")
