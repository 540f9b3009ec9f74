"""Worlds for the conformance suite of `sbon_agent.host.Host`: each has two hosts, and can let time pass until a condition holds."""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from sbon.peers.shaped_stream import Way
from sbon.ports import Stream
from sbon.types import Address
from sbon_agent.host import Host
from sbon_agent.network.shaper import ShapedHost
from sbon_testbed.simulator.network import NetworkConfig
from sbon_testbed.simulator.world import SimulatedHost, SimulatedWorld


class TwoHosts(Protocol):
    """Two hosts that can reach each other."""

    hosts: list[Any]
    addresses: list[Address]
    """Address at which each host may listen; port 0 if the world chooses."""
    nowhere: Address
    """An address without a listener."""

    def run(self, condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
        """Lets time pass until the condition holds; fails the test if it does not in time."""

    def neighbour(self) -> Host:
        """Returns another process on the machine of host 0."""

    def kill(self, index: int) -> None:
        """Ends one host's process, or simulates that."""

    def close(self) -> None:
        """Ends everything."""


class SimulatedPair:
    """Two hosts of the virtual world, 20 ms apart."""

    def __init__(self) -> None:
        rtt_ms = np.array([[0.0, 20.0], [20.0, 0.0]])
        self.world = SimulatedWorld(rtt_ms, seed=5, network=NetworkConfig(split=0.5))
        self.hosts: list[SimulatedHost] = [self.world.boot(0), self.world.boot(1)]
        self.addresses = [(machine.ip, 0) for machine in self.world.machines]
        self.nowhere = (self.world.machines[1].ip, 9)

    def run(self, condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
        """Lets virtual time pass."""
        assert self.world.time.run_while(lambda: not condition(), self.world.time.now_s + timeout_s), "the condition never held"

    def neighbour(self) -> Host:
        """Returns one more process."""
        return self.world.boot(0)

    def kill(self, index: int) -> None:
        """Kills the process."""
        self.hosts[index].kill()

    def close(self) -> None:
        """Does nothing, as no resources are held."""


class AsyncioPair:
    """Two hosts on loopback in one event loop."""

    def __init__(self) -> None:
        from sbon_agent.asyncio_host import AsyncioHost

        self.loop = asyncio.new_event_loop()
        self.hosts = [AsyncioHost(self.loop, rng=np.random.default_rng(seed)) for seed in (1, 2)]
        self.addresses = [("127.0.0.1", 0), ("127.0.0.1", 0)]
        self.nowhere = ("127.0.0.1", 9)

    def run(self, condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
        """Runs the loop, and checks the condition after every turn in which something may have happened."""
        deadline = self.loop.time() + timeout_s

        async def wait() -> None:
            while not condition():
                assert self.loop.time() < deadline, "the condition never held"
                await asyncio.sleep(0.001)

        self.loop.run_until_complete(wait())

    def neighbour(self) -> Host:
        """Returns the other host, as both are on one machine."""
        return self.hosts[1]

    def kill(self, index: int) -> None:
        """Closes everything that the host has open."""
        self.hosts[index].close()

    def close(self) -> None:
        """Closes hosts and loop."""
        for host in self.hosts:
            host.close()
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()


class UvloopPair(AsyncioPair):
    """Two hosts on loopback on the event loop that agents prefer."""

    def __init__(self) -> None:
        from sbon_agent.asyncio_host import AsyncioHost, new_event_loop

        super().__init__()
        self.loop.close()
        self.loop = new_event_loop()
        self.hosts = [AsyncioHost(self.loop, rng=np.random.default_rng(seed)) for seed in (1, 2)]


class ShapedPair(AsyncioPair):
    """Two hosts on loopback through the testbed's shaper, with every address a few milliseconds away."""

    def __init__(self) -> None:
        super().__init__()
        self.bare = self.hosts
        self.hosts = [_FarAway(host) for host in self.bare]

    def kill(self, index: int) -> None:
        """Closes everything that the host under the shaper has open."""
        self.bare[index].close()

    def close(self) -> None:
        """Closes the hosts under the shaper, and the loop."""
        self.hosts = self.bare
        super().close()


class _FarAway(ShapedHost):
    def path(self, address: Address) -> Way:
        return Way(delay_ms=5.0, jitter_ms=2.0)


class Recorder:
    """A stream handler that records its calls."""

    def __init__(self) -> None:
        self.stream: Stream | None = None
        self.data = bytearray()
        self.log: list[str] = []
        self.closed_because: str | None = None
        self.writable_calls = 0

    def connected(self, stream: Stream) -> None:
        """Keeps the stream."""
        self.stream = stream
        self.log.append("connected")

    def received(self, data: bytes) -> None:
        """Keeps the bytes."""
        assert data
        self.data += data
        self.log.append("received")

    def writable(self) -> None:
        """Counts the calls."""
        self.writable_calls += 1
        self.log.append("writable")

    def closed(self, reason: str) -> None:
        """Keeps the reason."""
        assert self.closed_because is None, "closed was called twice"
        self.closed_because = reason
        self.log.append("closed")


class Listener:
    """Listens on one host and keeps incoming datagrams and streams."""

    def __init__(self, host: Host, address: Address) -> None:
        self.host = host
        self.datagrams: list[tuple[bytes, Address, float]] = []
        self.streams: list[Recorder] = []
        self.address = host.listen(address, self._datagram, self._accept)

    def _datagram(self, data: bytes, sender: Address, received_at: float) -> None:
        self.datagrams.append((data, sender, received_at))

    def _accept(self, peer: Address) -> Recorder:
        self.streams.append(Recorder())
        return self.streams[-1]
