"""Addresses outside the overlay in the virtual world, for connectors that listen on or connect to them. Programs of tests use them, too.

Each machine has its address and loopback, 127.0.0.1, which only its own processes reach. Names and TLS do not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from sbon.connectors.outside import KEEPALIVE_IDLE_S, KEEPALIVE_PROBES, KEEPALIVE_S, OuterHandler
from sbon.errors import ConnectorError
from sbon.types import Address

if TYPE_CHECKING:
    from sbon_testbed.simulator.stream import SimulatedStream
    from sbon_testbed.simulator.world import SimulatedHost

LOOPBACK = "127.0.0.1"
ALL = "0.0.0.0"
_KEEPALIVE_S = KEEPALIVE_IDLE_S + KEEPALIVE_PROBES * KEEPALIVE_S


class VirtualOutside:
    """One address, as one process uses it. Satisfies `sbon.connectors.outside.Outside`.

    Parameters
    ----------
    process : the process that listens or connects
    what, usable : see `sbon.connectors.outside.OutsideHost`
    """

    problem = ""
    is_here = True
    """All work is done on one thread."""

    def __init__(
        self, process: SimulatedHost, what: str, host: str, port: int, usable: Callable[[Sequence[str]], list[str]] = list
    ) -> None:
        self.process = process
        self.address: tuple[str, int] | None = None
        self._what = what
        self._host, self._port = host, port
        self._usable = usable
        self._accept: Callable[[], OuterHandler] | None = None

    def check(self) -> None:
        """Checks whether the address may be used."""
        self._usable([self._host])

    def soon(self, call: Callable[[], None]) -> None:
        """Makes a call after those already due, if the process still runs then."""
        self.process.call_soon(call)

    def listen(self, accept: Callable[[], OuterHandler], failed: Callable[[ConnectorError], None]) -> None:
        """Accepts streams on the machine's port, from now on."""
        machine = self.process.machine
        port = self._port or machine.ephemeral_port()
        if self._host not in (LOOPBACK, ALL, machine.ip):
            why = "cannot assign requested address"
        elif port in machine.ports or port in machine.outer_ports:
            why = "address already in use"
        else:
            self._accept = accept
            machine.outer_ports[port] = self
            self.address = (self._host, port)
            return
        error = ConnectorError(f"{self._what}: cannot listen on {self._host}:{port}: {why}", option="host")
        self.soon(lambda: failed(error))

    def connect(self, handler: OuterHandler, failed: Callable[[ConnectorError], None]) -> None:
        """Opens a stream."""
        try:
            self.check()
        except ConnectorError as error:
            refused = error
            self.soon(lambda: failed(refused))
            return
        here = self._host in (LOOPBACK, ALL)
        self.process.connect((self.process.machine.ip if here else self._host, self._port), handler, _KEEPALIVE_S)

    def stop(self) -> None:
        """Accepts no more streams."""
        ports = self.process.machine.outer_ports
        if self.address is not None and ports.get(self.address[1]) is self:
            del ports[self.address[1]]
        self.address = self._accept = None

    def take_stream(self, peer: Address) -> SimulatedStream | None:
        """Accepts a stream; returns None if the peer may not reach this address."""
        reached = self._host != LOOPBACK or peer[0] == self.process.machine.ip
        return self.process.new_stream(peer, self._accept(), _KEEPALIVE_S) if reached and self._accept is not None else None
