"""Simulates two stages on several nodes in virtual time, batch by batch; the latency model is compared with the result.

Sources pack rows into batches. Map instances process them and send to update instances in intervals. Update instances poll in intervals, or
batches are pushed to them. Threads of a node share its cores evenly (processor sharing). Network interfaces serve batches first come, first
served. The simulation uses no part of the model: no utilisation, no distribution of waits.
"""

import heapq
import itertools
from collections import deque

import msgspec
import numpy as np

from sbon.cost.stages import Cluster, Job, dealt_shares
from sbon.types import FloatArray

NS_PER_S = 1e9
WAITING_MAX_S = 8.0
"""Waiting work of one thread at which the latency counts as unbounded."""
_GROWTH_ROWS = 400
"""Number of sampled rows from which on a latency that grows over the run counts as unbounded."""
_KEYS_SEEN = 16
"""Number of keys of a window and instance whose latency is recorded, evenly spaced."""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One setting of the plan."""

    nodes: int
    maps: int
    updates: int
    pace_s: float
    exchange_s: float
    poll_s: float = 0.0
    window_s: float = 0.0
    """Length of tumbling windows; 0: none."""


class Seen(msgspec.Struct, frozen=True):
    """Latencies of sampled rows or windows, after the settling time."""

    latency_s: FloatArray
    """(samples,)"""
    phases_s: FloatArray
    """(samples of rows, 12)"""
    is_bounded: bool
    """False: the work of some thread, or the latency, kept growing."""

    @property
    def mean_s(self) -> float:
        """Returns the mean latency; infinite if unbounded."""
        return float(self.latency_s.mean()) if self.is_bounded and len(self.latency_s) else float("inf")

    def quantile_s(self, share: float) -> float:
        """Returns a quantile of the latency; infinite if unbounded."""
        return float(np.quantile(self.latency_s, share)) if self.is_bounded and len(self.latency_s) else float("inf")


class _Batch:
    """A batch for a thread; `samples` are the recorded rows, each as the ends of its phases so far."""

    __slots__ = ("arrived_s", "mark_s", "rows", "samples", "sender", "started_s")

    def __init__(self, rows: float, samples: list[list[float]], sender: int = 0, mark_s: float = 0.0) -> None:
        self.rows, self.samples, self.sender, self.mark_s = rows, samples, sender, mark_s
        self.arrived_s = self.started_s = 0.0


class _Node:
    """A node's cores, shared evenly by its busy threads. `clock` is the work that each busy thread has done."""

    __slots__ = ("at_s", "clock", "cores", "heap", "version")

    def __init__(self, cores: int) -> None:
        self.cores = cores
        self.clock = self.at_s = 0.0
        self.heap: list[tuple[float, int]] = []
        """End of work on `clock`, and thread."""
        self.version = 0

    def advance(self, now: float) -> None:
        """Advances `clock` to the time `now`."""
        busy = len(self.heap)
        if busy:
            self.clock += (now - self.at_s) * min(1.0, self.cores / busy)
        self.at_s = now

    def next_end(self) -> float:
        """Returns when the next thread finishes."""
        return self.at_s + max(0.0, self.heap[0][0] - self.clock) * max(1.0, len(self.heap) / self.cores)


class _Thread:
    """A map or update instance on a node."""

    __slots__ = ("at_work", "node", "queue", "waiting_s")

    def __init__(self, node: int) -> None:
        self.node = node
        self.queue: deque[_Batch] = deque()
        self.at_work: _Batch | None = None
        self.waiting_s = 0.0


class _Mapped:
    """The output of a map instance since it last sent; it contains all rows up to the instant `mark_s`."""

    __slots__ = ("mark_s", "rows", "samples")

    def __init__(self) -> None:
        self.rows, self.samples, self.mark_s = 0.0, list[list[float]](), 0.0


class _Update:
    """The state of an update instance: batches offered to it, the progress of each sender, and the number of closed windows."""

    __slots__ = ("closed", "marks_s", "offered")

    def __init__(self, senders: int) -> None:
        self.offered: list[_Batch] = []
        self.marks_s = [0.0] * senders
        self.closed = 0


class _Record:
    """Measurements of rows that enter from `from_s` on."""

    __slots__ = ("from_s", "is_bounded", "latencies_s", "phases_s")

    def __init__(self, from_s: float) -> None:
        self.from_s, self.is_bounded = from_s, True
        self.latencies_s: list[float] = []
        self.phases_s: list[list[float]] = []


class _Line:
    """A network interface in one direction."""

    __slots__ = ("free_s",)

    def __init__(self) -> None:
        self.free_s = 0.0

    def sent(self, now: float, seconds: float) -> tuple[float, float]:
        """Returns when sending begins and ends."""
        begin = max(now, self.free_s)
        self.free_s = begin + seconds
        return begin, self.free_s


