"""The interface between an agent and the machine that it runs on.

The agent is one object on one thread, called when something happens. The asyncio host (`sbon_agent.asyncio_host`) and the simulation
(`sbon_testbed.simulator.world`) both implement this protocol. The agent cannot tell them apart, so a bug found in simulation is a bug in
the agent. All callbacks come on the agent's own thread, one at a time, and none before the call that asked for it has returned.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np

from sbon.execution.ports import Meter, ProcessorUse, Timer
from sbon.links.frames import Buffer
from sbon.types import Address

T = TypeVar("T")


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

    def append(self, name: str, data: Sequence[Buffer]) -> None:
        """Appends to a file, which is made if it does not exist."""

    def read(self, name: str, offset: int, size_bytes: int) -> bytes:
        """Returns part of a file; less where the file ends."""

    def remove(self, name: str) -> None:
        """Deletes a file, if it exists."""

    def names(self) -> list[str]:
        """Returns the names of all files; none if the folder is missing."""


class Host(Protocol):
    """One machine, as its agent sees it."""

    @property
    def rng(self) -> np.random.Generator:
        """Random generator of this agent; `rng.spawn` gives each component its own."""

    def now(self) -> float:
        """Returns monotonic seconds."""

    def wall(self) -> float:
        """Returns seconds since 1970, UTC."""

    def random_bytes(self, count: int) -> bytes:
        """Returns random bytes for nonces and keys: from the system, or from the seed in the simulation."""

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        """Calls once at the monotonic time `when` (soon, if it has passed)."""

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Calls once, after the callbacks already due."""

    def listen(
        self,
        address: Address,
        datagram: Callable[[bytes, Address, float], None],
        accept: Callable[[Address], StreamHandler],
    ) -> Address:
        """Opens the UDP and TCP port of the agent and returns its address (with the port chosen, if 0 was given).

        `datagram(data, sender, received_at)` gets every datagram, `accept(peer)` makes the handler of every incoming stream.

        Raises
        ------
        ConfigError
            The address is taken or not ours.
        """

    def send_datagram(self, data: bytes, address: Address) -> None:
        """Sends a datagram, which may be lost."""

    def connect(self, address: Address, handler: StreamHandler) -> None:
        """Opens a stream; `handler.connected` or `handler.closed` follows."""

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

    def execute_apart(self, work: Callable[[], T], done: Callable[[T | BaseException], None], limit_s: float) -> None:
        """Runs `work`, which may hang, on a thread of its own, then, later, `done` with its result or exception.

        After `limit_s` `done` gets a TimeoutError, and a later result is dropped; it gets one at once if too many such threads hang
        already.
        """

    def stopwatch(self) -> float:
        """Returns seconds, to time work with; callable from any thread. It stands still in the simulation, where only `rows` take time."""

    def disk(self, folder: str) -> Disk:
        """Returns access to the files of a folder of this machine."""

    def meter(self, *, brief: bool = False) -> Meter:
        """Starts to measure the processor time of work on this thread; callable from any thread.

        For brief work only the thread itself counts.
        """

    @property
    def workers(self) -> int:
        """Number of executor threads (in the simulation: virtual cores)."""

    def processors(self) -> ProcessorUse:
        """Returns how the cores of the machine have recently been used."""

    def memory_bytes(self) -> int:
        """Returns the bytes of memory that the agent may use: the machine's, or the limit of its control group if that is less."""

    def memory_fraction(self) -> float:
        """Returns the share of the machine's memory in use, 0 to 1."""
