"""A client of a sink that others listen to: it is sent rows as fast as it takes them, and closed with the reason if it does not keep up.

A client has only its transport's buffer in memory, `WRITE_BUFFER_BYTES` and one block; everything else is in the feed, which all clients
share. A client waits for rows or, if the transport is full, for its peer. It is closed when rows that it has not been sent are no longer
kept, and when its peer has taken nothing for two heartbeats.
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
"""Seconds for written data, with the reason for the end, to leave."""
BEATS_MAX = 2
"""Number of heartbeats after which a peer that has taken nothing is given up."""
LATE = "this client reads too slowly: rows that it has not been sent are no longer kept"
SILENT = "this client does not read"
OVER = "the query has ended, or the agent stops"


class Client(asyncio.Protocol, ABC):
    """A connection after the answer to its request. Subclasses define what is sent over it.

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
        """True if the peer answers the farewell; the connection is not closed before."""
        self._timer: asyncio.TimerHandle | None = None

    # -------------------------------------------------------------------------------------------- defined by subclasses

    def framed(self, data: bytes) -> bytes:
        """Returns frames of the feed as this connection carries them."""
        return data

    def greeting(self) -> bytes:
        """Returns what is sent before the first row."""
        return b""

    @abstractmethod
    def heartbeat(self) -> bytes:
        """Returns what shows that the connection is alive; called if the client is not full."""

    @abstractmethod
    def farewell(self, reason: str, *, over: bool) -> bytes:
        """Returns what is sent at the end.

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
        early : data that has come after the request
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
            self._transport.pause_reading()  # what it says may want an answer

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
        """Sends the reason, and closes the connection once that has left, or some time later."""
        if not self._ending:
            self.end_with(self.farewell(reason, over=over))

    def end_with(self, last: bytes) -> None:
        """Sends these bytes, and closes the connection once they have left, or some time later."""
        self._ending = True
        self.write(last)
        if not self.awaits_answer:
            self.hang_up()
        self._close_later()

    def hang_up(self) -> None:
        """Closes the connection once written data has left."""
        if self._transport is not None:
            self._transport.close()

    def close(self) -> None:
        """Sends the remaining rows, then ends; gives up on a peer that does not take them."""
        self._finishing = True
        self._close_later()
        self.flush()

    def abort(self) -> None:
        """Closes at once."""
        if self._transport is not None:
            self._transport.abort()

    def _close_later(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(END_TIMEOUT_S, self.abort)