def simulate(
    job: Job, cluster: Cluster, setting: Setting, rate: float, seconds: float, rng: np.random.Generator, *, settling_s: float = 2.0
) -> Seen:
    """Simulates `settling_s` and then `seconds` of virtual time; returns the latencies of the latter.

    Parameters
    ----------
    rate : rows/s over all sources
    seconds : measured time
    """
    return _World(job, cluster, setting, rate, rng).run(settling_s, settling_s + seconds)


class _World:
    def __init__(self, job: Job, cluster: Cluster, setting: Setting, rate: float, rng: np.random.Generator) -> None:
        self.job, self.cluster, self.setting, self.rng = job, cluster, setting, rng
        self.senders, self.receivers = setting.nodes * setting.maps, setting.nodes * setting.updates
        self.row_rate = rate / self.senders
        shares = dealt_shares(job.hot_shares, self.receivers)
        self.shares = shares[rng.permutation(self.receivers)]
        self.edges = np.cumsum(self.shares)
        self.nodes = [_Node(cluster.cores) for _ in range(setting.nodes)]
        self.ingress = [_Line() for _ in range(setting.nodes)]
        self.egress = [_Line() for _ in range(setting.nodes)]
        # Thread t < senders is map t on node t // maps; the others are updates.
        hosts = [*(t // setting.maps for t in range(self.senders)), *(t // setting.updates for t in range(self.receivers))]
        self.threads = [_Thread(node) for node in hosts]
        self.mapped = [_Mapped() for _ in range(self.senders)]
        self.updates = [_Update(self.senders) for _ in range(self.receivers)]
        self.heap: list[tuple[float, int, int, int, object]] = []
        self.count = 0
        self.record = _Record(0.0)

    def at(self, instant_s: float, kind: int, which: int, what: object = None) -> None:
        self.count += 1
        heapq.heappush(self.heap, (instant_s, self.count, kind, which, what))

    def run(self, from_s: float, until_s: float) -> Seen:
        setting, rng = self.setting, self.rng
        self.record = _Record(from_s)
        for sender in range(self.senders):
            self.at(setting.pace_s * (1 + rng.random()), 0, sender)
            self.at(setting.exchange_s * rng.random(), 2, sender)
        if setting.poll_s > 0:
            for receiver in range(self.receivers):
                self.at(setting.poll_s * rng.random(), 3, receiver)
        handlers = (self._packed, self._arrived, self._flushed, self._polled, self._ended, self._deliver)
        heap = self.heap
        while heap and self.record.is_bounded:
            now, _, kind, which, what = heapq.heappop(heap)
            if now > until_s:
                break
            handlers[kind](now, which, what)
        record = self.record
        found = np.array(record.latencies_s)
        if not setting.window_s and len(found) >= _GROWTH_ROWS:
            early, late = found[: len(found) // 2].mean(), found[-len(found) // 4 :].mean()
            record.is_bounded &= bool(late <= 1.15 * early + 0.02)
        return Seen(found, np.array(record.phases_s).reshape(-1, 12), record.is_bounded)

    # ---- source, network

    def _packed(self, now: float, sender: int, _: object) -> None:
        setting, job = self.setting, self.job
        mean = self.row_rate * setting.pace_s
        if job.arrival_scatter:
            mean *= max(0.0, 1 + job.arrival_scatter * self.rng.standard_normal())
        rows = float(self.rng.poisson(mean))
        entered_s = now - setting.pace_s * self.rng.random()
        batch = _Batch(rows, [[entered_s, now]], sender, now)
        begin, end = self.ingress[sender // setting.maps].sent(now, rows * job.row_bytes / self.cluster.bandwidth_bytes_per_s)
        for sample in batch.samples:
            sample += [begin, end + self.cluster.propagation_s]
        self.at(end + self.cluster.propagation_s, 1, sender, batch)
        self.at(now + setting.pace_s, 0, sender)

    def _arrived(self, now: float, number: int, batch: object) -> None:
        assert isinstance(batch, _Batch)
        batch.arrived_s = now
        thread = self.threads[number]
        thread.waiting_s += self._alone_s(number, batch.rows)
        if thread.waiting_s > WAITING_MAX_S:
            self.record.is_bounded = False
        thread.queue.append(batch)
        if thread.at_work is None:
            self._start(now, number)

    def _flushed(self, now: float, sender: int, _: object) -> None:
        mapped = self.mapped[sender]
        rows, samples = mapped.rows, mapped.samples
        mapped.rows, mapped.samples = 0.0, []
        by_receiver: dict[int, list[list[float]]] = {}
        for sample in samples:
            target = min(int(np.searchsorted(self.edges, self.rng.random() * self.edges[-1])), self.receivers - 1)
            by_receiver.setdefault(target, []).append([*sample, now, now, now])  # phases 6, 7 and 8 end
        node, wire = sender // self.setting.maps, self.cluster.bandwidth_bytes_per_s
        for receiver in range(self.receivers) if self.setting.poll_s > 0 else self.rng.permutation(self.receivers).tolist():
            batch = _Batch(rows * float(self.shares[receiver]), by_receiver.get(receiver, []), sender, mapped.mark_s)
            if self.setting.poll_s > 0:
                self.updates[receiver].offered.append(batch)
            else:
                # The batch leaves after the sender's earlier batches.
                _, gone_s = self.egress[node].sent(now, batch.rows * self.job.sent_bytes / wire)
                for sample in batch.samples:
                    sample.append(now)  # phase 9 ends
                self.at(gone_s, 5, receiver, batch)
        self.at(now + self.setting.exchange_s, 2, sender)

    def _deliver(self, now: float, receiver: int, batch: object) -> None:
        assert isinstance(batch, _Batch)
        node = receiver // self.setting.updates
        _, end = self.ingress[node].sent(now, batch.rows * self.job.sent_bytes / self.cluster.bandwidth_bytes_per_s)
        end += self.cluster.propagation_s
        for sample in batch.samples:
            sample.append(end)  # phase 10 ends
        self.at(end, 1, self.senders + receiver, batch)

    def _polled(self, now: float, receiver: int, _: object) -> None:
        batches, self.updates[receiver].offered = self.updates[receiver].offered, []
        for batch in batches:
            for sample in batch.samples:
                sample.append(now)  # phase 9 ends
            self._deliver(now, receiver, batch)
        self.at(now + self.setting.poll_s, 3, receiver)

    # ---- threads

    def _alone_s(self, thread: int, rows: float) -> float:
        step = self.job.map if thread < self.senders else self.job.update
        return (step.per_batch_ns + step.per_row_ns * rows) / NS_PER_S / self.cluster.speed

    def _start(self, now: float, thread: int) -> None:
        batch = self.threads[thread].queue.popleft()
        work_s = self._alone_s(thread, batch.rows)
        self.threads[thread].waiting_s -= work_s
        scatter = (self.job.map if thread < self.senders else self.job.update).scatter
        if scatter:
            work_s *= float(self.rng.gamma(1 / scatter**2, scatter**2))
        batch.started_s = now
        self._work(now, thread, work_s, batch)

    def _work(self, now: float, thread: int, work_s: float, batch: _Batch) -> None:
        self.threads[thread].at_work = batch
        number = self.threads[thread].node
        node = self.nodes[number]
        node.advance(now)
        heapq.heappush(node.heap, (node.clock + work_s, thread))
        self._rearm(number)

    def _rearm(self, number: int) -> None:
        node = self.nodes[number]
        node.version += 1
        if node.heap:
            self.at(node.next_end(), 4, number, node.version)

    def _ended(self, now: float, number: int, version: object) -> None:
        node = self.nodes[number]
        if version != node.version:
            return
        node.advance(now)
        _, thread = heapq.heappop(node.heap)
        batch, self.threads[thread].at_work = self.threads[thread].at_work, None
        assert batch is not None
        self._rearm(number)
        if thread < self.senders:
            mapped = self.mapped[thread]
            mapped.rows += batch.rows * self.job.rows_out
            mapped.mark_s = batch.mark_s
            mapped.samples += [[*sample, batch.started_s, now] for sample in batch.samples]  # phases 4 and 5 end
        else:
            self._updated(now, thread, batch)
        if self.threads[thread].at_work is None and self.threads[thread].queue:
            self._start(now, thread)

    def _updated(self, now: float, thread: int, batch: _Batch) -> None:
        receiver = thread - self.senders
        if batch.sender < 0:  # the end of a window
            begun_s, ends_s = batch.started_s, batch.mark_s
            if ends_s - self.setting.window_s >= self.record.from_s - 1e-9:
                keys = max(1, round(self.job.finalising.keys / self.receivers)) if self.job.finalising else 1
                for one in np.linspace(1, keys, min(keys, _KEYS_SEEN)):
                    self.record.latencies_s.append(begun_s + (now - begun_s) * float(one) / keys - ends_s)
            self._close(now, thread, receiver)
            return
        for sample in batch.samples:
            if sample[0] < self.record.from_s:
                continue
            end_s = now if self.job.update.whole else batch.started_s + (now - batch.started_s) * self.rng.random()
            ends = [*sample, batch.started_s, end_s]
            self.record.phases_s.append([b - a for a, b in itertools.pairwise(ends)])
            if not self.setting.window_s:
                self.record.latencies_s.append(end_s - sample[0])
        if self.setting.window_s:
            self.updates[receiver].marks_s[batch.sender] = batch.mark_s
            self._close(now, thread, receiver)

    def _close(self, now: float, thread: int, receiver: int) -> None:
        """Finalises the next window of an instance if all its rows have been processed."""
        update = self.updates[receiver]
        ends_s = (update.closed + 1) * self.setting.window_s
        if min(update.marks_s) < ends_s or self.job.finalising is None:
            return
        update.closed += 1
        keys = max(1.0, self.job.finalising.keys / self.receivers)
        batch = _Batch(0.0, [], -1, ends_s)
        batch.started_s = now
        self._work(now, thread, keys * self.job.finalising.per_key_ns / NS_PER_S / self.cluster.speed, batch)
