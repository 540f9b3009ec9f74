"""Listening sockets of connectors, on the agent's event loop: what is the same whatever is spoken on them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sbon.errors import ConnectorError
from sbon_agent.connectors.addresses import SocketPlace


class Listener:
    """Listens at a place and gives each peer a protocol.

    Parameters
    ----------
    what : `source trades`, for messages
    place : where to listen; its addresses are checked first
    protocol : makes the protocol of a peer
    """

    def __init__(self, what: str, place: SocketPlace, protocol: Callable[[], asyncio.Protocol]) -> None:
        self.address: tuple[str, int] | None = None
        """Where it listens, once it does."""
        self._what = what
        self._place = place
        self._protocol = protocol
        self._server: asyncio.Server | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    def start(self, loop: asyncio.AbstractEventLoop, failed: Callable[[ConnectorError], None]) -> None:
        """Begins to listen. `failed` is called if that is not possible."""
        self._task = loop.create_task(self._listen(loop, failed))

    def stop(self) -> None:
        """Takes no more peers; those that are connected stay. May be called twice, and before `start`."""
        self._stopped = True
        if self._task is not None:
            self._task.cancel()
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _listen(self, loop: asyncio.AbstractEventLoop, failed: Callable[[ConnectorError], None]) -> None:
        place = self._place
        try:
            server = await loop.create_server(self._protocol, await place.addresses(loop), place.port)
        except OSError as error:
            told = f"{self._what}: cannot listen on {place.host}:{place.port}: {error.strerror or error}"
            failed(ConnectorError(told, option=place.option))
            return
        except ConnectorError as error:
            failed(error)
            return
        if self._stopped:
            server.close()
            return
        self._server = server
        name = server.sockets[0].getsockname()
        self.address = name[0], name[1]
