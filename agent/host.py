"""The interface between an agent and the machine that it runs on.

The agent is one object on one thread, called when something happens. The asyncio host (`sbon_agent.asyncio_host`) and the simulation
(`sbon_testbed.simulator.world`) both implement this protocol. The agent cannot tell them apart, so a bug found in simulation is a bug in
the agent. All callbacks run on the agent's own thread, one at a time, and only after the call that requested them has returned.
"""

from collections.abc import Callable
from typing import Protocol, TypeVar

from sbon.ports import Disk, Network, SeededExecutor, StreamHandler
from sbon.types import Address

T = TypeVar("T")


class Host(SeededExecutor, Network, Protocol):
    """One machine, as its agent sees it."""

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

    def execute_apart(self, work: Callable[[], T], done: Callable[[T | BaseException], None], limit_s: float) -> None:
        """Runs `work`, which may hang, on a thread of its own, then calls `done` with its result or exception.

        After `limit_s`, `done` gets a TimeoutError, and a later result is dropped. If too many such threads hang already, `done` gets a
        TimeoutError soon and `work` does not run.
        """

    def disk(self, folder: str) -> Disk:
        """Returns access to the files of a folder of this machine."""

    def memory_bytes(self) -> int:
        """Returns the bytes of memory that the agent may use: the machine's, or the limit of its control group if that is less."""

    def memory_fraction(self) -> float:
        """Returns the share of the machine's memory in use, 0 to 1."""
