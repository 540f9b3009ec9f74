"""A client that listens to a sink: it gets rows as fast as it takes them, and is closed with a reason if it does not keep up.

A client takes memory only for its transport's buffer, `WRITE_BUFFER_BYTES` and one block; everything else is in the feed, which all clients
share. A client waits for rows or, if the transport is full, for its peer. It is closed when the feed has dropped rows that it has not been
sent, and when its peer has taken nothing for two heartbeats.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable

import h11

from sbon.connectors.push_feed import Feed

WRITE_BUFFER_BYTES = 64 * 1024
BLOCK_BYTES = 64 * 1024
"""Most bytes written at once."""
END_TIMEOUT_S = 5.0
"""Longest time for sending written data, with the reason for the end."""
BEATS_MAX = 2
"""Number of heartbeats after which a peer that has taken nothing is given up."""
LATE = "this client reads too slowly: rows that it has not been sent are no longer kept"
SILENT = "this client does not read"
OVER = "the query has ended, or the agent stops"


class Client(asyncio.Protocol, ABC):
    """A connection after the answer to its request. Subclasses define the data sent over it.

    Parameters
    ----------
    begins_at : number of the first row to send
    """

    def __init__(self, feed: Feed, begins_at: int) -> None:
        self.http: h11.Connection | None = None
        """Parser of the request."""
        self._feed = feed
        self._next = begins_at
        self._when_gone: list[Callable[[], None]] = []
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._full = self._ending = self._finishing = False
        self._beats = 0
        self.awaits_answer = False
        """True if the peer answers the farewell; the connection stays open until then."""
        self._timer: asyncio.TimerHandle | None = None

    # -------------------------------------------------------------------------------------------- defined by subclasses

    def framed(self, data: bytes) -> bytes:
        """Returns frames of the feed in the form that this connection carries."""
        return data

    def greeting(self) -> bytes:
        """Returns the bytes to send before the first row."""
        return b""

    @abstractmethod
    def heartbeat(self) -> bytes:
        """Returns the bytes that show that the connection is alive; called if the client is not full."""

    @abstractmethod
    def farewell(self, reason: str, *, over: bool) -> bytes:
        """Returns the bytes to send at the end.

        Parameters
        ----------
        over : whether the stream has ended; otherwise the client has done something wrong
        """

    @abstractmethod
    def received(self, data: bytes) -> None:
        """Handles data from the peer."""

    def received_at_the_end(self, data: bytes) -> None:
        """Handles data from the peer after the end of the stream."""

    # ----------------------------------------------------------------------------------------------- asyncio.Protocol

    def when_gone(self, call: Callable[[], None]) -> None:
        """Registers a call for when the connection is closed."""
        self._when_gone.append(call)

    def begin(self, transport: asyncio.Transport, http: h11.Connection, early: bytes, *, full: bool) -> None:
        """Takes the connection over.

        Parameters
        ----------
        early : data that has arrived after the request
        full : whether the transport has paused its protocol
        """
        self._transport, self.http = transport, http
        self._full = full
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self.write(self.greeting())
        if early:
            self.received(early)
        self.flush()

    def data_received(self, data: bytes) -> None:
        if self._ending:
            self.received_at_the_end(data)
        else:
            self.received(data)

    def pause_writing(self) -> None:
        self._full = True
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()  # messages of the peer may need an answer

    def resume_writing(self) -> None:
        self._full = False
        self._beats = 0
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
        self.flush()

    def connection_lost(self, error: Exception | None) -> None:
        self._ending = True
        if self._timer is not None:
            self._timer.cancel()
        calls, self._when_gone = self._when_gone, []
        for call in calls:
            call()

    # -------------------------------------------------------------------------------------------------------- sending

    def flush(self) -> None:
        """Sends rows that have not been sent, as far as the transport takes them."""
        while not self._full and not self._ending and self._next <= self._feed.last:
            data, self._next = self._feed.since(self._next, BLOCK_BYTES)
            self.write(self.framed(data))
        if self._finishing and self._next > self._feed.last:
            self.end(OVER, over=True)

    def end_if_late(self) -> None:
        """Ends the stream if a row that has not been sent is no longer kept."""
        if self._next < self._feed.first:
            self.end(LATE, over=False)

    def beat(self) -> None:
        """Sends a heartbeat, or gives the peer up."""
        if self._full:
            self._beats += 1
            if self._beats >= BEATS_MAX:
                self.end(SILENT, over=False)
        elif not self._ending:
            self.write(self.heartbeat())

    def write(self, data: bytes) -> None:
        """Writes bytes as they are."""
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def end(self, reason: str, *, over: bool) -> None:
        """Sends the reason, and closes the connection once it is sent, or after `END_TIMEOUT_S`."""
        if not self._ending:
            self.end_with(self.farewell(reason, over=over))

    def end_with(self, last: bytes) -> None:
        """Sends these bytes, and closes the connection once they are sent, or after `END_TIMEOUT_S`."""
        self._ending = True
        self.write(last)
        if not self.awaits_answer:
            self.hang_up()
        self._close_later()

    def hang_up(self) -> None:
        """Closes the connection once written data is sent."""
        if self._transport is not None:
            self._transport.close()

    def close(self) -> None:
        """Sends the remaining rows, then ends; gives up on a peer that does not take them."""
        self._finishing = True
        self._close_later()
        self.flush()

    def abort(self) -> None:
        """Closes the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def _close_later(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(END_TIMEOUT_S, self.abort)
