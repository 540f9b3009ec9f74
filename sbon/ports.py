"""Interfaces to the machine, as far as the library needs it: time, timers, threads, files, streams, and the use of the cores.

The agent's `Host` has them all. No module of the library holds more of the machine than the interface that it names.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np

from sbon.types import Address

T = TypeVar("T")


class Timer(Protocol):
    """A pending call."""

    def cancel(self) -> None:
        """Cancels the call; does nothing if it has been made."""


class Clock(Protocol):
    """Time, and calls at a given time."""

    def now(self) -> float:
        """Returns monotonic seconds."""

    def wall(self) -> float:
        """Returns seconds since 1970, UTC."""

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        """Calls once at the monotonic time `when` (soon, if it has passed)."""

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Calls once, after the callbacks already due."""


class Meter(Protocol):
    """Measures the processor time of one piece of work, on the thread that does it."""

    def lap(self, rows: int) -> int:
        """Returns the nanoseconds since the last call or the beginning; the simulation computes them from the rows processed since."""

    def end(self) -> None:
        """Ends the measurement; call it once."""


class ProcessorUse(NamedTuple):
    """Recent use of the cores of a machine."""

    load: float
    """`use`, plus the share of time in which work waited for a core: 0 idle, 1 all cores used, 2 at most."""
    use: float
    """Share of all cores' time that all programs together have used, 0 to 1."""
    free_cores: float
    """Cores that other programs have left to this agent, whether it used them or not."""


class StreamHandler(Protocol):
    """Callbacks of one stream of bytes."""

    def connected(self, stream: "Stream") -> None:
        """The stream is open; called once, first."""

    def received(self, data: bytes) -> None:
        """Bytes have arrived, in order, in chunks of any size."""

    def writable(self) -> None:
        """The send buffer has room again, after `write` had filled it."""

    def closed(self, reason: str) -> None:
        """The stream is gone (or never opened); called once, last."""


@runtime_checkable
class ReadingHandler(Protocol):
    """A `StreamHandler` that provides its own buffer for incoming bytes, so that they are read to where they are needed, without a copy."""

    def room(self) -> memoryview:
        """Returns the buffer for the next bytes; `filled` follows before any other call."""

    def filled(self, count: int) -> None:
        """Bytes have been read into `room`; called in place of `received`."""


class Stream(Protocol):
    """An ordered, reliable stream of bytes to another agent: TCP, or the simulation's."""

    @property
    def peer(self) -> Address:
        """Returns the other end's address."""

    @property
    def congested(self) -> bool:
        """True if the send buffer is full: hold back until `StreamHandler.writable`."""

    @property
    def unsent_bytes(self) -> int:
        """Bytes in the send buffer."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Sends data; never blocks.

        Bytes written to a stream that has closed are dropped without an error, since `closed` has been called.

        Do not modify a mutable buffer after this call; it may be held until sent.
        """

    def close(self) -> None:
        """Closes both directions after what was written has left; `StreamHandler.closed` follows."""


class Disk(Protocol):
    """Files of one folder. All methods block, so call them on executor threads; they raise OSError."""

    def append(self, name: str, data: Sequence[bytes | bytearray | memoryview]) -> None:
        """Appends to a file, which is made if it does not exist."""

    def read(self, name: str, offset: int, size_bytes: int) -> bytes:
        """Returns part of a file; less where the file ends."""

    def read_each(self, name: str, offsets: Sequence[int], size_bytes: int) -> bytes:
        """Returns parts of a file that have one size, one behind the other; less where the file ends."""

    def remove(self, name: str) -> None:
        """Deletes a file, if it exists."""

    def names(self) -> list[str]:
        """Returns the names of all files; none if the folder is missing."""


class SeededClock(Clock, Protocol):
    """A clock with a random generator."""

    @property
    def rng(self) -> np.random.Generator:
        """Random generator of this agent; `rng.spawn` gives each component its own."""


class Executor(Clock, Protocol):
    """Threads for what takes long, and what their work costs."""

    def execute(
        self,
        work: Callable[[], T],
        done: Callable[[T | BaseException], None],
        *,
        rows: int | Callable[[], Sequence[int]],
        brief: bool = False,
        spare: bool = False,
    ) -> None:
        """Runs `work` on an executor thread, then, later, `done` with its result or exception.

        `rows` is the size of the batch, from which the simulation computes how long the work takes; or it returns, called after the work,
        the sizes of several. `brief` work is known not to block and to take a fraction of a millisecond: it may run at once on the agent's
        own thread, which costs less than waking another one. `spare` work starts only on a thread that has nothing else to do.
        """

    def stopwatch(self) -> float:
        """Returns seconds, to time work with; callable from any thread. It stands still in the simulation, where only `rows` take time."""

    def meter(self, *, brief: bool = False) -> Meter:
        """Starts to measure the processor time of work on this thread; callable from any thread.

        For brief work only the thread itself counts.
        """

    @property
    def workers(self) -> int:
        """Number of executor threads (in the simulation: virtual cores)."""

    def share_of_core(self) -> float | None:
        """Works for a moment, on an executor thread, as if it would never pause.

        Returns the share of a core that it got beside all else that runs; None where the system does not tell.
        """

    def processors(self) -> ProcessorUse:
        """Returns how the cores of the machine have recently been used."""


class SeededExecutor(SeededClock, Executor, Protocol):
    """A machine without its network."""


class Network(SeededClock, Protocol):
    """Datagrams, streams, and random bytes to seal them with."""

    def random_bytes(self, count: int) -> bytes:
        """Returns random bytes for nonces and keys: from the system, or from the seed in the simulation."""

    def send_datagram(self, data: bytes, address: Address) -> None:
        """Sends a datagram, which may be lost."""

    def connect(self, address: Address, handler: StreamHandler) -> None:
        """Opens a stream; `handler.connected` or `handler.closed` follows."""
