"""A light world for membership machines alone: datagrams with delay, loss and jitter; stalls, crashes, partitions; thousands of agents.

`sbon_testbed.simulator.world` runs whole agents; here only `sbon.membership.Membership` runs, so that two thousand agents fit into one
process. A stalled process handles nothing until it continues; datagrams that arrive in the meantime keep their time of arrival.
"""

import heapq
import math
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from sbon.cost_space.coordinate import Coordinate
from sbon.errors import RemoteProtocolError
from sbon.membership import (
    Action,
    MemberChanged,
    Membership,
    MembershipConfig,
    MemberStatus,
    MemberUpdated,
    PushPull,
    RttMeasured,
    SendDatagram,
)
from sbon.membership.broadcast import Broadcasts
from sbon.membership.sampling import VitalsToTell
from sbon.sealing import OVERHEAD_BYTES
from sbon.types import Address, NodeId
from sbon_testbed.simulator.network import Draws

SPREAD_MS = 80.0
"""Edge of the cube in which agents lie: the median RTT is 55 ms, the largest 140 ms, as within a continent."""
HEIGHT_MS = 2.0
STREAM_TRIPS = 3
"""Number of one-way delays until a push-pull has opened a stream and delivered its request."""
UNKNOWN = 0
_CODE = {MemberStatus.ALIVE: 1, MemberStatus.SUSPECT: 2, MemberStatus.FAILED: 3, MemberStatus.LEFT: 4}
ALIVE, SUSPECT, FAILED = _CODE[MemberStatus.ALIVE], _CODE[MemberStatus.SUSPECT], _CODE[MemberStatus.FAILED]


class MembershipWorldConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Loss and delay of datagrams on the network."""

    loss: float = 0.01
    """Share of datagrams that are lost. More: more suspicions."""
    jitter_ms: float = 2.0
    """Mean of the exponential delay added one way. More: more reordering."""


class Process:
    """One agent: its membership machine while it runs, and its coordinate."""

    __slots__ = ("address", "armed_at", "coordinate", "group", "life", "machine", "name", "number", "samples", "stalled_until", "waiting")

    def __init__(self, number: int, place: Sequence[float]) -> None:
        self.number = number
        self.name: NodeId = f"n{number:04d}"
        self.address: Address = (f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}", 7946)
        self.machine: Membership | None = None
        self.life = 0
        self.group = 0
        self.stalled_until = 0.0
        self.waiting: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self.armed_at = math.inf
        self.samples = 0
        x, y, z = place
        self.coordinate = Coordinate((x, y, z), HEIGHT_MS, 1.0)

    def delay_s(self, other: "Process") -> float:
        """Returns the one-way delay to another agent, without jitter."""
        return (math.dist(self.coordinate.vector, other.coordinate.vector) + 2 * HEIGHT_MS) / 2000

    def measured(self) -> None:
        """Moves the coordinate a little, as every sample does in a whole agent, so that changed coordinates are gossiped."""
        self.samples += 1
        c = self.coordinate
        wobble = 0.01 if self.samples % 2 else -0.01
        self.coordinate = Coordinate((c.vector[0] + wobble, *c.vector[1:]), c.height_ms, max(1 / (1 + self.samples), 0.1))


class MembershipWorld:
    """Agents by number, in one virtual time; every random draw comes from `seed`.

    `status[observer, subject]` and `boot[observer, subject]` are the beliefs of each agent; rows of agents that do not run are stale.
    """

    def __init__(
        self, agents: int, seed: int, membership: MembershipConfig | None = None, network: MembershipWorldConfig | None = None
    ) -> None:
        places_rng, network_rng, self._machines_rng = np.random.default_rng(seed).spawn(3)
        self.now = 0.0
        self.membership = membership or MembershipConfig()
        self.network = network or MembershipWorldConfig()
        places = places_rng.uniform(0, SPREAD_MS, (agents, 3)).tolist()
        self.processes = [Process(number, place) for number, place in enumerate(places)]
        self.status: npt.NDArray[np.uint8] = np.zeros((agents, agents), dtype=np.uint8)
        self.boot: npt.NDArray[np.uint32] = np.zeros((agents, agents), dtype=np.uint32)
        self.datagrams = 0
        self.datagram_bytes = 0
        self.stream_bytes = 0
        self.watch: Callable[[int, int, int], None] | None = None
        """Called with (observer, subject, new status) at every change of a status."""
        self._draws = Draws(network_rng)
        self._by_address = {process.address: process for process in self.processes}
        self._number = {process.name: process.number for process in self.processes}
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    # Driving

    def at(self, when: float, event: Callable[..., None], *arguments: Any) -> None:
        """Schedules a callback at an instant of virtual time."""
        self._count += 1
        heapq.heappush(self._heap, (when, self._count, event, arguments))

    def run(self, for_s: float) -> None:
        """Lets virtual time pass."""
        end = self.now + for_s
        heap = self._heap
        while heap and heap[0][0] <= end:
            self.now, _, event, arguments = heapq.heappop(heap)
            event(*arguments)
        self.now = end

    def run_until(self, done: Callable[[], bool], within_s: float, step_s: float = 0.1) -> float | None:
        """Runs until `done`; returns the virtual seconds that it took, or None if it took longer than `within_s`."""
        start = self.now
        while not done():
            if self.now - start >= within_s:
                return None
            self.run(step_s)
        return self.now - start

    # Agents

    def start(self, number: int, seeds: Sequence[int], incarnation: int = 0) -> None:
        """Starts the process of an agent, or its next one under the same name."""
        process = self.processes[number]
        process.life += 1
        process.stalled_until, process.armed_at, process.samples = 0.0, math.inf, 0
        process.waiting.clear()
        c = process.coordinate
        process.coordinate = Coordinate(c.vector, c.height_ms, 1.0)
        rng = np.random.default_rng(self._machines_rng.integers(0, 2**63))
        machine = Membership(self.membership, process.name, process.address, {}, incarnation, lambda: process.coordinate, rng)
        process.machine = machine
        self.status[number] = UNKNOWN
        self.boot[number] = 0
        self.status[number, number], self.boot[number, number] = ALIVE, machine.own.boot
        self._perform(process, machine.join([self.processes[seed].address for seed in seeds], self.now))

    def full_state(self, number: int) -> bytes:
        """Returns the whole table of a running agent, as a push-pull carries it."""
        machine = self.processes[number].machine
        assert machine is not None
        return machine.full_state()

    def acquaint(self) -> None:
        """Makes all running agents know each other at once, without news left to gossip."""
        running = [process for process in self.processes if process.machine is not None]
        first = running[0]
        for process in running[1:]:
            self.merge(first, self.full_state(process.number))
        whole = self.full_state(first.number)
        for process in running:
            self.merge(process, whole)
            assert process.machine is not None
            roster = process.machine._roster
            roster.news, roster.vitals_to_tell = Broadcasts(), VitalsToTell()

    def merge(self, process: Process, state: bytes) -> None:
        """Gives a process another's full state."""
        if process.machine is not None:
            self._perform(process, process.machine.merge(state, self.now))

    def kill(self, number: int) -> None:
        """Ends a process without notice."""
        process = self.processes[number]
        process.machine = None
        process.life += 1
        process.waiting.clear()

    def stall(self, number: int, for_s: float) -> None:
        """Stops a process for some time."""
        process = self.processes[number]
        until = self.now + for_s
        if process.machine is not None and until > process.stalled_until:
            process.stalled_until = until
            self.at(until, self._go_on, process, process.life)

    def partition(self, group: Sequence[int]) -> None:
        """Separates these agents from all others."""
        for number in group:
            self.processes[number].group = 1

    def heal(self) -> None:
        """Lets all agents reach each other."""
        for process in self.processes:
            process.group = 0

    @property
    def running(self) -> npt.NDArray[np.intp]:
        """Returns the numbers of the running agents."""
        return np.array([process.number for process in self.processes if process.machine is not None], dtype=np.intp)

    def whole(self) -> bool:
        """Tells whether every running agent considers every running agent, in its present process, alive."""
        running = self.running
        if len(running) == len(self.processes):
            return bool((self.status == ALIVE).all()) and bool((self.boot == self.boot.diagonal()[None, :]).all())
        chosen = np.ix_(running, running)
        return bool((self.status[chosen] == ALIVE).all()) and bool((self.boot[chosen] == self.boot.diagonal()[running][None, :]).all())

    def knows_present_life(self, observer: int, subject: int) -> bool:
        """Tells whether an agent's latest information about another is about the process that runs under this name now."""
        return bool(self.boot[observer, subject] == self.boot[subject, subject])

    # The network

    def _go_on(self, process: Process, life: int) -> None:
        if process.life != life or process.stalled_until > self.now:
            return
        waiting, process.waiting = process.waiting, []
        for event, arguments in waiting:
            event(*arguments)
        self._wake(process, life, self.now)

    def _stands_still(self, process: Process, event: Callable[..., None], *arguments: Any) -> bool:
        if process.stalled_until <= self.now:
            return False
        process.waiting.append((event, arguments))
        return True

    def _wake(self, process: Process, life: int, armed_at: float) -> None:
        machine = process.machine
        if machine is None or process.life != life or process.stalled_until > self.now:
            return  # a stopped process is woken when it continues
        if armed_at >= process.armed_at:
            process.armed_at = math.inf
        self._perform(process, machine.wake(self.now))

    def _perform(self, process: Process, actions: list[Action]) -> None:
        for action in actions:
            if action.__class__ is SendDatagram:
                self._send(process, action.address, action.data)
            elif isinstance(action, RttMeasured):
                process.measured()
            elif isinstance(action, MemberChanged):
                self._changed(process, action)
            elif isinstance(action, MemberUpdated):
                assert process.machine is not None
                self.boot[process.number, self._number[action.name]] = process.machine.members[action.name].boot
            elif isinstance(action, PushPull):
                self._push_pull(process, action.address)
        machine = process.machine
        if machine is not None and (when := machine.next_wake()) is not None and when < process.armed_at:
            process.armed_at = when
            self.at(max(when, self.now), self._wake, process, process.life, when)

    def _changed(self, process: Process, action: MemberChanged) -> None:
        assert process.machine is not None
        observer, subject, code = process.number, self._number[action.name], _CODE[action.after]
        self.status[observer, subject] = code
        self.boot[observer, subject] = process.machine.members[action.name].boot
        if self.watch is not None:
            self.watch(observer, subject, code)

    def _send(self, source: Process, address: Address, data: bytes) -> None:
        self.datagrams += 1
        self.datagram_bytes += len(data) + OVERHEAD_BYTES
        target = self._by_address.get(address)
        if target is None or target.group != source.group or self._draws.uniform() < self.network.loss:
            return
        arrives = self.now + source.delay_s(target) + self.network.jitter_ms / 1000 * self._draws.exponential()
        self.at(arrives, self._deliver, target, source.address, data, arrives)

    def _deliver(self, target: Process, sender: Address, data: bytes, arrived: float) -> None:
        machine = target.machine
        if machine is None or self._stands_still(target, self._deliver, target, sender, data, arrived):
            return
        try:
            actions = machine.receive(data, sender, self.now, arrived)
        except RemoteProtocolError:
            machine.counters["refused"] += 1
            return
        self._perform(target, actions)

    def _push_pull(self, source: Process, address: Address) -> None:
        target = self._by_address.get(address)
        if target is None or source.machine is None:
            return
        state = source.machine.full_state()
        arrives = self.now + STREAM_TRIPS * source.delay_s(target)
        self.at(arrives, self._asked, target, source, source.life, address, state)

    def _asked(self, target: Process, source: Process, life: int, address: Address, state: bytes) -> None:
        if target.machine is None or target.group != source.group:
            return
        if self._stands_still(target, self._asked, target, source, life, address, state):
            return
        self.stream_bytes += len(state)
        self._perform(target, target.machine.merge(state, self.now))
        answer = target.machine.full_state()
        self.at(self.now + source.delay_s(target), self._answered, source, life, address, target, answer)

    def _answered(self, source: Process, life: int, address: Address, target: Process, answer: bytes) -> None:
        if source.machine is None or source.life != life or source.group != target.group:
            return
        if self._stands_still(source, self._answered, source, life, address, target, answer):
            return
        self.stream_bytes += len(answer)
        self._perform(source, source.machine.merge(answer, self.now, address))
