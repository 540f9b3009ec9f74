"""Listening sockets of connectors, for any protocol, with or without TLS, on the agent's event loop.

With TLS a peer gets its protocol after the handshake. The number and duration of handshakes in progress are limited here, because nothing
else counts them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from sbon.errors import ConnectorError
from sbon_agent.connectors.addresses import SocketPlace
from sbon_agent.connectors.tls_files import TlsFiles

HANDSHAKES_MAX = 64
"""Most TLS handshakes in progress at one listener; further peers are closed at once."""
HANDSHAKE_TIMEOUT_S = 10.0
REFRESH_S = 10.0
"""Seconds between checks whether certificate and key have changed."""


class Listener:
    """Listens on an address and gives each peer a protocol.

    Parameters
    ----------
    what : the connector's name in messages, such as `source trades`
    place : where to listen; its addresses are checked first
    protocol : makes the protocol of a peer
    tls : certificate and key; None for plain text
    """

    def __init__(self, what: str, place: SocketPlace, protocol: Callable[[], asyncio.Protocol], tls: TlsFiles | None) -> None:
        self.address: tuple[str, int] | None = None
        """Address on which the listener listens; None before it does."""
        self._what = what
        self._place = place
        self._protocol = protocol
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._handshakes = 0
        self._stopped = False

    def check(self) -> None:
        """Checks whether the address may be used, and reads certificate and key. Blocks until the name is resolved.

        Raises
        ------
        ConnectorError
            The address may not be used, or the files are unusable.
        """
        self._place.check()
        if self._tls is not None:
            self._tls.read()

    @property
    def remark(self) -> str:
        """Returns why a new certificate is not in use; empty if it is."""
        return "" if self._tls is None else self._tls.problem

    def start(self, loop: asyncio.AbstractEventLoop, failed: Callable[[ConnectorError], None]) -> None:
        """Starts to listen, after `check`; calls `failed` if that is not possible."""
        self._begin(loop.create_task(self._listen(loop, failed)))

    def stop(self) -> None:
        """Accepts no more peers; connected ones stay. May be called twice, and before `start`."""
        self._stopped = True
        for task in list(self._tasks):
            task.cancel()
        if self._server is not None:
            self._server.close()
            self._server = None

    def _begin(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _listen(self, loop: asyncio.AbstractEventLoop, failed: Callable[[ConnectorError], None]) -> None:
        place = self._place
        protocol = self._protocol if self._tls is None else lambda: _Handshake(self._greet)
        try:
            server = await loop.create_server(protocol, await place.addresses(loop), place.port)
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
        while self._tls is not None:
            await asyncio.sleep(REFRESH_S)
            await loop.run_in_executor(None, self._tls.refresh)

    def _greet(self, handshake: _Handshake, transport: asyncio.Transport) -> None:
        """Starts the handshake of a peer that has connected."""
        if self._handshakes >= HANDSHAKES_MAX or self._stopped:
            transport.abort()
            return
        transport.pause_reading()  # nothing from the peer may arrive before `start_tls`, which resumes reading
        self._handshakes += 1
        self._begin(asyncio.get_running_loop().create_task(self._secure(handshake, transport)))

    async def _secure(self, handshake: _Handshake, transport: asyncio.Transport) -> None:
        assert self._tls is not None
        try:
            secured = await asyncio.get_running_loop().start_tls(
                transport, handshake, self._tls.context, server_side=True, ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S
            )
        except (OSError, TimeoutError):  # includes ssl.SSLError: the peer does not speak TLS, is too slow or has gone
            transport.abort()
            return
        except BaseException:
            transport.abort()
            raise
        finally:
            self._handshakes -= 1
        if secured is not None and not handshake.is_lost:
            handshake.hand_over(secured, self._protocol())


class _Handshake(asyncio.Protocol):
    """Stands in for a peer's protocol during its handshake. It keeps data that arrives right after the handshake, at most one read."""

    def __init__(self, greet: Callable[[_Handshake, asyncio.Transport], None]) -> None:
        self.is_lost = False
        self._greet = greet
        self._early = b""
        self._successor: asyncio.Protocol | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._greet(self, cast("asyncio.Transport", transport))

    def data_received(self, data: bytes) -> None:
        self._early += data

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost = True
        if self._successor is not None:  # the loss was already under way when the protocol took over
            self._successor.connection_lost(error)

    def hand_over(self, secured: asyncio.Transport, protocol: asyncio.Protocol) -> None:
        """Passes the peer on to its protocol after the handshake."""
        self._successor = protocol
        secured.set_protocol(protocol)
        protocol.connection_made(secured)
        if self._early:
            protocol.data_received(self._early)
