"""What an agent needs of the world around it, and nothing more.

The agent is one object on one thread that is called when something happens. The asyncio world (`sbon_agent.asyncio_host`) and the virtual
world (`sbon_testbed.virtual.world`) implement this protocol; the agent cannot tell them apart, so that a bug found in simulation is a bug
in the agent. All callbacks come on the agent's own thread, one at a time, and none before the call that asked for it has returned.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np

from sbon.link_frames import Buffer
from sbon.types import Address

T = TypeVar("T")


class Timer(Protocol):
    """A callback to come."""

    def cancel(self) -> None:
        """Let it not come; nothing happens if it has come."""


class StreamHandler(Protocol):
    """Who is told what happens on one stream of bytes."""

    def connected(self, stream: "Stream") -> None:
        """The stream is open; called once, first."""

    def received(self, data: bytes) -> None:
        """Bytes, in order, in chunks of any size."""

    def writable(self) -> None:
        """The send buffer has emptied after `write` had found it full."""

    def closed(self, reason: str) -> None:
        """The stream is gone (or never opened); called once, last."""


@runtime_checkable
class ReadingHandler(Protocol):
    """A `StreamHandler` that has room of its own for what comes: bytes may be read to where they are wanted, without a copy."""

    def room(self) -> memoryview:
        """Where the next bytes may be read to; `filled` follows, before anything else."""

    def filled(self, count: int) -> None:
        """So many bytes have been read into `room`; in place of `received`."""


class Stream(Protocol):
    """An ordered, reliable stream of bytes to another agent: TCP, or the virtual world's."""

    @property
    def peer(self) -> Address:
        """The other end's address."""

    @property
    def congested(self) -> bool:
        """The send buffer is full: hold back until `StreamHandler.writable`."""

    @property
    def unsent_bytes(self) -> int:
        """What the send buffer holds."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send; never blocks. Bytes written to a stream that has closed are lost without an error: `closed` has told.

        What is not `bytes` must not change any more: it may be kept until it has left.
        """

    def close(self) -> None:
        """Close both directions after what was written has left; `StreamHandler.closed` follows."""


class Disk(Protocol):
    """Files of one folder. Everything blocks, so call it on executor threads, and raises OSError."""

    def append(self, name: str, data: Sequence[Buffer]) -> None:
        """Add to the end of a file, which is made if it is not there."""

    def read(self, name: str, offset: int, size_bytes: int) -> bytes:
        """Part of a file; less where it ends."""

    def remove(self, name: str) -> None:
        """Delete a file, if it is there."""

    def names(self) -> list[str]:
        """All files; none where the folder is missing."""


class Meter(Protocol):
    """Counts the processor time of one piece of work, on the thread that does it."""

    def lap(self, rows: int) -> int:
        """Nanoseconds since the last call or the beginning; the virtual world takes them from the rows that were worked on meanwhile."""

    def end(self) -> None:
        """The work is done; call it once."""


class Host(Protocol):
    """One machine, as its agent sees it."""

    @property
    def rng(self) -> np.random.Generator:
        """Randomness of this agent; `rng.spawn` gives each component its own."""

    def now(self) -> float:
        """Monotonic seconds."""

    def wall(self) -> float:
        """Seconds since 1970, UTC."""

    def random_bytes(self, count: int) -> bytes:
        """For nonces and keys: from the system's source, or from the seed in the virtual world."""

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        """Call once at the monotonic instant `when` (soon, if it has passed)."""

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call once, after the callbacks already due."""

    def listen(
        self,
        address: Address,
        datagram: Callable[[bytes, Address, float], None],
        accept: Callable[[Address], StreamHandler],
    ) -> Address:
        """Open the UDP and TCP port of the agent and return its address (the port chosen, where 0 was asked).

        `datagram(data, sender, received_at)` gets every datagram, `accept(peer)` makes the handler of every incoming stream.

        Raises
        ------
        ConfigError
            The address is taken or not ours.
        """

    def send_datagram(self, data: bytes, address: Address) -> None:
        """Send and forget."""

    def connect(self, address: Address, handler: StreamHandler) -> None:
        """Open a stream; `handler.connected` or `handler.closed` follows."""

    def execute(
        self,
        work: Callable[[], T],
        done: Callable[[T | BaseException], None],
        *,
        rows: int | Callable[[], Sequence[int]],
        brief: bool = False,
        spare: bool = False,
    ) -> None:
        """Run `work` on an executor thread, then `done`, later, with its result or the exception that it raised.

        `rows` is the size of the batch, from which the virtual world takes the time that the work would need; or, asked when the work is
        done, the sizes of several. What is `brief` is known to wait for nothing and to be over in a fraction of a millisecond: it may be
        done at once, on the agent's own thread, which is less work than waking another one. What is `spare` begins only on a thread for
        which there is nothing else.
        """

    def execute_apart(self, work: Callable[[], T], done: Callable[[T | BaseException], None], limit_s: float) -> None:
        """Run `work`, which may hang, on a thread of its own, then `done`, later, with its result or the exception that it raised.

        After `limit_s` `done` gets a TimeoutError, at once where too many such threads hang already; what comes of the work is then
        dropped.
        """

    def stopwatch(self) -> float:
        """Seconds, for how long work takes; callable from any thread. Stands still in the virtual world, where only `rows` cost time."""

    def disk(self, folder: str) -> Disk:
        """The files of a folder of this machine."""

    def meter(self, *, brief: bool = False) -> Meter:
        """Begin to count the processor time of work on this thread; callable from any thread. Of brief work, only what the thread does."""

    @property
    def workers(self) -> int:
        """Executor threads (in the virtual world: virtual cores)."""

    def load_fraction(self) -> float:
        """CPU load of the machine right now: 0 idle, 1 all cores used; beyond 1, to 2 at most, where work waits for a core."""

    def use_fraction(self) -> float:
        """Share of the processors' time that was used lately, by whatever runs on the machine: 0 to 1."""

    def memory_bytes(self) -> int:
        """Memory that the agent may use at most: the machine's, or less where its control group has a limit."""

    def memory_fraction(self) -> float:
        """Memory of the machine in use, 0 to 1."""
