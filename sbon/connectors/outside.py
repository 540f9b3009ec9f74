"""Interface to programs outside the overlay, for connectors that speak over streams of bytes: real sockets, or the simulation's.

The logic of such a connector (`sbon.connectors.line_endpoint`) knows only these interfaces. `sbon_agent.connectors.sockets` implements them
over asyncio, `sbon_testbed.simulator.outside` over the streams of the virtual world.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from sbon.errors import ConnectorError
from sbon.ports import Stream

KEEPALIVE_IDLE_S = 30
"""Seconds without bytes from a peer after which it is probed, because its machine or the path to it may be gone; an end that only reads
would never notice."""
KEEPALIVE_S = 10
"""Seconds between probes."""
KEEPALIVE_PROBES = 3
"""Probes without an answer after which a stream is closed."""


class OuterStream(Stream, Protocol):
    """A stream to a program outside the overlay, with keepalive."""

    @property
    def is_open(self) -> bool:
        """False once the stream is closed or is being closed: what is written is dropped."""

    @property
    def opening_s(self) -> float:
        """Returns the seconds that it took to connect, with a TLS handshake; 0 for an accepted stream."""

    def pause(self) -> None:
        """Stops reading, so that the peer is slowed down; does nothing on a closed stream."""

    def resume(self) -> None:
        """Reads again; does nothing on a closed stream."""

    def abort(self) -> None:
        """Closes the stream at once; bytes that were not sent are dropped. `StreamHandler.closed` follows."""


class OuterHandler(Protocol):
    """Callbacks of one stream to a program outside; in the order of `sbon.ports.StreamHandler`."""

    def connected(self, stream: OuterStream) -> None:
        """Reports that the stream is open; called once, first."""

    def received(self, data: bytes) -> None:
        """Takes bytes that have arrived."""

    def writable(self) -> None:
        """Reports that the send buffer has room again."""

    def closed(self, reason: str) -> None:
        """Reports that the stream is gone, or could not be opened; called once, last.

        The reason of a stream with TLS says what is wrong with TLS, and is empty if nothing is.
        """


class Outside(Protocol):
    """One address outside the overlay, on which a connector listens or to which it connects.

    Everything is called on the agent's thread, unless stated otherwise, and calls back on that thread.
    """

    @property
    def address(self) -> tuple[str, int] | None:
        """Returns the address on which it listens; None before it does."""

    @property
    def problem(self) -> str:
        """Returns why a changed certificate is not in use; empty if there is no such problem."""

    def check(self) -> None:
        """Checks whether the address may be used; reads certificates. Blocks until the name is resolved: call it on a thread of its own.

        Raises
        ------
        ConnectorError
            None of the addresses may be used, or the files are unusable.
        """

    def listen(self, accept: Callable[[], OuterHandler], failed: Callable[[ConnectorError], None]) -> None:
        """Accepts streams, each with a handler of its own; calls `failed` if it cannot listen."""

    def connect(self, handler: OuterHandler, failed: Callable[[ConnectorError], None]) -> None:
        """Opens a stream: `handler.connected` or `handler.closed` follows, or `failed` if the address may no longer be used."""

    def stop(self) -> None:
        """Accepts no more streams, and opens none; open ones stay. May be called twice."""

    def soon(self, call: Callable[[], None]) -> None:
        """Makes a call on the agent's thread. May be called on any thread; drops the call if the agent has ended."""

    @property
    def is_here(self) -> bool:
        """Tells whether the caller is on the agent's thread. May be called on any thread; False before the address is used."""


@runtime_checkable
class OutsideHost(Protocol):
    """A machine with an outside of its own, instead of real sockets: the simulation's."""

    def outside(self, what: str, host: str, port: int, usable: Callable[[Sequence[str]], list[str]]) -> Outside:
        """Returns one address of its outside.

        Parameters
        ----------
        what : the connector's name in messages
        usable : returns those of some addresses that may be used; raises ConnectorError if none may
        """
