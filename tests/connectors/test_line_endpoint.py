"""The connections of the `tcp` connector, step by step: pauses, refusals, limits and ends, without sockets."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from sbon.connectors.line_endpoint import RECONNECT_S_MAX, Connection, LineEndpoint, Peers
from sbon.errors import ConnectorError

PEERS = Peers("source s", "host", 9, listens=False, connections_max=1, secured=False, settles=False)
SECURED = PEERS._replace(secured=True, settles=True)


class Clock:
    """A clock that tests set, with at most one pending call."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.call: Callable[[], None] | None = None
        self.when = 0.0
        self.rng = SimpleNamespace(random=lambda: 0.0)

    def now(self) -> float:
        """Returns the time."""
        return self.now_s

    def call_at(self, when: float, call: Callable[[], None]) -> Any:
        """Plans a call."""
        assert self.call is None
        self.when, self.call = when, call
        return SimpleNamespace(cancel=self._cancel)

    def _cancel(self) -> None:
        self.call = None

    def fire(self) -> None:
        """Makes the pending call at its time."""
        call, self.call = self.call, None
        assert call is not None
        self.now_s = self.when
        call()


class Outside:
    """Takes note of what the endpoint asks for."""

    address, problem = None, ""

    def __init__(self) -> None:
        self.handlers: list[Connection] = []
        self.accept: Callable[[], Connection] | None = None
        self.failed: Callable[[ConnectorError], None] | None = None
        self.stopped = False

    def connect(self, handler: Connection, failed: Callable[[ConnectorError], None]) -> None:
        """Keeps the handler of an attempt."""
        self.handlers.append(handler)
        self.failed = failed

    def listen(self, accept: Callable[[], Connection], failed: Callable[[ConnectorError], None]) -> None:
        """Keeps what makes handlers."""
        self.accept, self.failed = accept, failed

    def stop(self) -> None:
        """Takes note of the end."""
        self.stopped = True


class Stream:
    """A stream that does nothing."""

    def __init__(self, opening_s: float = 0.0) -> None:
        self.ended, self.opening_s, self.is_open, self.congested = "", opening_s, True, False

    def close(self) -> None:
        """Takes note that it was closed."""
        self.ended, self.is_open = "closed", False

    def abort(self) -> None:
        """Takes note that it was aborted."""
        self.ended, self.is_open = "aborted", False


class Setup:
    """A started endpoint, and what its owner has been told."""

    def __init__(self, peers: Peers = PEERS) -> None:
        self.clock, self.outside = Clock(), Outside()
        clock, outside, owner = self.clock, self.outside, self
        self.told: list[str] = []
        self.endpoint = LineEndpoint(peers, outside, clock)  # type: ignore[arg-type]
        self.endpoint.start(owner)

    def connected(self, connection: Connection) -> None:
        """Takes note of a connection."""
        self.told.append("connected")

    def received(self, connection: Connection, data: bytes) -> None:
        """Takes note of bytes."""
        self.told.append(data.decode())

    def writable(self) -> None:
        """Takes note of room."""
        self.told.append("writable")

    def closed(self, connection: Connection) -> None:
        """Takes note of an end."""
        self.told.append("closed")

    def accepted(self) -> tuple[Connection, Any]:
        """Lets a peer connect; returns the connection and its stream."""
        assert self.outside.accept is not None
        connection, stream = self.outside.accept(), Stream()
        connection.connected(stream)  # type: ignore[arg-type]
        return connection, stream

    def opened(self, opening_s: float = 0.0) -> tuple[Connection, Any]:
        """Lets the latest attempt succeed."""
        connection, stream = self.outside.handlers[-1], Stream(opening_s)
        connection.connected(stream)  # type: ignore[arg-type]
        return connection, stream

    def pause_s(self) -> float:
        """Returns the pause before the next attempt, and makes the attempt."""
        attempts, since_s = len(self.outside.handlers), self.clock.now_s
        self.clock.fire()
        assert len(self.outside.handlers) == attempts + 1
        return round(self.clock.now_s - since_s, 6)


