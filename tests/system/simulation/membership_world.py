"""A small virtual network for membership machines: delay, jitter (hence reordering), loss, duplicates, stalls, partitions, crashes."""

import heapq
from collections.abc import Callable

import numpy as np

from sbon.cost_space.coordinate import Coordinate
from sbon.errors import RemoteProtocolError
from sbon.membership import (
    Action,
    LeaveDone,
    MemberChanged,
    Membership,
    MembershipConfig,
    MemberStatus,
    PushPull,
    SendDatagram,
)
from sbon.types import Address, NodeId

Record = tuple[float, NodeId, Action]


class Node:
    """One process: a machine, the time until which it is stalled, and the events that wait for it."""

    def __init__(self, name: NodeId, address: Address) -> None:
        self.name, self.address = name, address
        self.machine: Membership | None = None
        self.stalled_until = 0.0
        self.armed = 0
        self.lives = 0


class World:
    """Machines by name; every random draw comes from `seed`."""

    def __init__(self, seed: int, config: MembershipConfig | None = None, *, loss: float = 0.0, duplication: float = 0.0) -> None:
        print(f"membership world: seed {seed}")
        self.now = 0.0
        self.loss, self.duplication = loss, duplication
        self.jitter_ms = 2.0
        self.config = config or MembershipConfig()
        self.rng = np.random.default_rng(seed)
        self.nodes: dict[NodeId, Node] = {}
        self.by_address: dict[Address, Node] = {}
        self.groups: dict[NodeId, int] = {}
        self.log: list[Record] = []
        self.rtts: list[tuple[float, NodeId, Action]] = []
        self.place: dict[NodeId, tuple[float, float, float]] = {}
        self.datagrams = 0
        self.bytes_sent = 0
        self.largest = 0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    # Driving

    def at(self, when: float, event: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._heap, (when, self._count, event))

    def run(self, for_s: float) -> None:
        end = self.now + for_s
        while self._heap and self._heap[0][0] <= end:
            self.now, _, event = heapq.heappop(self._heap)
            event()
        self.now = end

    def run_until(self, done: Callable[[], bool], within_s: float, step_s: float = 0.1) -> float:
        start = self.now
        while not done():
            assert self.now - start < within_s, f"not reached within {within_s} s of virtual time"
            self.run(step_s)
        return self.now - start

    # Nodes

    def start(self, name: NodeId, seeds: list[NodeId] | None = None, *, incarnation: int = 0, labels: dict[str, str] | None = None) -> None:
        node = self.nodes.get(name)
        if node is None:
            node = self.nodes[name] = Node(name, (f"10.0.0.{len(self.nodes)}", 7946))
            self.by_address[node.address] = node
            self.place[name] = tuple(self.rng.uniform(0, 60, 3).tolist())  # type: ignore[assignment]
        node.lives += 1
        node.stalled_until = 0.0
        where = Coordinate(self.place[name], 1.0, 0.1)
        rng = np.random.default_rng(self.rng.integers(0, 2**63))
        node.machine = Membership(self.config, name, node.address, labels or {}, incarnation, lambda: where, rng)
        addresses = [self.nodes[seed].address if seed in self.nodes else ("10.0.0.250", 7946) for seed in seeds or []]
        self._act(node, lambda machine: machine.join(addresses, self.now))

    def start_many(self, count: int) -> list[NodeId]:
        names = [f"n{i:02d}" for i in range(count)]
        for name in names:
            self.start(name, ["n00"])
        return names

    def machine(self, name: NodeId) -> Membership:
        machine = self.nodes[name].machine
        assert machine is not None
        return machine

    def kill(self, name: NodeId) -> None:
        self.nodes[name].machine = None

    def leave(self, name: NodeId) -> None:
        self._act(self.nodes[name], lambda machine: machine.leave(self.now))

    def stall(self, name: NodeId, for_s: float) -> None:
        self.nodes[name].stalled_until = max(self.nodes[name].stalled_until, self.now + for_s)

    def partition(self, *groups: list[NodeId]) -> None:
        self.groups = {name: number for number, group in enumerate(groups) for name in group}

    def heal(self) -> None:
        self.groups = {}

    def call(self, name: NodeId, ask: Callable[[Membership], list[Action]]) -> None:
        self._act(self.nodes[name], ask)

    # Questions

    def statuses(self, of: NodeId) -> dict[NodeId, MemberStatus | None]:
        """Returns the status of `of` as each running node sees it."""
        return {
            node.name: node.machine.members[of].status if of in node.machine.members else None
            for node in self.nodes.values()
            if node.machine is not None and node.name != of
        }

    def all_see(self, of: NodeId, status: MemberStatus) -> bool:
        return all(seen is status for seen in self.statuses(of).values())

    def all_alive(self, names: list[NodeId]) -> bool:
        return all(self.all_see(name, MemberStatus.ALIVE) for name in names)

    def changes(self, status: MemberStatus) -> list[Record]:
        return [record for record in self.log if isinstance(record[2], MemberChanged) and record[2].after is status]

    # The network

    def delay_s(self, a: NodeId, b: NodeId) -> float:
        """Returns the one-way delay without jitter."""
        distance = float(np.linalg.norm(np.subtract(self.place[a], self.place[b])))
        return (distance + 2.0) / 2000

    def _reachable(self, a: Node, b: Node) -> bool:
        return self.groups.get(a.name, 0) == self.groups.get(b.name, 0)

    def _act(self, node: Node, ask: Callable[[Membership], list[Action]]) -> None:
        if node.machine is None:
            return
        if node.stalled_until > self.now:
            life = node.lives
            self.at(node.stalled_until, lambda: self._act(node, ask) if node.lives == life else None)
            return
        actions = ask(node.machine)
        for action in actions:
            if isinstance(action, SendDatagram):
                self._send(node, action)
            elif isinstance(action, PushPull):
                self._push_pull(node, action)
            elif isinstance(action, LeaveDone):
                node.machine = None
            if not isinstance(action, SendDatagram):
                self.log.append((self.now, node.name, action))
        self._arm(node)

    def _arm(self, node: Node) -> None:
        if node.machine is None:
            return
        when = node.machine.next_wake()
        node.armed += 1
        if when is not None:
            number = node.armed
            self.at(max(when, self.now), lambda: self._wake(node, number))

    def _wake(self, node: Node, number: int) -> None:
        if number == node.armed:
            self._act(node, lambda machine: machine.wake(self.now))

    def _send(self, node: Node, action: SendDatagram) -> None:
        self.datagrams += 1
        self.bytes_sent += len(action.data)
        self.largest = max(self.largest, len(action.data))
        target = self.by_address.get(action.address)
        if target is None or not self._reachable(node, target):
            return
        for _ in range(2 if self.rng.random() < self.duplication else 1):
            if self.rng.random() >= self.loss:
                arrives = self.now + self.delay_s(node.name, target.name) + self.jitter_ms / 1000 * self.rng.exponential()
                self.at(arrives, lambda: self._deliver(node, target, action.data))

    def _deliver(self, source: Node, target: Node, data: bytes) -> None:
        received_at = self.now

        def receive(machine: Membership) -> list[Action]:
            try:
                return machine.receive(data, source.address, self.now, received_at)
            except RemoteProtocolError:
                machine.counters["refused"] += 1
                return []

        self._act(target, receive)

    def _push_pull(self, node: Node, action: PushPull) -> None:
        target = self.by_address.get(action.address)
        if target is None or target.machine is None or node.machine is None or not self._reachable(node, target):
            return
        state, delay = node.machine.full_state(), 3 * self.delay_s(node.name, target.name)

        def asked(machine: Membership) -> list[Action]:
            actions = machine.merge(state, self.now)
            answer = machine.full_state()
            self.at(self.now + delay, lambda: self._act(node, lambda asker: asker.merge(answer, self.now, action.address)))
            return actions

        self.at(self.now + delay, lambda: self._act(target, asked))
