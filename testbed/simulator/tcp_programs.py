"""Programs outside the overlay in the virtual world, which feed `tcp` sources and take the rows of `tcp` sinks."""

from collections.abc import Callable, Sequence

from sbon.connectors.outside import OuterStream
from sbon.errors import ConnectorError
from sbon_testbed.simulator.outside import VirtualOutside
from sbon_testbed.simulator.stream import SimulatedStream
from sbon_testbed.simulator.world import SimulatedHost

RETRY_S = 0.3
"""Pause before a program connects again."""


class Program:
    """A program that has one stream at a time, except for half-open ones. It listens, or connects whenever it has no stream.

    Parameters
    ----------
    process : the program's process
    host, port : address to connect to; a program that listens uses the port on its own machine
    listens : whether the program listens, so that the agent connects
    """

    def __init__(self, process: SimulatedHost, host: str, port: int, *, listens: bool) -> None:
        self.process = process
        self.ends: list[End] = []
        """The program's ends of all its streams, in the order in which they were opened."""
        self._listens = listens
        self._outside = VirtualOutside(process, "program", "0.0.0.0" if listens else host, port)
        if listens:
            self._outside.listen(lambda: End(self), self._failed)
        else:
            self.dial()

    def dial(self) -> None:
        """Opens a stream."""
        self._outside.connect(End(self), self._failed)

    def _failed(self, error: ConnectorError) -> None:
        raise AssertionError(error)

    @property
    def stream(self) -> SimulatedStream | None:
        """Returns the newest stream; None if it is not open."""
        return self.ends[-1].stream if self.ends and self.ends[-1].stream.is_open else None

    def ended(self) -> None:
        """Connects again after a pause."""
        if not self._listens and self.stream is None:
            self.process.call_at(self.process.now() + RETRY_S, self.dial)


class End:
    """The program's end of one stream, and the bytes that it has taken."""

    stream: SimulatedStream

    def __init__(self, program: Program) -> None:
        self.taken = bytearray()
        self._program = program

    def connected(self, stream: OuterStream) -> None:
        """Enters the stream."""
        assert isinstance(stream, SimulatedStream)
        self.stream = stream
        self._program.ends.append(self)

    def received(self, data: bytes) -> None:
        """Takes bytes."""
        self.taken += data

    def writable(self) -> None:
        """Does nothing: programs ask whether there is room."""

    def closed(self, reason: str) -> None:
        """Lets the program connect again."""
        self._program.ended()

    @property
    def other(self) -> SimulatedStream:
        """Returns the agent's end."""
        assert self.stream.out is not None
        return self.stream.out.target

    @property
    def lost_bytes(self) -> int:
        """Returns the bytes that the agent has written and that have not arrived."""
        return self.other.bytes_written - self.stream.bytes_taken


class Feeder(Program):
    """Writes each line at its time, and leaves out those for which there is no stream then.

    Parameters
    ----------
    lines : the lines, with their ends
    pace_s : pause between two lines
    agent_runs : tells whether the agent of the source runs
    """

    def __init__(
        self,
        process: SimulatedHost,
        host: str,
        port: int,
        lines: Sequence[bytes],
        pace_s: float,
        agent_runs: Callable[[], bool],
        *,
        listens: bool,
    ) -> None:
        self._lines, self._pace_s, self._next, self._agent_runs = lines, pace_s, 0, agent_runs
        self.lines_while_away = 0
        """Lines whose time came while the agent did not run."""
        self._written: list[tuple[int, End, int]] = []
        """Number of each line that was written, the end of its stream, and the bytes of the stream up to the line's end."""
        super().__init__(process, host, port, listens=listens)

    def begin(self) -> None:
        """Writes the next line, and plans the following one; waits for room if the agent does not read."""
        if self._next == len(self._lines):
            return
        stream = self.stream
        if stream is None or not stream.congested:
            number, self._next = self._next, self._next + 1
            self.lines_while_away += not self._agent_runs()
            if stream is not None:
                stream.write(self._lines[number])
                self._written.append((number, self.ends[-1], stream.bytes_written))
        self.process.call_at(self.process.now() + self._pace_s, self.begin)

    @property
    def is_done(self) -> bool:
        """Tells whether the time of every line has passed, and nothing is under way."""
        return self._next == len(self._lines) and not any(end.stream.is_open and end.stream.unsent_bytes for end in self.ends)

    @property
    def delivered(self) -> list[int]:
        """Returns the numbers of the lines that the agents have received whole, perhaps without the line's end."""
        return [number for number, end, last in self._written if last <= end.other.bytes_taken + 1]


class Collector(Program):
    """Takes the lines of a sink."""

    @property
    def text(self) -> bytes:
        """Returns the whole lines of all streams."""
        return b"".join(bytes(end.taken[: end.taken.rfind(b"\n") + 1]) for end in self.ends)

    @property
    def is_quiet(self) -> bool:
        """Tells whether nothing is on its way to the program."""
        return not any(end.other.is_open and end.other.unsent_bytes for end in self.ends)

    @property
    def lost_bytes(self) -> int:
        """Returns the bytes that sinks have written and that have not arrived."""
        return sum(end.lost_bytes for end in self.ends)
