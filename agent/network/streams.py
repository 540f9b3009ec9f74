"""All TCP connections of one agent, and the ports on which it accepts them."""

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import structlog

from sbon.ports import StreamHandler
from sbon.types import Address
from sbon_agent.network.names import BAD_ADDRESS
from sbon_agent.network.tcp import TcpStream

log = structlog.get_logger()

BACKLOG = 1024
"""Most connections that wait to be accepted, and most accepted at once."""
_CONNECT_TIMEOUT_S = 10.0


class TcpStreams:
    """Opens, accepts and ends TCP connections.

    Parameters
    ----------
    guarded
        Calls a callback and keeps its exceptions from the event loop.
    start
        Runs a coroutine as a task of the host, which is cancelled when the host closes.

    Attributes
    ----------
    open
        The streams whose transport has not ended.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        guarded: Callable[[Callable[[], None]], bool],
        start: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._loop, self._guarded, self._start = loop, guarded, start
        self.open: dict[TcpStream, None] = {}
        self._servers: list[socket.socket] = []
        self._left: asyncio.Future[None] | None = None

    def listen(self, server: socket.socket, accept: Callable[[Address], StreamHandler]) -> None:
        """Accepts connections on a socket that listens; `accept` makes the handler of each."""
        self._servers.append(server)
        self._loop.add_reader(server.fileno(), self._acceptable, server, accept)

    def connect(self, address: Address, handler: StreamHandler) -> None:
        """Opens a stream; `handler.connected` or `handler.closed` follows."""
        self._start(self._connect(address, handler))

    def close(self) -> None:
        """Closes everything at once; data that streams have not sent is lost."""
        for server in self._servers:
            self._loop.remove_reader(server.fileno())
            server.close()
        for stream in list(self.open):
            stream.abort()
        self._servers.clear()

    async def drain(self, timeout_s: float) -> None:
        """Waits, for at most `timeout_s`, until closed streams have sent all written data."""
        if self._leaving():
            self._left = self._loop.create_future()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._left, timeout_s)
            self._left = None

    def _leaving(self) -> bool:
        return any(stream.is_closing for stream in self.open)

    def _acceptable(self, server: socket.socket, accept: Callable[[Address], StreamHandler]) -> None:
        """Accepts waiting connections.

        This does not use `create_server`, which is a coroutine, because `listen` must know at once whether it has worked.
        """
        for _ in range(BACKLOG):
            try:
                accepted, _ = server.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                log.error("accept.failed", reason=str(error))
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    # The connection stays in the queue and would wake us repeatedly: try later, when other descriptors may have been
                    # closed.
                    self._loop.remove_reader(server.fileno())
                    self._loop.call_later(1.0, self._listen_again, server, accept)
                return
            accepted.setblocking(False)
            self._start(self._accepted(accepted, accept))

    def _listen_again(self, server: socket.socket, accept: Callable[[Address], StreamHandler]) -> None:
        if server.fileno() >= 0:
            self._loop.add_reader(server.fileno(), self._acceptable, server, accept)

    async def _accepted(self, accepted: socket.socket, accept: Callable[[Address], StreamHandler]) -> None:
        try:
            await self._loop.connect_accepted_socket(partial(self._stream, accept), accepted)
        except OSError as error:
            accepted.close()
            log.debug("accept.failed", reason=str(error))

    async def _connect(self, address: Address, handler: StreamHandler) -> None:
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                await self._loop.create_connection(partial(self._stream, lambda _: handler), address[0], address[1])
        except TimeoutError:
            self._guarded(lambda: handler.closed("timed out"))
        except BAD_ADDRESS as error:
            reason = str(error) or repr(error)
            self._guarded(lambda: handler.closed(reason))

    def _stream(self, make_handler: Callable[[Address], StreamHandler]) -> TcpStream:
        stream = TcpStream(self._loop, self._guarded, make_handler, self._ended)
        self.open[stream] = None
        return stream

    def _ended(self, stream: TcpStream) -> None:
        self.open.pop(stream, None)
        if self._left is not None and not self._left.done() and not self._leaving():
            self._left.set_result(None)
