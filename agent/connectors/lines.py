"""Connections that carry lines, for the `tcp` connector: listens, or connects and reconnects, on the agent's event loop.

It needs an agent on real sockets; the simulation has no event loop, and refuses the connector.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from typing import Protocol, cast

from sbon.errors import ConnectorError
from sbon.options import Options
from sbon_agent.connectors.addresses import SocketPlace, loop_of
from sbon_agent.connectors.base import ConnectorContext
from sbon_agent.connectors.listening import Listener
from sbon_agent.connectors.tls_files import TlsFiles

RECONNECT_S_MIN = 0.1
RECONNECT_S_MAX = 10.0
"""Longest pause between attempts to connect, in seconds. The pause doubles from the shortest to this, and is reduced by up to a quarter at
random."""
WRITE_BUFFER_BYTES = 256 * 1024
"""Bytes that one connection buffers before it counts as full."""
STEADY_S = 1.0
"""Seconds that a connection must last for the next pause to be the shortest again."""
REFUSAL_S = 0.2
"""Least time that a peer has to refuse our certificate, in seconds."""


class Owner(Protocol):
    """Callbacks of the connections; the source or sink implements them."""

    def connected(self, connection: Connection) -> None:
        """Called when a connection is open."""

    def received(self, connection: Connection, data: bytes) -> None:
        """Called when bytes have arrived."""

    def writable(self) -> None:
        """Called when a full connection has room again."""

    def closed(self, connection: Connection) -> None:
        """Called when a connection is closed."""


class Connection(asyncio.Protocol):
    """Connection to one peer."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self.transport: asyncio.Transport | None = None
        self.full = False
        self.tail = bytearray()
        """Used by the source: a line that is not complete yet."""
        self.skipping = False
        """Used by the source: True inside a line that is too long."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self._endpoint.made(self)

    def data_received(self, data: bytes) -> None:
        self._endpoint.owner.received(self, data)

    def pause_writing(self) -> None:
        self.full = True

    def resume_writing(self) -> None:
        self.full = False
        self._endpoint.owner.writable()

    def connection_lost(self, error: Exception | None) -> None:
        self._endpoint.lost(self, error)

    def pause(self) -> None:
        """Stops reading from the peer, whose TCP stack then slows it down."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    def resume(self) -> None:
        """Resumes reading."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()


class Endpoint:
    """Keeps connections open as the options say.

    Options
    -------
    mode : `connect` or `listen`
    host : address to connect to or to listen on; default 127.0.0.1
    port : port of the peer, or to listen on (0: a free one)
    connections_max : most connections with `listen`, default 16; further peers are closed at once
    tls, ca_file, server_name : with `connect`
    tls_certificate, tls_key : see `tls_files.TlsFiles`

    Parameters
    ----------
    writes : the owner writes to peers. Nothing is written until a peer has had time to refuse our certificate, which it does after the
        handshake
    """

    def __init__(self, what: str, options: Options, default_mode: str, context: ConnectorContext, *, writes: bool) -> None:
        self.what = what
        self.listens = options.choice("mode", ("connect", "listen"), default_mode) == "listen"
        self.host = options.text("host", "127.0.0.1")
        options.required("port", "9000")
        for option in ("tls", "ca_file", "server_name") if self.listens else ():
            if options.given(option):
                raise options.refuse(option, options.text(option, ""), "mode = 'connect' as well")
        self.port = options.integer("port", 0, 0 if self.listens else 1, 65_535)
        self.connections_max = options.integer("connections_max", 16, 1, 1024) if self.listens else 1
        self.connections: list[Connection] = []
        self.owner: Owner = cast("Owner", None)
        self.error: ConnectorError | None = None
        self._agent_host = context.host
        self._place = SocketPlace(what, self.host, self.port, context.reach, listens=self.listens)
        self.loop = loop_of(what, "tcp", context)
        self._task: asyncio.Task[None] | None = None
        reach = context.reach
        tls = TlsFiles.of_options(what, options, reach) if self.listens else TlsFiles.of_peer(what, options, reach, self.host)
        self._listener = Listener(what, self._place, lambda: Connection(self), tls) if self.listens else None
        self._tls = tls
        self._waits = writes and not self.listens and tls is not None
        self._trouble = ""
        """Why the last TLS connection has failed; empty if it has not."""
        self._lost = asyncio.Event()
        self._stopped = False

    @property
    def address(self) -> tuple[str, int] | None:
        """Address on which the endpoint listens; None before it does."""
        return None if self._listener is None else self._listener.address

    @property
    def remark(self) -> str:
        """Returns why a new certificate is not in use, or why there is no TLS with the peer; empty if there is no problem."""
        return "; ".join(filter(None, ("" if self._tls is None else self._tls.problem, self._trouble)))

    def check(self) -> None:
        """Resolves the host and checks whether its addresses may be used; reads certificate and key. Blocks until the name is resolved.

        Raises
        ------
        ConnectorError
            None of the addresses may be used (the message names the setting to change), or the files are unusable.
        """
        if self._listener is not None:
            self._listener.check()
        else:
            self._place.check()
            if self._tls is not None:
                self._tls.read()

    def start(self, owner: Owner) -> None:
        """Starts to listen or connect. Call it on the loop's thread."""
        self.owner = owner
        if self._listener is not None:
            self._listener.start(self.loop, self._fail)
        else:
            self._task = self.loop.create_task(self._connect())

    def stop(self) -> None:
        """Closes everything; buffered data is still sent. Call it on the loop's thread."""
        self._stopped = True
        if self._task is not None:
            self._task.cancel()
        if self._listener is not None:
            self._listener.stop()
        for connection in list(self.connections):
            if connection.transport is not None:
                connection.transport.close()

    def made(self, connection: Connection) -> None:
        """Adds an open connection, unless nothing may be written to it yet."""
        if not self._waits:
            self._add(connection)

    def _add(self, connection: Connection) -> None:
        assert connection.transport is not None
        if self._stopped or len(self.connections) >= self.connections_max:
            connection.transport.abort()
            return
        self.connections.append(connection)
        self.owner.connected(connection)

    def lost(self, connection: Connection, error: Exception | None) -> None:
        """Removes a closed connection."""
        self._lost.set()
        if isinstance(error, ssl.SSLError):
            self._note(_told(error))
        if connection in self.connections:
            self.connections.remove(connection)
            self.owner.closed(connection)

    async def _connect(self) -> None:
        pause_s = RECONNECT_S_MIN
        while not self._stopped:
            self._lost.clear()
            try:
                connection = await self._connected()
            except ConnectorError as error:
                self._fail(error)
                return
            if connection is not None:
                since_s = self.loop.time()
                await self._lost.wait()
                if self.loop.time() - since_s >= STEADY_S:
                    pause_s = RECONNECT_S_MIN
            await asyncio.sleep(pause_s * (1.0 - 0.25 * float(self._agent_host.rng.random())))
            pause_s = min(RECONNECT_S_MAX, 2.0 * pause_s)

    async def _connected(self) -> Connection | None:
        """Connects to the first address that accepts a connection."""
        tls = self._tls
        if tls is not None:
            await self.loop.run_in_executor(None, tls.refresh)
        context, name = (None, None) if tls is None else (tls.context, tls.server_name)
        with contextlib.suppress(OSError):
            for address in await self._place.addresses(self.loop):
                began_s = self.loop.time()
                try:
                    made = self.loop.create_connection(lambda: Connection(self), address, self.port, ssl=context, server_hostname=name)
                    connection = (await made)[1]
                except ssl.SSLError as error:
                    self._note(_told(error))
                    continue
                except OSError:
                    continue
                await self._settled(connection, self.loop.time() - began_s)
                return connection
        return None

    async def _settled(self, connection: Connection, handshake_s: float) -> None:
        """Waits long enough for a peer to refuse our certificate: a refusal takes one round trip, and a handshake takes two."""
        if self._waits:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._lost.wait(), max(REFUSAL_S, handshake_s))
                if not self._trouble:
                    self._note("the peer has closed the connection after the handshake; it may not trust our certificate")
                return
            self._add(connection)
        if not self._lost.is_set():
            self._trouble = ""

    def _note(self, why: str) -> None:
        self._trouble = f"no TLS with {self.host}:{self.port}: {why}"
        self.owner.writable()

    def _fail(self, error: ConnectorError) -> None:
        self.error = error
        self.owner.writable()


def _told(error: ssl.SSLError) -> str:
    """Describes the failure of a TLS connection."""
    said: str = getattr(error, "verify_message", "") or error.reason or str(error)
    return said.lower().replace("_", " ")
