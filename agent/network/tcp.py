"""TCP connections that implement `sbon.ports.Stream`."""

import asyncio
import socket
import sys
from collections.abc import Callable
from functools import partial
from typing import cast

from sbon.ports import ReadingHandler, StreamHandler
from sbon.types import Address

SEND_BUFFER_BYTES = 1 << 20
"""Unsent bytes above which a stream is congested: a few batches, enough to fill a path to the other side of the globe."""
UNSENT_BYTES = 256 * 1024
"""Bytes that may wait in the kernel, beyond those in transit (Linux). With more, a slow line would look fast, because bytes in the kernel
cannot be counted here."""
_TCP_NOTSENT_LOWAT = 25
"""Number of the socket option, which the socket module does not name before Python 3.12."""
_TCP_INFO = 11
_WINDOW_FULL_AT = 176
"""Offset of `tcpi_rwnd_limited` in Linux's `struct tcp_info`, a number of microseconds in eight bytes (since Linux 4.10)."""
_READ_BYTES = 64 * 1024
_LINGER_S = 5.0
"""Seconds that a closed stream may take to deliver written bytes; the kernel would wait a quarter of an hour for a dead peer."""


def window_full_s(connection: socket.socket) -> float:
    """Returns for how long data of a connection has waited for the receiver to read, in seconds; 0 if the system does not tell."""
    if sys.platform != "linux":
        return 0.0
    try:
        found = connection.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _WINDOW_FULL_AT + 8)
    except OSError:  # closed, or not a connection of TCP
        return 0.0
    return float(int.from_bytes(found[_WINDOW_FULL_AT:], sys.byteorder)) / 1e6 if len(found) == _WINDOW_FULL_AT + 8 else 0.0


class TcpStream(asyncio.BufferedProtocol):
    """Sits between a transport and its handler; implements `sbon.ports.Stream`.

    Parameters
    ----------
    guarded
        Calls a callback and keeps its exceptions from the event loop; returns False if there was one.
    handler
        Makes the handler, given the peer's address, once the connection is open.
    ended
        Called when the transport is gone.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        guarded: Callable[[Callable[[], None]], bool],
        handler: Callable[[Address], StreamHandler],
        ended: Callable[["TcpStream"], None],
    ) -> None:
        self._loop, self._guarded, self._make_handler, self._ended = loop, guarded, handler, ended
        self._handler: StreamHandler | None = None
        self._reading: ReadingHandler | None = None
        self._own_room = memoryview(b"")
        self._transport: asyncio.Transport | None = None
        self._linger: asyncio.TimerHandle | None = None
        self._full = self._writing = False
        self._peer: Address = ("", 0)
        self._closed_here = False

    @property
    def peer(self) -> Address:
        """Returns the other end's address."""
        return self._peer

    @property
    def congested(self) -> bool:
        """True if more than `SEND_BUFFER_BYTES` wait to be sent."""
        return self._full

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the kernel has not taken yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def held_up_s(self) -> float:
        """Time for which the receiver's window was full, in seconds (Linux); 0 elsewhere."""
        return 0.0 if self._transport is None else window_full_s(self._transport.get_extra_info("socket"))

    @property
    def is_closing(self) -> bool:
        """True if closed here while the transport still exists."""
        return self._closed_here and self._transport is not None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Sends data; after a close, drops it without an error."""
        if self._transport is None or self._closed_here or self._transport.is_closing():
            return
        self._writing = True
        try:
            self._transport.write(data)
        finally:
            self._writing = False

    def close(self) -> None:
        """Closes the stream once all data is sent, or after 5 s."""
        if self._transport is None or self._closed_here:
            return
        self._closed_here = True
        self._transport.close()
        self._linger = self._loop.call_later(_LINGER_S, self._transport.abort)

    def abort(self) -> None:
        """Closes the stream now; written data may be lost."""
        self._closed_here = True
        if self._transport is not None:
            self._transport.abort()

    # Callbacks of asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Sets up an open connection, and gives it a handler."""
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        if peer is None:  # closed between accept and here
            self.abort()
            return
        self._peer = (peer[0], peer[1])
        # TCP_NODELAY is not set here: asyncio and uvloop both set it on every connection.
        self._transport.set_write_buffer_limits(high=SEND_BUFFER_BYTES)
        if sys.platform == "linux":
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        if not self._guarded(self._introduce):
            self.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Returns the buffer for the next bytes: the handler's own, if it has one."""
        if self._reading is not None and not self._closed_here:
            return self._reading.room()
        if not self._own_room:
            self._own_room = memoryview(bytearray(_READ_BYTES))
        return self._own_room

    def buffer_updated(self, nbytes: int) -> None:
        """Passes received bytes on."""
        if self._handler is None or self._closed_here:
            return
        if self._reading is not None:
            self._guarded(partial(self._reading.filled, nbytes))
        else:
            self._guarded(partial(self._handler.received, bytes(self._own_room[:nbytes])))

    def pause_writing(self) -> None:
        """Records that the send buffer is full."""
        self._full = True

    def resume_writing(self) -> None:
        """Tells the handler that the send buffer has emptied."""
        self._full = False
        if self._writing:
            self._loop.call_soon(self._tell_writable)  # never from inside `write`
        else:
            self._tell_writable()

    def connection_lost(self, error: Exception | None) -> None:
        """Tells the handler that the connection is closed, and why."""
        if self._linger is not None:
            self._linger.cancel()
        self._full = False
        self._ended(self)
        handler, self._handler, self._reading, self._transport = self._handler, None, None, None
        if handler is not None:
            reason = "closed" if self._closed_here else "closed by the peer" if error is None else str(error) or repr(error)
            self._guarded(lambda: handler.closed(reason))

    def _introduce(self) -> None:
        self._handler = self._make_handler(self._peer)
        self._reading = self._handler if isinstance(self._handler, ReadingHandler) else None
        self._handler.connected(self)

    def _tell_writable(self) -> None:
        if self._handler is not None and not self._full and not self._closed_here:
            self._guarded(self._handler.writable)
