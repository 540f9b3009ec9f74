"""Streams of the virtual world, which behave and fail like TCP connections.

A stream is two pipes, one for each direction. A pipe keeps order: bytes arrive one delay after they were written, never before bytes
written earlier. Deliveries are cut at random places. When the network blocks a pair, the pipe stalls. If the block ends in time, the bytes
arrive. If not, the *writer's* end breaks, and the other end stays half open until it writes and gets a reset. The machine of a killed
process resets the process's ends; a machine that is off sends nothing.
"""

from collections import deque
from collections.abc import Callable

from sbon.connectors.outside import OuterHandler
from sbon.ports import StreamHandler
from sbon.types import Address
from sbon_testbed.simulator.network import Network
from sbon_testbed.simulator.time import NS, ns

_SYN_RETRIES_S = (0.0, 1.0, 3.0, 7.0)
"""Seconds from the first connection request at which it is sent, as in Linux."""
_FIN = 1
_RESET = 2


class Pipe:
    """One direction of a stream."""

    __slots__ = ("_armed", "_free_ns", "_last_due_ns", "_queue", "_stall", "bytes_under_way", "network", "source", "target")

    def __init__(self, network: Network, source: "SimulatedStream", target: "SimulatedStream") -> None:
        self.network, self.source, self.target = network, source, target
        self.bytes_under_way = 0
        self._queue: deque[tuple[int, bytes | int]] = deque()
        self._armed = False
        self._last_due_ns = 0
        self._free_ns = 0
        self._stall = 0

    def push(self, data: bytes | int) -> None:
        """Sends bytes, or the mark `_FIN` or `_RESET` after them."""
        network, time = self.network, self.network.time
        start_ns = time.now_ns
        if isinstance(data, bytes):
            self.bytes_under_way += len(data)
            network.counters["stream_bytes"] += len(data)
            if network.config.bandwidth_bytes_per_s > 0:
                start_ns = max(start_ns, self._free_ns) + int(len(data) / network.config.bandwidth_bytes_per_s * NS)
                self._free_ns = start_ns
        due_ns = start_ns + network.delay_ns(self.source.node, self.target.node)
        self._last_due_ns = due_ns = max(due_ns, self._last_due_ns)
        self._queue.append((due_ns, data))
        if not self._armed:
            self._arm(due_ns)

    def drop(self) -> None:
        """Drops the bytes in flight."""
        self._queue.clear()
        self.bytes_under_way = 0
        self._stall += 1

    def resume(self) -> None:
        """Sends stalled bytes again if the path is free; called when the network has changed."""
        if self._queue and not self._armed and self.network.reaches(self.source.node, self.target.node):
            self._stall += 1
            # The sender's retransmission timer, which has backed off by now, decides when.
            self._arm(
                self.network.time.now_ns + self.network.delay_ns(self.source.node, self.target.node) + ns(self.network.draws.uniform())
            )

    def _read_again(self) -> None:
        """Delivers waiting bytes; called when the target reads again."""
        if self._queue and not self._armed:
            self._arm(self.network.time.now_ns + self.network.delay_ns(self.target.node, self.source.node))

    def _arm(self, when_ns: int) -> None:
        self._armed = True
        self.network.time.at(when_ns, self._deliver)

    def _deliver(self) -> None:
        self._armed = False
        if not self._queue:
            return
        if not self.network.reaches(self.source.node, self.target.node):
            self._stall += 1
            stall = self._stall
            self.network.time.after(ns(self.network.config.stream_timeout_s), lambda: self._stalled(stall))
            return
        now_ns = self.network.time.now_ns
        if (goes_on_ns := self.network.stopped_until_ns(self.target.node)) > now_ns:
            self._arm(goes_on_ns)
            return
        if self.target.reads_again is not None:
            self.target.reads_again = self._read_again
            return
        parts: list[bytes] = []
        mark = 0
        while self._queue and self._queue[0][0] <= now_ns and not mark:
            item = self._queue.popleft()[1]
            if isinstance(item, bytes):
                parts.append(item)
            else:
                mark = item
        if self._queue:
            self._arm(self._queue[0][0])
        data = b"".join(parts)
        self.bytes_under_way -= len(data)
        if data:
            self._hand_over(data)
        if mark:
            self.target.end("closed by the peer" if mark == _FIN else "reset by the peer")
        self.source.drained()

    def _hand_over(self, data: bytes) -> None:
        draws, split = self.network.draws, self.network.config.split
        while len(data) > 1 and draws.uniform() < split:
            # Half of the cuts are near the beginning, because headers are the hard part of framing.
            at = 1 + int(draws.uniform() * (min(8, len(data)) - 1 if draws.uniform() < 0.5 else len(data) - 1))
            self.target.take(data[:at])
            data = data[at:]
        self.target.take(data)

    def _stalled(self, stall: int) -> None:
        if stall == self._stall and self._queue:
            self.drop()
            self.source.end("timed out")