def test_pauses_double_up_to_a_limit_and_are_short_again_after_a_connection_that_has_lasted():
    setup = Setup()
    pauses = []
    for _ in range(9):
        setup.outside.handlers[-1].closed("")
        pauses.append(setup.pause_s())
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, RECONNECT_S_MAX, RECONNECT_S_MAX]

    setup.opened()
    setup.clock.now_s += 0.9
    setup.outside.handlers[-1].closed("")
    assert setup.pause_s() == RECONNECT_S_MAX

    setup.opened()
    setup.clock.now_s += 1.0
    setup.outside.handlers[-1].closed("")
    assert setup.pause_s() == 0.1
    assert setup.told == ["connected", "closed"] * 2


def test_pauses_differ_by_chance_so_that_agents_do_not_come_back_together():
    setup = Setup()
    setup.clock.rng.random = lambda: 1.0
    setup.outside.handlers[-1].closed("")

    assert setup.pause_s() == 0.075


def test_a_listening_endpoint_closes_peers_beyond_its_limit_and_takes_others_when_one_has_gone():
    setup = Setup(PEERS._replace(listens=True, connections_max=2))
    (first, _), (_, second) = setup.accepted(), setup.accepted()
    third, stream = setup.accepted()
    assert (stream.ended, second.ended, len(setup.endpoint.connections)) == ("aborted", "", 2)
    third.closed("")
    first.closed("")
    assert setup.accepted()[1].ended == ""
    assert setup.clock.call is None, "a listening endpoint does not connect"
    assert setup.told == ["connected", "connected", "closed", "connected"]


@pytest.mark.parametrize(("opening_s", "settles_s"), [(0.0, 0.2), (0.5, 0.5)])
def test_nothing_is_written_before_the_peer_has_had_time_to_refuse_our_certificate(opening_s: float, settles_s: float):
    setup = Setup(SECURED)
    setup.opened(opening_s)
    assert (setup.endpoint.connections, setup.told) == ([], [])
    assert setup.clock.when == 100.0 + settles_s
    setup.clock.fire()
    assert len(setup.endpoint.connections) == 1
    assert setup.told == ["connected"]


def test_a_refusal_is_told_until_a_connection_has_settled():
    setup = Setup(SECURED)
    connection, _ = setup.opened()
    connection.closed("")
    assert setup.endpoint.remark == (
        "no TLS with host:9: the peer has closed the connection after the handshake; it may not trust our certificate"
    )
    assert setup.told == ["writable"]
    setup.pause_s()
    setup.outside.handlers[-1].closed("unknown ca")
    assert setup.endpoint.remark == "no TLS with host:9: unknown ca"
    setup.pause_s()
    setup.outside.handlers[-1].closed("")  # nobody listens there now
    assert setup.endpoint.remark == "no TLS with host:9: unknown ca"
    assert setup.pause_s() == 0.4, "a refused connection does not make the pauses short"
    setup.opened()
    setup.clock.fire()
    assert setup.endpoint.remark == ""


def test_an_endpoint_without_tls_tells_no_reasons():
    setup = Setup()
    setup.outside.handlers[-1].closed("connection refused")

    assert (setup.endpoint.remark, setup.told) == ("", [])


@pytest.mark.parametrize("peers", [PEERS, SECURED])
def test_a_stopped_endpoint_closes_its_connection_and_makes_no_other(peers: Peers):
    setup = Setup(peers)
    connection, stream = setup.opened()
    setup.endpoint.stop()
    assert (stream.ended, setup.outside.stopped, setup.clock.call) == ("closed", True, None)
    connection.closed("")
    assert setup.clock.call is None


def test_a_connection_that_opens_after_the_end_is_closed_at_once():
    setup = Setup()
    setup.endpoint.stop()
    _, stream = setup.opened()

    assert (stream.ended, setup.endpoint.connections, setup.told) == ("aborted", [], [])


def test_an_address_that_may_no_longer_be_used_ends_the_attempts():
    setup = Setup()
    assert setup.outside.failed is not None
    setup.outside.failed(ConnectorError("not allowed"))

    assert str(setup.endpoint.error) == "not allowed"
    assert (setup.told, setup.clock.call) == (["writable"], None)
