"""Implements `sbon_agent.host.Host` with real sockets, clocks and threads: asyncio, with uvloop where it is installed.

Every callback runs in `_guarded`, which logs and counts exceptions: one bad message must not end an agent and all that it hosts.
"""

import asyncio
import errno
import math
import os
import socket
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import structlog

from sbon.errors import ConfigError
from sbon.ports import ProcessorUse, StreamHandler, Timer
from sbon.types import Address
from sbon_agent.cpu_load import CpuLoad, share_of_core, usable_cores
from sbon_agent.cpu_meter import CpuMeter, Lap, OwnLap
from sbon_agent.disk import FolderDisk
from sbon_agent.executor import ApartThreads, Executor
from sbon_agent.memory import usable_bytes
from sbon_agent.network.names import BAD_ADDRESS, HostNames
from sbon_agent.network.streams import BACKLOG, TcpStreams
from sbon_agent.network.udp import UdpSocket

T = TypeVar("T")
log = structlog.get_logger()

_PORT_ATTEMPTS = 32
_RESOLVING_MAX = 256


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Makes an event loop: uvloop's, or asyncio's own where uvloop is not installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


class _Timer:
    """A pending call.

    Re-arms itself if it fires early: asyncio may be early by its clock's resolution, and a state machine woken too early would do nothing.
    """

    __slots__ = ("_callback", "_handle", "_host", "_when")

    def __init__(self, host: "AsyncioHost", when: float, callback: Callable[[], None]) -> None:
        self._host, self._when = host, when
        self._callback: Callable[[], None] | None = callback
        self._handle = self._arm()

    def _arm(self) -> asyncio.Handle:
        left_s = self._when - time.monotonic()
        if left_s <= 0:
            return self._host.loop.call_soon(self._fire)
        # Rounded up to whole milliseconds, uvloop's resolution.
        return self._host.loop.call_later(math.ceil(left_s * 1000) / 1000, self._fire)

    def _fire(self) -> None:
        if self._callback is None:
            return
        if time.monotonic() < self._when:
            self._handle = self._arm()
            return
        callback, self._callback = self._callback, None
        self._host._guarded(callback)

    def cancel(self) -> None:
        """Cancels the call."""
        self._callback = None
        self._handle.cancel()


