"""Implements `sbon_agent.host.Host` with real sockets, clocks and threads: asyncio, with uvloop where it is installed.

The daemon makes it.

Every callback runs in `_guarded`: its exception is logged and counted and the agent goes on, so that one bad message does not take down an
agent with everything that it hosts.
"""

import asyncio
import contextlib
import errno
import ipaddress
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
from sbon_agent.network.tcp import TcpStream
from sbon_agent.network.udp import UdpSocket

T = TypeVar("T")
log = structlog.get_logger()

_PORT_ATTEMPTS = 32
_BACKLOG = 1024
_NAMES_MAX = 256
_NAME_TTL_S = 60.0
_RESOLVING_MAX = 256
_CONNECT_TIMEOUT_S = 10.0
_BAD_ADDRESS = (OSError, ValueError, OverflowError)
"""Errors that Python raises for an address: unreachable or unknown; an invalid name (a label of 64 letters); a port beyond 65535."""


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

    It re-arms itself if it fires early: asyncio may be early by its clock's resolution, and a machine woken too early would do nothing.
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
    loop
        The running one by default.
    rng
        Seeded from the system's entropy by default.
    workers
        Executor threads; one for each core by default.
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
        self._servers: list[socket.socket] = []
        self._streams: dict[TcpStream, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._resolved: dict[str, tuple[float, str]] = {}
        self._load = CpuLoad()
        self._meter = CpuMeter()
        self._left: asyncio.Future[None] | None = None
        self._closed = False

    # The clocks are read a dozen times for each batch: no Python function in between.
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
        """Calls once at the monotonic time `when`, or up to about a millisecond later."""
        return _Timer(self, when, callback)

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Calls once, after the callbacks already due."""
        self.loop.call_soon(self._guarded, callback)

    def listen(
        self, address: Address, datagram: Callable[[bytes, Address, float], None], accept: Callable[[Address], StreamHandler]
    ) -> Address:
        """Opens the UDP and TCP port; see `sbon_agent.host.Host.listen`."""
        tcp, udp = _bind(address)
        self._udp.append(UdpSocket(self.loop, udp, partial(self._datagram, datagram), self.counters))
        self._servers.append(tcp)
        self.loop.add_reader(tcp.fileno(), self._acceptable, tcp, accept)
        bound = tcp.getsockname()
        return bound[0], bound[1]

    def send_datagram(self, data: bytes, address: Address) -> None:
        """Sends a datagram; the first one to a host name is sent once the name is resolved."""
        if not self._udp:
            return
        known = self._known_host(address[0])
        if known is not None:
            self._udp[0].send(data, (known, address[1]))
        else:
            self._start(self._resolve_and_send(data, address))

    def connect(self, address: Address, handler: StreamHandler) -> None:
        """Opens a stream; `handler.connected` or `handler.closed` follows."""
        self._start(self._connect(address, handler))

    def execute(
        self,
        work: Callable[[], T],
        done: Callable[[T | BaseException], None],
        *,
        rows: int | Callable[[], Sequence[int]],
        brief: bool = False,
        spare: bool = False,
    ) -> None:
        """Runs `work` on an executor thread, or on the loop's if it is brief and the loop has time for it; then `done` on the loop's.

        `spare`: only on a thread that would otherwise be idle.
        """
        self._executor.submit(work, done, brief=brief, spare=spare)

    def execute_apart(self, work: Callable[[], T], done: Callable[[T | BaseException], None], limit_s: float) -> None:
        """Runs `work` on a thread of its own, then `done` on the loop's, at the latest after `limit_s`."""
        self._apart.submit(work, done, limit_s)

    def disk(self, folder: str) -> FolderDisk:
        """Returns access to the files of a folder."""
        return FolderDisk(Path(folder))

    def meter(self, *, brief: bool = False) -> Lap | OwnLap:
        """Starts a meter for this thread and, unless the work is brief, for the polars threads that work for it."""
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
        """Closes all sockets and drops all callbacks, at once. What streams have not sent is lost; call `drain` before to avoid that."""
        self._closed = True
        for udp in self._udp:
            udp.close()
        for server in self._servers:
            self.loop.remove_reader(server.fileno())
            server.close()
        for stream in list(self._streams):
            stream.abort()
        for task in list(self._tasks):
            task.cancel()
        self._executor.close()
        self._udp.clear()
        self._servers.clear()

    async def drain(self, timeout_s: float) -> None:
        """Waits until closed streams have sent what was written to them, for at most `timeout_s`."""
        if self._leaving():
            self._left = self.loop.create_future()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._left, timeout_s)
            self._left = None

    def _leaving(self) -> bool:
        return any(stream.is_closing for stream in self._streams)

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

    def _acceptable(self, server: socket.socket, accept: Callable[[Address], StreamHandler]) -> None:
        """Accepts waiting connections.

        It does not use `create_server`, a coroutine, because `listen` must know at once whether it worked.
        """
        for _ in range(_BACKLOG):
            try:
                accepted, _ = server.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                log.error("accept.failed", reason=str(error))
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    # The connection stays in the queue and would wake us again and again: look again later, when something may have closed.
                    self.loop.remove_reader(server.fileno())
                    self.loop.call_later(1.0, self._listen_again, server, accept)
                return
            accepted.setblocking(False)
            self._start(self._accepted(accepted, accept))

    def _listen_again(self, server: socket.socket, accept: Callable[[Address], StreamHandler]) -> None:
        if server.fileno() >= 0:
            self.loop.add_reader(server.fileno(), self._acceptable, server, accept)

    async def _accepted(self, accepted: socket.socket, accept: Callable[[Address], StreamHandler]) -> None:
        try:
            await self.loop.connect_accepted_socket(partial(self._stream, accept), accepted)
        except OSError as error:
            accepted.close()
            log.debug("accept.failed", reason=str(error))

    async def _connect(self, address: Address, handler: StreamHandler) -> None:
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                await self.loop.create_connection(partial(self._stream, lambda _: handler), address[0], address[1])
        except TimeoutError:
            self._guarded(lambda: handler.closed("timed out"))
        except _BAD_ADDRESS as error:
            reason = str(error) or repr(error)
            self._guarded(lambda: handler.closed(reason))

    def _stream(self, make_handler: Callable[[Address], StreamHandler]) -> TcpStream:
        stream = TcpStream(self.loop, self._guarded, make_handler, self._ended)
        self._streams[stream] = None
        return stream

    def _ended(self, stream: TcpStream) -> None:
        self._streams.pop(stream, None)
        if self._left is not None and not self._left.done() and not self._leaving():
            self._left.set_result(None)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        if self._closed:
            work.close()
            return
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _known_host(self, host: str) -> str | None:
        known = self._resolved.get(host)
        if known is None:
            try:
                ipaddress.ip_address(host)
            except ValueError:
                return None
            known = self._remember_host(host, host, math.inf)
        return known[1] if time.monotonic() < known[0] else None

    def _remember_host(self, host: str, resolved: str, ttl_s: float) -> tuple[float, str]:
        if len(self._resolved) >= _NAMES_MAX:
            del self._resolved[next(iter(self._resolved))]
        self._resolved[host] = known = (time.monotonic() + ttl_s, resolved)
        return known

    async def _resolve_and_send(self, data: bytes, address: Address) -> None:
        if len(self._tasks) > _RESOLVING_MAX:
            self.counters["datagrams_dropped"] += 1
            return
        try:
            found = await self.loop.getaddrinfo(address[0], address[1], family=self._udp[0].family, type=socket.SOCK_DGRAM)
        except _BAD_ADDRESS as error:
            self.counters["datagrams_unsendable"] += 1
            log.info("name.unresolved", name=address[0], reason=str(error))
            return
        _, resolved = self._remember_host(address[0], str(found[0][4][0]), _NAME_TTL_S)
        for udp in self._udp[:1]:
            udp.send(data, (resolved, address[1]))


def _bind(address: Address) -> tuple[socket.socket, socket.socket]:
    """Binds a listening TCP socket and a UDP socket to the same port."""
    host, port = address
    try:
        family, _, _, _, target = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except _BAD_ADDRESS as error:
        raise ConfigError(f"bind address {host}:{port}: {error}; expected an address of this machine") from error
    for attempt in range(1, _PORT_ATTEMPTS + 1):
        tcp, udp = socket.socket(family, socket.SOCK_STREAM), socket.socket(family, socket.SOCK_DGRAM)
        try:
            tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tcp.bind(target)
            udp.bind(tcp.getsockname())
            tcp.listen(_BACKLOG)
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
