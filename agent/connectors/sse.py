"""Connector `sse` (sink): sends rows as server-sent events, for browsers (`EventSource`) and other readers of lines over HTTP.

Its options are in `push_sink`. Each row is an event whose data is the row as JSON, with an id: `RUN-NUMBER`. A client that comes back with
`Last-Event-ID`, as browsers do, gets the kept rows since then. If some of these are no longer kept, an event `missed` with their number
comes first (`null` if unknown, as after a restart of the agent). The last event of a connection is `end`, with the reason.

The format is that of the HTML standard, section 9.2 (server-sent events).
"""

from __future__ import annotations

import h11
import msgspec

from sbon.connectors.push_feed import Feed
from sbon.formats.http_answers import Answer
from sbon.query.params.source import SinkParams
from sbon.schema import Schema
from sbon_agent.connectors.base import ConnectorContext
from sbon_agent.connectors.http_server import Request
from sbon_agent.connectors.push_clients import Client
from sbon_agent.connectors.push_sink import PushOptions, PushSink

_HEADERS = (("Content-Type", "text/event-stream"), ("Cache-Control", "no-store"))
_SAID_BYTES_MAX = 64 * 1024
"""Bytes that a client may send after its request; they are ignored."""


def check_sse_sink(params: SinkParams, schema: Schema, context: ConnectorContext) -> None:
    """Refuses options as `build_sse_sink` would, without listening."""
    PushOptions.read(params, context)


def build_sse_sink(params: SinkParams, schema: Schema, context: ConnectorContext) -> PushSink:
    """Makes the sink, which does not listen yet.

    Raises
    ------
    ConnectorError
        An option is missing, unknown or out of range.
    """
    return PushSink(PushOptions.read(params, context), schema, context, EventStreams(context.host.random_bytes(6).hex()))


class EventStreams:
    """Server-sent events for `PushSink`.

    Parameters
    ----------
    run : prefix that distinguishes the ids of this sink from those of others
    """

    def __init__(self, run: str) -> None:
        self._run = run

    def frame(self, number: int, line: bytes) -> bytes:
        """Returns a row as an event."""
        return b"id: %s-%d\ndata: %s\n\n" % (self._run.encode(), number, line)

    def admit(self, request: Request) -> Answer | None:
        """Accepts every request that `PushSink` accepts."""
        return None

    def answer(self, request: Request) -> tuple[int, tuple[tuple[str, str], ...]]:
        """Returns status and headers."""
        return 200, _HEADERS

    def client(self, request: Request, feed: Feed, begins_at: int) -> Client:
        """Makes the client that sends the events."""
        known = request.header("last-event-id")
        if not known:
            return _EventClient(feed, begins_at, 0)
        return _EventClient(feed, *self._resumed(known, feed))

    def _resumed(self, known: str, feed: Feed) -> tuple[int, int | None]:
        """Returns the first row to send to a client whose last row has this id, and the number of rows that it has missed (None if
        unknown).
        """
        run, _, number = known.rpartition("-")
        if run != self._run or not number.isascii() or not number.isdecimal() or len(number) > 18 or int(number) > feed.last:
            return feed.first, None
        return max(feed.first, int(number) + 1), max(0, feed.first - int(number) - 1)


class _EventClient(Client):
    """A client that gets events in chunks of its answer.

    Parameters
    ----------
    missed : number of rows that the client has missed before the first one; None if unknown
    """

    def __init__(self, feed: Feed, begins_at: int, missed: int | None) -> None:
        super().__init__(feed, begins_at)
        self._missed = missed
        self._said_bytes = 0

    def framed(self, data: bytes) -> bytes:
        """Returns a chunk."""
        return (self.http.send(h11.Data(data=data)) if self.http is not None else None) or b""

    def greeting(self) -> bytes:
        """Returns an event about missed rows if there are any, else a comment."""
        if self._missed == 0:
            return self.framed(b":\n\n")
        return self.framed(b"event: missed\ndata: %s\n\n" % msgspec.json.encode({"rows": self._missed}))

    def heartbeat(self) -> bytes:
        """Returns a comment."""
        return self.framed(b":\n\n")

    def farewell(self, reason: str, *, over: bool) -> bytes:
        """Returns the last event."""
        last = self.framed(b"event: end\ndata: %s\n\n" % msgspec.json.encode({"reason": reason}))
        return last + ((self.http.send(h11.EndOfMessage()) if self.http is not None else None) or b"")

    def received(self, data: bytes) -> None:
        """Ignores what the client sends, up to a limit."""
        self._said_bytes += len(data)
        if self._said_bytes > _SAID_BYTES_MAX:
            self.end("this client sends further requests, but a stream answers only the first", over=False)
