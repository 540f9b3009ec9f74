"""The interface between an agent and the machine that it runs on.

The agent is one object on one thread, called when something happens. The asyncio host (`sbon_agent.asyncio_host`) and the simulation
(`sbon_testbed.simulator.world`) both implement this protocol. The agent cannot tell them apart, so a bug found in simulation is a bug in
the agent. All callbacks come on the agent's own thread, one at a time, and none before the call that asked for it has returned.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import numpy as np

from sbon.ports import Clock, Disk, Meter, ProcessorUse, StreamHandler
from sbon.types import Address

T = TypeVar("T")


class Host(Clock, Protocol):
    """One machine, as its agent sees it."""

    @property
    def rng(self) -> np.random.Generator:
        """Random generator of this agent; `rng.spawn` gives each component its own."""

    def wall(self) -> float:
        """Returns seconds since 1970, UTC."""

    def random_bytes(self, count: int) -> bytes:
        """Returns random bytes for nonces and keys: from the system, or from the seed in the simulation."""

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
