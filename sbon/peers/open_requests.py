"""Open requests on one connection, from this end and from the other. A request and its reply have the same number."""

from collections.abc import Callable
from functools import partial
from typing import Protocol

import msgspec

from sbon.errors import (
    AuthorityError,
    ConfigError,
    ConnectorError,
    LinkError,
    LocalProtocolError,
    MigrationError,
    PlacementError,
    QueryError,
    RemoteProtocolError,
    SbonError,
    UnsupportedError,
)
from sbon.framing import Frame
from sbon.links.frames import Buffer
from sbon.peer_settings import PeerConfig
from sbon.peers.kinds import Kind
from sbon.types import NodeId

_ERROR_CHARACTERS_MAX = 2000
_NUMBER_MAX = 2**32 - 1
_ERRORS: dict[str, type[SbonError]] = {
    error.__name__: error for error in (AuthorityError, ConfigError, LinkError, MigrationError, PlacementError, UnsupportedError)
}
"""Errors that keep their class on the wire; any other arrives as a plain SbonError."""


class ErrorReply(msgspec.Struct, frozen=True, array_like=True):
    """An error in its encoded form."""

    kind: str
    message: str
    line: int = 0
    column: int = 0
    hint: str = ""
    option: str = ""

    @classmethod
    def of(cls, error: SbonError) -> "ErrorReply":
        kind = type(error).__name__
        if isinstance(error, QueryError):
            return cls(kind, error.message[:_ERROR_CHARACTERS_MAX], error.line, error.column, error.hint[:_ERROR_CHARACTERS_MAX])
        option = error.option[:_ERROR_CHARACTERS_MAX] if isinstance(error, ConnectorError) else ""
        return cls(kind, str(error)[:_ERROR_CHARACTERS_MAX], option=option)

    def error(self) -> SbonError:
        """Returns the error for the caller."""
        if self.kind == QueryError.__name__:
            return QueryError(self.message, line=self.line, column=self.column, hint=self.hint)
        if self.kind == ConnectorError.__name__:
            return ConnectorError(self.message, option=self.option)
        return _ERRORS.get(self.kind, SbonError)(self.message)


class Asked(Protocol):
    """A request that waits for its reply."""

    def finish(self, result: bytes | SbonError) -> None:
        """Passes on the reply or an error; calls after the first do nothing."""


class Carrier(Protocol):
    """The connection on which the requests and replies travel."""

    node: NodeId

    @property
    def is_ready(self) -> bool:
        """True if the handshake is done and the connection is open."""

    @property
    def is_clogged(self) -> bool:
        """True while more bytes wait than the peer may leave unread."""

    def write(self, kind: Kind, number: int, *payload: Buffer) -> None:
        """Writes a frame."""

    def finish(self, reason: str) -> None:
        """Ends the connection now."""


class OpenRequests:
    """The requests of both ends of a connection that wait for their replies.

    Parameters
    ----------
    carrier : the connection
    call_soon : calls a function once, after the callbacks already due
    counters : counters of the connection's owner
    """

    def __init__(
        self, carrier: Carrier, call_soon: Callable[[Callable[[], None]], None], config: PeerConfig, counters: dict[str, int]
    ) -> None:
        self._carrier, self._call_soon, self._config, self._counters = carrier, call_soon, config, counters
        self._number = 0
        self._asked: dict[int, Asked] = {}
        self._answering: dict[int, float] = {}

    @property
    def are_open(self) -> bool:
        """True while a request of either end waits for its reply."""
        return bool(self._asked or self._answering)

    def ask(self, payload: bytes, asked: Asked) -> None:
        """Sends a request. The connection must have room for it."""
        self._number = self._number % _NUMBER_MAX + 1
        self._asked[self._number] = asked
        self._carrier.write(Kind.REQUEST, self._number, payload)

    def forget(self, asked: Asked) -> None:
        """Forgets a request that has timed out. Its late reply will only be counted."""
        for number, other in self._asked.items():
            if other is asked:
                del self._asked[number]
                return

    def fail(self, reason: str) -> None:
        """Tells all who wait for replies that the connection is lost."""
        for asked in self._asked.values():
            self._call_soon(partial(asked.finish, LinkError(f"connection to {self._carrier.node} lost before its reply: {reason}")))
        self._asked.clear()
        self._answering.clear()

    def expire(self, now: float) -> None:
        """Sends an error for each request that this agent has not answered in time."""
        for number, since in list(self._answering.items()):
            if now - since >= self._config.answer_timeout_s:
                self._counters["requests_unanswered"] += 1
                self._respond(number, LinkError(f"no answer within {self._config.answer_timeout_s:g} s"))

    def arrived(self, frame: Frame, now: float, hand_over: Callable[[bytes, Callable[[bytes | SbonError], None]], None]) -> None:
        """Handles a request of the other end. `hand_over` gets its payload, and a function to answer it once, now or later."""
        number = frame.number
        if number in self._answering:
            raise RemoteProtocolError(f"request {number} sent twice")
        self._answering[number] = now
        if len(self._answering) > self._config.requests_max:
            self._counters["requests_refused"] += 1
            self._respond(number, LinkError(f"more than {self._config.requests_max} requests open on one connection"))
            return
        answered = False

        def respond(result: bytes | SbonError) -> None:
            nonlocal answered
            if answered:
                raise LocalProtocolError(f"request {number} of {self._carrier.node} answered twice")
            answered = True
            self._respond(number, result)

        try:
            hand_over(frame.payload, respond)
        except RemoteProtocolError:
            raise
        except SbonError as error:
            respond(error)

    def _respond(self, number: int, result: bytes | SbonError) -> None:
        if self._answering.pop(number, None) is None or not self._carrier.is_ready:
            return  # the connection is gone, or the answer is too late and the caller has got an error
        if isinstance(result, bytes) and len(result) > self._config.frame_bytes_max:
            result = LinkError(f"reply of {len(result)} bytes, expected at most {self._config.frame_bytes_max}")
        if self._carrier.is_clogged:
            self._call_soon(lambda: self._carrier.finish("the peer asks and does not read the replies"))
        elif isinstance(result, bytes):
            self._carrier.write(Kind.REPLY, number, result)
        else:
            self._carrier.write(Kind.ERROR, number, msgspec.msgpack.encode(ErrorReply.of(result)))

    def answered(self, frame: Frame) -> None:
        """Passes a reply or an error on to the request that waits for it."""
        asked = self._asked.pop(frame.number, None)
        if asked is None:
            self._counters["replies_late"] += 1
            return
        result: bytes | SbonError = frame.payload
        if frame.kind == Kind.ERROR:
            try:
                result = msgspec.msgpack.decode(frame.payload, type=ErrorReply).error()
            except msgspec.MsgspecError as error:
                asked.finish(LinkError(f"{self._carrier.node} answered with an error that cannot be decoded"))
                raise RemoteProtocolError(f"error reply: {error}") from error
        asked.finish(result)
