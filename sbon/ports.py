"""Interfaces to the machine that the library needs: time, timers, threads, files, streams, and the use of the cores.

The agent's `Host` implements them all. A module of the library uses only the interfaces that it names.
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
        """Calls `callback` once at the monotonic time `when` (soon, if it has passed)."""

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Calls `callback` once, after the callbacks already due."""


class Meter(Protocol):
    """Measures the processor time of one piece of work, on the thread that runs it."""

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
    """Cores that other programs have left to this agent, used or not."""


class StreamHandler(Protocol):
    """Callbacks of one stream of bytes."""

    def connected(self, stream: "Stream") -> None:
        """Reports that the stream is open; called once, first."""

    def received(self, data: bytes) -> None:
        """Takes bytes that have arrived, in order, in chunks of any size."""

    def writable(self) -> None:
        """Reports that the send buffer has room again, after `write` had filled it."""

    def closed(self, reason: str) -> None:
        """Reports that the stream is gone, or could not be opened; called once, last."""


@runtime_checkable
class ReadingHandler(Protocol):
    """A `StreamHandler` with its own buffer for incoming bytes, so that they need not be copied."""

    def room(self) -> memoryview:
        """Returns the buffer for the next bytes; `filled` follows before any other call."""

    def filled(self, count: int) -> None:
        """Reports that `count` bytes have been read into `room`; called instead of `received`."""


class Stream(Protocol):
    """An ordered, reliable stream of bytes to another agent: TCP, or the simulation's."""

    @property
    def peer(self) -> Address:
        """Returns the other end's address."""

    @property
    def congested(self) -> bool:
        """True if the send buffer is full: wait for `StreamHandler.writable`."""

    @property
    def unsent_bytes(self) -> int:
        """Returns the bytes in the send buffer."""

    @property
    def held_up_s(self) -> float:
        """Returns for how long, so far, the receiver has taken nothing although something was to be sent; 0 if the system does not tell."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Sends data; never blocks.

        Bytes written to a closed stream are dropped without an error, because `closed` has been called.

        Do not modify a mutable buffer after this call; it may be held until sent.
        """

    def close(self) -> None:
        """Closes both directions after all written bytes have been sent; `StreamHandler.closed` follows."""


class Disk(Protocol):
    """Files of one folder. All methods block, so call them on executor threads; they raise OSError."""

    def append(self, name: str, data: Sequence[bytes | bytearray | memoryview]) -> None:
        """Appends to a file; makes it if it does not exist."""

    def read(self, name: str, offset: int, size_bytes: int) -> bytes:
        """Returns part of a file; fewer bytes at the file's end."""

    def read_each(self, name: str, offsets: Sequence[int], size_bytes: int) -> bytes:
        """Returns several parts of a file of the same size, concatenated; fewer bytes at the file's end."""

    def remove(self, name: str) -> None:
        """Deletes a file, if it exists."""

    def names(self) -> list[str]:
        """Returns the names of all files; none if the folder is missing."""


class SeededClock(Clock, Protocol):
    """A clock with a random generator."""

    @property
    def rng(self) -> np.random.Generator:
        """Returns the random generator of this agent; `rng.spawn` gives each component a generator."""


class Executor(Clock, Protocol):
    """Threads for work that takes long, and measurements of its cost."""

    def execute(
        self,
        work: Callable[[], T],
        done: Callable[[T | BaseException], None],
        *,
        rows: int | Callable[[], Sequence[int]],
        brief: bool = False,
        spare: bool = False,
    ) -> None:
        """Runs `work` on an executor thread; later calls `done` with its result or exception.

        Parameters
        ----------
        rows : size of the batch, or a function that returns several sizes after the work; the simulation computes the duration from them
        brief : the work does not block and takes a fraction of a millisecond, so it may run at once on the agent's own thread, which costs
            less than waking another thread
        spare : start the work only on a thread that has nothing else to do
        """

    def stopwatch(self) -> float:
        """Returns seconds for measuring durations; callable from any thread. Constant in the simulation, where only `rows` take time."""

    def meter(self, *, brief: bool = False) -> Meter:
        """Starts to measure the processor time of work on this thread; callable from any thread.

        With `brief`, only this thread counts.
        """

    @property
    def workers(self) -> int:
        """Returns the number of executor threads (in the simulation: virtual cores)."""

    def share_of_core(self) -> float | None:
        """Computes without a pause for a moment, on an executor thread.

        Returns the share of a core that it got besides all other programs; None if the system does not report it.
        """

    def processors(self) -> ProcessorUse:
        """Returns the recent use of the machine's cores."""


class SeededExecutor(SeededClock, Executor, Protocol):
    """A machine without its network."""


class Network(SeededClock, Protocol):
    """Datagrams, streams, and random bytes for sealing them."""

    def random_bytes(self, count: int) -> bytes:
        """Returns random bytes for nonces and keys: from the system, or from the seed in the simulation."""

    def send_datagram(self, data: bytes, address: Address) -> None:
        """Sends a datagram, which may be lost."""

    def connect(self, address: Address, handler: StreamHandler) -> None:
        """Opens a stream; `handler.connected` or `handler.closed` follows."""