class SimulatedStream:
    """One end of a stream. Satisfies `sbon.connectors.outside.OuterStream`."""

    def __init__(
        self, network: Network, node: int, peer: Address, handler: StreamHandler | OuterHandler | None, alive: Callable[[], bool]
    ) -> None:
        self.network, self.node, self.peer, self.handler = network, node, peer, handler
        self.open = False
        self.out: Pipe | None = None
        self.opening_s = 0.0
        self.reads_again: Callable[[], None] | None = None
        """Called when this end reads again; None while it has not paused."""
        self.bytes_written = 0
        """Bytes that the process has given to this end."""
        self.bytes_taken = 0
        """Bytes that the process has received from this end."""
        self.keepalive_s = 0.0
        """Pause between probes of the peer, as of TCP keepalive, which find a peer that is gone even if this end never writes; 0: none."""
        self._alive = alive
        self._full = False

    @property
    def congested(self) -> bool:
        """Tells whether more bytes are in flight than the buffer holds."""
        return self._full

    @property
    def unsent_bytes(self) -> int:
        """Returns the bytes in flight."""
        return self.out.bytes_under_way if self.out is not None else 0

    @property
    def held_up_s(self) -> float:
        """Returns 0: processes of this world read at once."""
        return 0.0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Sends bytes; on a closed stream they are lost without an error."""
        if self.open and self.out is not None and data:
            self.bytes_written += len(data)
            self.out.push(bytes(data))
            if self.out.bytes_under_way > self.network.config.stream_buffer_bytes:
                self._full = True

    def close(self) -> None:
        """Closes the stream after the bytes written so far, and soon tells the handler."""
        if self.open and self.out is not None:
            self.open = False
            self.resume()
            self.out.push(_FIN)
            self.network.time.after(0, lambda: self._tell_closed("closed"))

    @property
    def is_open(self) -> bool:
        """Tells whether bytes can be written."""
        return self.open

    def pause(self) -> None:
        """Stops reading; bytes that arrive wait."""
        if self.open and self.reads_again is None:
            self.reads_again = _nothing

    def resume(self) -> None:
        """Reads again."""
        again, self.reads_again = self.reads_again, None
        if again is not None:
            again()

    def abort(self) -> None:
        """Closes the stream at once, drops the bytes in flight, and soon tells the handler."""
        if self.open and self.out is not None:
            self.open = False
            self.resume()
            self.out.drop()
            self.out.push(_RESET)
            self.network.time.after(0, lambda: self._tell_closed("aborted"))

    def established(self) -> None:
        """Opens this end and tells the handler."""
        if self._alive() and self.handler is not None:
            self.open = True
            self._probe_later()
            self.handler.connected(self)

    def _probe_later(self) -> None:
        if self.keepalive_s:
            self.network.time.after(ns(self.keepalive_s), self._probe)

    def _probe(self) -> None:
        if not self.open or self.out is None or not self._alive():
            return
        peer = self.out.target
        both = self.network.reaches(self.node, peer.node) and self.network.reaches(peer.node, self.node)
        if both and peer.open:
            self._probe_later()
        else:
            self.end("timed out" if not both else "reset by the peer")

    def take(self, data: bytes) -> None:
        """Delivers received bytes."""
        if self.open and self.handler is not None and self._alive():
            self.bytes_taken += len(data)
            self.handler.received(data)
        elif self.out is not None and not self.open:
            # Nobody listens any more, so the machine answers with a reset.
            self.out.push(_RESET)

    def drained(self) -> None:
        """Tells the handler if the buffer has room again, after bytes have arrived."""
        if self._full and self.out is not None and self.out.bytes_under_way * 4 <= self.network.config.stream_buffer_bytes:
            self._full = False
            if self.open and self.handler is not None and self._alive():
                self.handler.writable()

    def end(self, reason: str) -> None:
        """Ends the stream at this end, regardless of bytes in flight."""
        if self.open:
            self.open = False
            self.resume()
            self._tell_closed(reason)

    def refused(self, reason: str) -> None:
        """Reports that the stream could not be opened."""
        if not self.open:
            self._tell_closed(reason)

    def kill(self, silent: bool) -> None:
        """Handles the death of the process: the machine resets the stream, unless it went off, too (`silent`)."""
        was_open, self.open, self.handler = self.open, False, None
        self.resume()
        if self.out is not None:
            if silent:
                self.out.drop()
            elif was_open:
                self.out.push(_RESET)

    def _tell_closed(self, reason: str) -> None:
        handler, self.handler = self.handler, None
        if handler is not None and self._alive():
            handler.closed(reason)


def _nothing() -> None:
    """Does nothing."""


class Streams:
    """All streams of a world: opens them, and resumes stalled ones when the network changes."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self._pipes: list[Pipe] = []
        self._pipes_max = 64
        network.on_change(self._network_changed)

    def dial(
        self,
        client: SimulatedStream,
        target: int,
        answer: Callable[[], SimulatedStream | None],
    ) -> None:
        """Opens a stream from `client` to node `target`; `answer()` makes the listener's end, or returns None if nobody listens."""
        self._request(client, target, answer, 0, self.network.time.now_ns)

    def _request(
        self, client: SimulatedStream, target: int, answer: Callable[[], SimulatedStream | None], attempt: int, began_ns: int
    ) -> None:
        network = self.network
        if client.handler is None:
            return
        if network.reaches(client.node, target):
            network.time.after(network.delay_ns(client.node, target), lambda: self._requested(client, target, answer))
            return
        give_up_s = network.config.connect_timeout_s
        again_s = _SYN_RETRIES_S[attempt + 1] if attempt + 1 < len(_SYN_RETRIES_S) else give_up_s
        if again_s >= give_up_s:
            network.time.at(began_ns + ns(give_up_s), lambda: client.refused("timed out"))
        else:
            network.time.at(began_ns + ns(again_s), lambda: self._request(client, target, answer, attempt + 1, began_ns))

    def _requested(self, client: SimulatedStream, target: int, answer: Callable[[], SimulatedStream | None]) -> None:
        network = self.network
        server = answer()
        back_ns = network.delay_ns(target, client.node)
        if server is None:
            network.time.after(back_ns, lambda: client.refused("connection refused"))
            return
        client.out, server.out = Pipe(network, client, server), Pipe(network, server, client)
        network.counters["streams_opened"] += 1
        self._remember(client.out, server.out)
        # Bytes that the listener writes at once must not overtake the answer to the connection request.
        server.out._last_due_ns = network.time.now_ns + back_ns
        network.time.after(back_ns, lambda: self._established(client, server))
        server.established()

    def _established(self, client: SimulatedStream, server: SimulatedStream) -> None:
        if client.handler is None:
            if client.out is not None:
                client.out.push(_RESET)
            return
        client.established()

    def _remember(self, *pipes: Pipe) -> None:
        if len(self._pipes) >= self._pipes_max:
            self._pipes = [pipe for pipe in self._pipes if pipe.source.handler is not None or pipe.target.handler is not None]
            self._pipes_max = max(64, 2 * len(self._pipes))
        self._pipes += pipes

    def _network_changed(self) -> None:
        for pipe in self._pipes:
            pipe.resume()
