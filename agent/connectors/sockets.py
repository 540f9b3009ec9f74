"""Streams of connectors over real sockets, with or without TLS, on the agent's event loop (`sbon.connectors.outside`)."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import Callable
from typing import cast

from sbon.connectors.outside import KEEPALIVE_IDLE_S, KEEPALIVE_PROBES, KEEPALIVE_S, OuterHandler, Outside, OutsideHost
from sbon.errors import ConnectorError
from sbon_agent.connectors.addresses import SocketPlace, loop_of
from sbon_agent.connectors.base import ConnectorContext
from sbon_agent.connectors.listening import Listener
from sbon_agent.connectors.tls_files import TlsFiles
from sbon_agent.network.tcp import window_full_s

WRITE_BUFFER_BYTES = 256 * 1024
"""Bytes that one connection buffers before it counts as full."""


def outside_of(place: SocketPlace, tls: TlsFiles | None, connector: str, context: ConnectorContext) -> Outside:
    """Returns one address of the outside: of this machine's sockets, or of the simulation.

    Raises
    ------
    ConnectorError
        The simulation has no TLS.
    """
    host = context.host
    if not isinstance(host, OutsideHost):
        return Sockets(place, tls, loop_of(place.what, connector, context))
    if tls is not None:
        raise ConnectorError(f"{place.what}: TLS needs real sockets, and the simulation has none", option="tls")
    return host.outside(place.what, place.host, place.port, place.usable)


class SocketStream(asyncio.Protocol):
    """Sits between a transport and its handler; implements `sbon.connectors.outside.OuterStream`.

    Parameters
    ----------
    began_s : the loop's time when connecting began; None for an accepted stream
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, handler: OuterHandler, began_s: float | None = None) -> None:
        self._loop = loop
        self._handler = handler
        self._began_s = began_s
        self._transport: asyncio.Transport | None = None
        self.opening_s = 0.0
        self.congested = False

    @property
    def peer(self) -> tuple[str, int]:
        """Returns the other end's address."""
        name = None if self._transport is None else self._transport.get_extra_info("peername")
        return ("", 0) if name is None else (name[0], name[1])

    @property
    def was_made(self) -> bool:
        """Tells whether the connection has been open."""
        return self._transport is not None

    @property
    def is_open(self) -> bool:
        """False once the stream is closed or is being closed."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def unsent_bytes(self) -> int:
        """Returns the bytes that the kernel has not taken yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def held_up_s(self) -> float:
        """Returns for how long the program has read nothing although data waited, in seconds (Linux); 0 elsewhere."""
        return 0.0 if self._transport is None else window_full_s(self._transport.get_extra_info("socket"))

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Sends data."""
        if self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        """Closes the stream after the bytes written so far."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Closes the stream at once."""
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        """Stops reading from the peer."""
        if self._transport is not None and self.is_open:
            self._transport.pause_reading()

    def resume(self) -> None:
        """Resumes reading."""
        if self._transport is not None and self.is_open:
            self._transport.resume_reading()

    # Callbacks of asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Tells the handler that the stream is open."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        _keep_alive(transport.get_extra_info("socket"))
        if self._began_s is not None:
            self.opening_s = self._loop.time() - self._began_s
        self._handler.connected(self)

    def data_received(self, data: bytes) -> None:
        """Passes bytes on."""
        self._handler.received(data)

    def pause_writing(self) -> None:
        """Takes note that the buffer is full."""
        self.congested = True

    def resume_writing(self) -> None:
        """Tells the handler that there is room again."""
        self.congested = False
        self._handler.writable()

    def connection_lost(self, error: Exception | None) -> None:
        """Tells the handler that the stream is closed."""
        self._handler.closed(_told(error) if isinstance(error, ssl.SSLError) else "")


class Sockets:
    """One address on which to listen, or to which to connect. Implements `sbon.connectors.outside.Outside`.

    Parameters
    ----------
    place : the address, and whether it may be used
    tls : certificates; None for plain text
    """

    def __init__(self, place: SocketPlace, tls: TlsFiles | None, loop: asyncio.AbstractEventLoop) -> None:
        self._place = place
        self._tls = tls
        self._loop = loop
        self._thread = 0
        self._listener: Listener | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def address(self) -> tuple[str, int] | None:
        """Address on which it listens; None before it does."""
        return None if self._listener is None else self._listener.address

    @property
    def problem(self) -> str:
        """Returns why a changed certificate is not in use; empty if there is no such problem."""
        return "" if self._tls is None else self._tls.problem

    @property
    def is_here(self) -> bool:
        """Tells whether the caller is on the loop's thread."""
        return threading.get_ident() == self._thread

    def soon(self, call: Callable[[], None]) -> None:
        """Makes a call on the loop's thread; drops it if the loop is closed, as every connection is then."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call)

    def check(self) -> None:
        """Resolves the host, checks whether its addresses may be used, and reads certificate and key."""
        self._place.check()
        if self._tls is not None:
            self._tls.read()

    def listen(self, accept: Callable[[], OuterHandler], failed: Callable[[ConnectorError], None]) -> None:
        """Starts to listen."""
        self._thread = threading.get_ident()
        self._listener = Listener(self._place.what, self._place, lambda: SocketStream(self._loop, accept()), self._tls)
        self._listener.start(self._loop, failed)

    def connect(self, handler: OuterHandler, failed: Callable[[ConnectorError], None]) -> None:
        """Starts to connect to the first address that accepts a connection."""
        self._thread = threading.get_ident()
        self._task = self._loop.create_task(self._connect(handler, failed))

    def stop(self) -> None:
        """Ends listening and connecting; open streams stay."""
        if self._task is not None:
            self._task.cancel()
        if self._listener is not None:
            self._listener.stop()

    async def _connect(self, handler: OuterHandler, failed: Callable[[ConnectorError], None]) -> None:
        tls = self._tls
        if tls is not None:
            await self._loop.run_in_executor(None, tls.refresh)
        reason = ""
        try:
            addresses = await self._place.addresses(self._loop)
        except ConnectorError as error:
            failed(error)
            return
        except OSError:  # the name may become known later
            addresses = []
        for address in addresses:
            stream = SocketStream(self._loop, handler, self._loop.time())
            reason = await self._open(address, stream) or reason
            if stream.was_made:
                return
        handler.closed(reason)

    async def _open(self, address: str, stream: SocketStream) -> str:
        """Connects to one address. Returns why there is no TLS; empty if it is open, or if something else is to blame."""
        context, name = (None, None) if self._tls is None else (self._tls.context, self._tls.server_name)
        try:
            await self._loop.create_connection(lambda: stream, address, self._place.port, ssl=context, server_hostname=name)
        except OSError as error:
            return _told(error) if isinstance(error, ssl.SSLError) else ""
        return ""


def _keep_alive(connected: socket.socket) -> None:
    """Lets the kernel probe a silent peer. Without that, an end that only reads waits forever for a machine that has gone."""
    options = ((socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S), (socket.TCP_KEEPINTVL, KEEPALIVE_S), (socket.TCP_KEEPCNT, KEEPALIVE_PROBES))
    with contextlib.suppress(OSError):  # the peer has gone already
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in options:
            connected.setsockopt(socket.IPPROTO_TCP, option, value)


def _told(error: ssl.SSLError) -> str:
    """Describes the failure of a TLS connection."""
    said: str = getattr(error, "verify_message", "") or error.reason or str(error)
    return said.lower().replace("_", " ")
