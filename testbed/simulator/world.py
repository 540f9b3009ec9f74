"""The virtual world: hosts for agents in one process, in virtual time, from a seed.

`SimulatedHost` implements `sbon_agent.host.Host`. Each machine's monotonic clock begins at a different instant, which exposes agents that
compare clocks of two machines; wall clocks agree unless they are skewed. A killed process's host object ends with it: its timers, streams
and unfinished work are dropped, and a restarted process gets a new host on the same machine. The same seed gives the same run, callback by
callback.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import numpy as np

from sbon.connectors.outside import OuterHandler
from sbon.errors import ConfigError
from sbon.ports import ProcessorUse, StreamHandler, Timer
from sbon.types import Address, FloatArray
from sbon_testbed.simulator.cpu import Cpu, CpuConfig
from sbon_testbed.simulator.disk import VirtualDisk
from sbon_testbed.simulator.network import Network, NetworkConfig
from sbon_testbed.simulator.outside import VirtualOutside
from sbon_testbed.simulator.stream import SimulatedStream, Streams
from sbon_testbed.simulator.time import NS, VirtualTime, ns, ns_not_before

T = TypeVar("T")

WALL_START_S = 1_767_225_600
"""Wall clock at the start of virtual worlds: 2026-01-01, 00:00 UTC."""
PORT = 7946
_EPHEMERAL_PORT = 32768

MEMORY_BYTES = 8 * 2**30
"""Memory of each virtual machine."""


class Machine:
    """The parts of a node that outlive its processes: address, clock, cores, disk."""

    def __init__(self, world: "SimulatedWorld", number: int, rng: np.random.Generator) -> None:
        self.world = world
        self.number = number
        self.ip = f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
        self.clock_start_ns = int(rng.integers(1, 1_000_000)) * NS
        self.wall_skew_s = 0.0
        self.cpu = Cpu(world.time, world.cpu)
        self.disk = VirtualDisk()
        self.ports: dict[int, SimulatedHost] = {}
        self.outer_ports: dict[int, VirtualOutside] = {}
        """Ports on which connectors listen."""
        self.port_next = _EPHEMERAL_PORT
        self._rng = rng

    def boot(self) -> "SimulatedHost":
        """Returns a host for a new process on this machine, with a random generator of its own."""
        return SimulatedHost(self, self._rng.spawn(1)[0])

    def accept(self, port: int, peer: Address) -> SimulatedStream | None:
        """Accepts a stream; returns None if no process listens on the port."""
        if port in self.ports:
            return self.ports[port].take_stream(peer)
        return self.outer_ports[port].take_stream(peer) if port in self.outer_ports else None

    def ephemeral_port(self) -> int:
        """Returns a port for an outgoing stream."""
        self.port_next = _EPHEMERAL_PORT if self.port_next >= 60999 else self.port_next + 1
        return self.port_next


class SimulatedWorld:
    """Machines on a network, in one virtual time."""

    def __init__(self, rtt_ms: FloatArray, seed: int, network: NetworkConfig | None = None, cpu: CpuConfig | None = None) -> None:
        network_rng, machines_rng = np.random.default_rng(seed).spawn(2)
        self.time = VirtualTime()
        self.cpu = cpu or CpuConfig()
        self.network = Network(self.time, rtt_ms, network or NetworkConfig(), network_rng)
        self.streams = Streams(self.network)
        self.machines = [Machine(self, number, rng) for number, rng in enumerate(machines_rng.spawn(len(rtt_ms)))]
        self._by_ip = {machine.ip: machine for machine in self.machines}

    def machine_at(self, ip: str) -> Machine | None:
        """Returns the machine with this address; None if there is none."""
        return self._by_ip.get(ip)

    def boot(self, number: int) -> "SimulatedHost":
        """Returns a host for a new process on machine `number`."""
        return self.machines[number].boot()


class SimulatedHost:
    """One process's view of its machine. Satisfies `sbon_agent.host.Host`."""

    def __init__(self, machine: Machine, rng: np.random.Generator) -> None:
        self.machine = machine
        self.rng, self._bytes_rng = rng.spawn(2)
        self.alive = True
        self._world = machine.world
        self._time = machine.world.time
        self._port = 0
        self._datagram: Callable[[bytes, Address, float], None] | None = None
        self._accept: Callable[[Address], StreamHandler] | None = None
        self._streams: list[SimulatedStream] = []

    def now(self) -> float:
        """Returns the seconds of this machine's monotonic clock."""
        return (self._time.now_ns + self.machine.clock_start_ns) / NS

    def wall(self) -> float:
        """Returns the seconds since 1970, with this machine's skew."""
        return WALL_START_S + self._time.now_ns / NS + self.machine.wall_skew_s

    def random_bytes(self, count: int) -> bytes:
        """Returns random bytes drawn from the seed."""
        return self._bytes_rng.bytes(count)

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        """Schedules a callback at the first nanosecond at which `now()` is not below `when`."""
        return self._time.at(ns_not_before(when) - self.machine.clock_start_ns, partial(self._call, callback))

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Schedules a callback after those already due."""
        self._time.after(0, partial(self._call, callback))

    def _call(self, callback: Callable[[], None]) -> None:
        if not self.alive:
            return
        goes_on_ns = self._world.network.stopped_until_ns(self.machine.number)
        if goes_on_ns > self._time.now_ns:
            self._time.at(goes_on_ns, partial(self._call, callback))
        else:
            callback()

    def listen(
        self,
        address: Address,
        datagram: Callable[[bytes, Address, float], None],
        accept: Callable[[Address], StreamHandler],
    ) -> Address:
        """Opens the agent's port on this machine; refuses an address of another machine, and a port in use."""
        ip, port = address
        if ip not in (self.machine.ip, "0.0.0.0"):
            raise ConfigError(f"cannot listen on {ip}: this machine is {self.machine.ip}")
        port = port or PORT
        if port in self.machine.ports:
            raise ConfigError(f"cannot listen on {self.machine.ip}:{port}: the address is in use")
        self._port, self._datagram, self._accept = port, datagram, accept
        self.machine.ports[port] = self
        return (self.machine.ip, port)

    def send_datagram(self, data: bytes, address: Address) -> None:
        """Sends a datagram without confirmation; it is lost if no machine has the address."""
        target = self._world.machine_at(address[0])
        if target is not None and self.alive:
            arrive = partial(_datagram_arrives, target, address[1], bytes(data), (self.machine.ip, self._port))
            self._world.network.send_datagram(self.machine.number, target.number, len(data), arrive)

    def outside(self, what: str, host: str, port: int, usable: Callable[[Sequence[str]], list[str]]) -> VirtualOutside:
        """Returns an address outside the overlay, for a connector; see `sbon.connectors.outside.OutsideHost`."""
        return VirtualOutside(self, what, host, port, usable)

    def connect(self, address: Address, handler: StreamHandler | OuterHandler, keepalive_s: float = 0.0) -> None:
        """Opens a stream; refuses an address that no machine has."""
        stream = self.new_stream(address, handler, keepalive_s)
        target = self._world.machine_at(address[0])
        if target is None:
            self.call_soon(lambda: stream.refused("no route to host"))
            return
        me = (self.machine.ip, self.machine.ephemeral_port())
        self._world.streams.dial(stream, target.number, lambda: target.accept(address[1], me))

    def execute(
        self,
        work: Callable[[], T],
        done: Callable[[T | BaseException], None],
        *,
        rows: int | Callable[[], Sequence[int]],
        brief: bool = False,
        spare: bool = False,
    ) -> None:
        """Runs `work` at once; calls `done` when a virtual core has had the time for it."""
        outcome: T | BaseException
        try:
            outcome = work()
        except Exception as error:
            outcome = error
        sizes = (rows,) if isinstance(rows, int) else rows()
        waited_ns = ns(self.machine.disk.take_delay_s())
        self._time.at(self.machine.cpu.run(*sizes) + waited_ns, lambda: self._call(lambda: done(outcome)))

    def execute_apart(self, work: Callable[[], T], done: Callable[[T | BaseException], None], limit_s: float) -> None:
        """Does the same as `execute`, because nothing blocks here."""
        self.execute(work, done, rows=0)

    def disk(self, folder: str) -> VirtualDisk:
        """Returns the machine's only disk, whatever the folder."""
        return self.machine.disk

    def stopwatch(self) -> float:
        """Returns the time of all work so far if the world is timed, otherwise a constant, because no virtual time passes during work."""
        return self.machine.cpu.worked_ns / NS

    def meter(self, *, brief: bool = False) -> "_Meter":
        """Returns a meter of the virtual cost of batches."""
        return _Meter(self.machine.cpu)

    @property
    def workers(self) -> int:
        """Returns the number of virtual cores."""
        return self.machine.cpu.cores

    def share_of_core(self) -> float:
        """Returns the share of a virtual core that other programs leave."""
        return self.machine.cpu.use().free_cores / self.machine.cpu.cores

    def processors(self) -> ProcessorUse:
        """Returns the use of the virtual cores, without any pressure of waiting work."""
        return self.machine.cpu.use()

    def memory_bytes(self) -> int:
        """Returns the memory of a small machine."""
        return MEMORY_BYTES

    def memory_fraction(self) -> float:
        """Returns a constant, because virtual machines have no memory to fill."""
        return 0.0

    def kill(self, silent: bool = False) -> None:
        """Ends the process at once. The machine resets its streams, unless it went off too (`silent`)."""
        if not self.alive:
            return
        self.alive = False
        self._datagram = self._accept = None
        if self.machine.ports.get(self._port) is self:
            del self.machine.ports[self._port]
        outer = self.machine.outer_ports
        self.machine.outer_ports = {port: one for port, one in outer.items() if one.process is not self}
        for stream in self._streams:
            stream.kill(silent)
        self._streams.clear()

    def take_datagram(self, data: bytes, sender: Address) -> None:
        """Delivers a datagram to this process's port."""
        if self._datagram is not None:
            self._world.network.counters["datagrams_delivered"] += 1
            self._datagram(data, sender, self.now())

    def take_stream(self, peer: Address) -> SimulatedStream | None:
        """Accepts a stream to this process's port; returns None if it is not listening."""
        if self._accept is None:
            return None
        return self.new_stream(peer, self._accept(peer))

    def new_stream(self, peer: Address, handler: StreamHandler | OuterHandler, keepalive_s: float = 0.0) -> SimulatedStream:
        """Returns this process's end of a stream, not open yet, which ends with the process."""
        stream = SimulatedStream(self._world.network, self.machine.number, peer, handler, lambda: self.alive)
        stream.keepalive_s = keepalive_s
        if len(self._streams) > 64 and len(self._streams) & (len(self._streams) - 1) == 0:
            self._streams = [known for known in self._streams if known.handler is not None]
        self._streams.append(stream)
        return stream


class _Meter:
    """Measures work by its virtual CPU cost. Satisfies `sbon.ports.Meter`."""

    def __init__(self, cpu: Cpu) -> None:
        self._cpu = cpu

    def lap(self, rows: int) -> int:
        """Returns the cost of these rows; no rows cost nothing."""
        return self._cpu.lap_ns(rows) if rows else 0

    def end(self) -> None:
        """Does nothing: the meter holds no resource."""


def _datagram_arrives(machine: Machine, port: int, data: bytes, sender: Address) -> None:
    network = machine.world.network
    if (goes_on_ns := network.stopped_until_ns(machine.number)) > network.time.now_ns:
        network.time.at(goes_on_ns, partial(_datagram_arrives, machine, port, data, sender))
        return
    host = machine.ports.get(port)
    if host is not None and network.powered(machine.number):
        host.take_datagram(data, sender)