class AsyncioHost:
    """The machine as an agent sees it; implements `sbon_agent.host.Host`. All methods are called on the loop's thread.

    Parameters
    ----------
    loop        Default: the running loop. rng        Default: seeded from the system's entropy. workers        Number of executor threads.
    Default: one for each core.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop | None = None, *, rng: np.random.Generator | None = None, workers: int | None = None
    ) -> None:
        self.loop = loop or asyncio.get_running_loop()
        self.rng = rng or np.random.default_rng()
        self.counters = {"callbacks_failed": 0, "datagrams_dropped": 0, "datagrams_unsendable": 0}
        self._executor = Executor(self.loop, workers or len(usable_cores()), self._guarded)
        self._apart = ApartThreads(self.loop, self._guarded)
        self._udp: list[UdpSocket] = []
        self._streams = TcpStreams(self.loop, self._guarded, self._start)
        self._tasks: set[asyncio.Task[None]] = set()
        self._names = HostNames()
        self._load = CpuLoad()
        self._meter = CpuMeter()
        self._closed = False

    # The clocks are read a dozen times for each batch, so no Python function wraps them.
    now = staticmethod(time.monotonic)
    """Returns monotonic seconds; not the loop's time, which uvloop rounds to milliseconds."""
    wall = staticmethod(time.time)
    """Returns seconds since 1970, UTC."""
    stopwatch = staticmethod(time.perf_counter)
    """Returns seconds of a high-resolution clock."""

    def random_bytes(self, count: int) -> bytes:
        """Returns random bytes from the system."""
        return os.urandom(count)

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        """Calls `callback` once, at the monotonic time `when` or up to about 1 ms later."""
        return _Timer(self, when, callback)

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Calls `callback` once, after the callbacks already due."""
        self.loop.call_soon(self._guarded, callback)

    def listen(
        self, address: Address, datagram: Callable[[bytes, Address, float], None], accept: Callable[[Address], StreamHandler]
    ) -> Address:
        """Opens the UDP and TCP port; see `sbon_agent.host.Host.listen`."""
        tcp, udp = _bind(address)
        self._udp.append(UdpSocket(self.loop, udp, partial(self._datagram, datagram), self.counters))
        self._streams.listen(tcp, accept)
        bound = tcp.getsockname()
        return bound[0], bound[1]

    def send_datagram(self, data: bytes, address: Address) -> None:
        """Sends a datagram; the first one to a host name is sent once the name is resolved."""
        if not self._udp:
            return
        known = self._names.known(address[0])
        if known is not None:
            self._udp[0].send(data, (known, address[1]))
        else:
            self._start(self._resolve_and_send(data, address))

    def connect(self, address: Address, handler: StreamHandler) -> None:
        """Opens a stream; `handler.connected` or `handler.closed` follows."""
        self._streams.connect(address, handler)

    def execute(
        self,
        work: Callable[[], T],
        done: Callable[[T | BaseException], None],
        *,
        rows: int | Callable[[], Sequence[int]],
        brief: bool = False,
        spare: bool = False,
    ) -> None:
        """Runs `work` on an executor thread (on the loop's thread if it is brief and the loop has time), then `done` on the loop's thread.

        `spare`: only on a thread that would otherwise be idle.
        """
        self._executor.submit(work, done, brief=brief, spare=spare)

    def execute_apart(self, work: Callable[[], T], done: Callable[[T | BaseException], None], limit_s: float) -> None:
        """Runs `work` on a thread of its own, then `done` on the loop's thread, after `limit_s` at the latest."""
        self._apart.submit(work, done, limit_s)

    def disk(self, folder: str) -> FolderDisk:
        """Returns access to the files of a folder."""
        return FolderDisk(Path(folder))

    def meter(self, *, brief: bool = False) -> Lap | OwnLap:
        """Starts to measure this thread's processor time and, unless the work is brief, that of the polars threads that work for it."""
        return OwnLap() if brief else self._meter.begin()

    @property
    def workers(self) -> int:
        """Number of executor threads."""
        return self._executor.workers

    def share_of_core(self) -> float | None:
        """Works for a moment on this thread, and returns the share of a core that it got (`sbon_agent.cpu_load`)."""
        return share_of_core()

    def processors(self) -> ProcessorUse:
        """Returns how the cores of the machine have recently been used (`sbon_agent.cpu_load`)."""
        return self._load.read()

    def processor_s(self) -> dict[str, float]:
        """Returns the processor seconds of this process so far, of all threads and by kind of thread; called on the loop's thread."""
        return {
            "process": time.process_time(),
            "event_loop_thread": time.thread_time(),
            "operator_threads": self._executor.processor_ns() / 1e9,
            "polars_threads": self._meter.processor_ns() / 1e9,
        }

    def memory_bytes(self) -> int:
        """Returns the bytes of memory that this process may use (`sbon_agent.memory`)."""
        return usable_bytes()

    def memory_fraction(self) -> float:
        """Returns the share of memory in use, 0 to 1."""
        import psutil

        return float(psutil.virtual_memory().percent) / 100

    def close(self) -> None:
        """Closes all sockets and drops all callbacks at once. Data that streams have not sent is lost; call `drain` first to avoid that."""
        self._closed = True
        for udp in self._udp:
            udp.close()
        self._streams.close()
        for task in list(self._tasks):
            task.cancel()
        self._executor.close()
        self._udp.clear()

    async def drain(self, timeout_s: float) -> None:
        """Waits, for at most `timeout_s`, until closed streams have sent all written data."""
        await self._streams.drain(timeout_s)

    def _guarded(self, callback: Callable[[], None]) -> bool:
        if self._closed:
            return False
        try:
            callback()
        except Exception:
            self.counters["callbacks_failed"] += 1
            log.exception("callback.failed")
            return False
        return True

    def _datagram(self, deliver: Callable[[bytes, Address, float], None], data: bytes, sender: Address, received_at: float) -> None:
        self._guarded(lambda: deliver(data, sender, received_at))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        if self._closed:
            work.close()
            return
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _resolve_and_send(self, data: bytes, address: Address) -> None:
        if len(self._tasks) > _RESOLVING_MAX:
            self.counters["datagrams_dropped"] += 1
            return
        try:
            found = await self.loop.getaddrinfo(address[0], address[1], family=self._udp[0].family, type=socket.SOCK_DGRAM)
        except BAD_ADDRESS as error:
            self.counters["datagrams_unsendable"] += 1
            log.info("name.unresolved", name=address[0], reason=str(error))
            return
        resolved = str(found[0][4][0])
        self._names.resolved(address[0], resolved)
        for udp in self._udp[:1]:
            udp.send(data, (resolved, address[1]))


def _bind(address: Address) -> tuple[socket.socket, socket.socket]:
    """Binds a listening TCP socket and a UDP socket to the same port."""
    host, port = address
    try:
        family, _, _, _, target = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except BAD_ADDRESS as error:
        raise ConfigError(f"bind address {host}:{port}: {error}; expected an address of this machine") from error
    for attempt in range(1, _PORT_ATTEMPTS + 1):
        tcp, udp = socket.socket(family, socket.SOCK_STREAM), socket.socket(family, socket.SOCK_DGRAM)
        try:
            tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tcp.bind(target)
            udp.bind(tcp.getsockname())
            tcp.listen(BACKLOG)
        except OSError as error:
            tcp.close()
            udp.close()
            # For port 0 the kernel picks a free TCP port, which may be taken for UDP: then ask for another.
            if error.errno != errno.EADDRINUSE or port != 0 or attempt == _PORT_ATTEMPTS:
                raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}; choose another address with --bind") from error
        else:
            break
    tcp.setblocking(False)
    udp.setblocking(False)
    return tcp, udp
