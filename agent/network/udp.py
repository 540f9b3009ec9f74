"""The UDP socket of an agent, with the kernel's own time of arrival where there is one.

A datagram may lie in the socket's buffer while Python is busy; timed on arrival by the kernel, it does not make its sender look far.
Linux stamps datagrams on request (SO_TIMESTAMPNS, socket(7)) with the wall clock; the stamp's age at the moment of reading, taken off the
monotonic clock, is the instant of arrival. Elsewhere the instant of reading must do.
"""

import asyncio
import contextlib
import socket
import struct
import sys
import time
from collections.abc import Callable

import structlog

from sbon.types import Address

log = structlog.get_logger()

_SO_TIMESTAMPNS = 35
"""Of Linux, on every processor Python is commonly built for; the socket module does not name it."""
_TIMESPEC = struct.Struct("@ll")
_DATAGRAM_BYTES_MAX = 65535
_BURST_MAX = 64
"""Datagrams read before other callbacks have their turn."""
_AGE_S_MAX = 30.0
"""A stamp older than this, or of the future, tells of a step of the wall clock and not of the datagram."""
_READING_S_MAX = 20e-6
_READINGS_MAX = 3
"""Two clocks read farther apart than this are read again, so often at most. Undisturbed they are less than a microsecond apart."""
_RECEIVE_BUFFER_BYTES = 1 << 20
"""Asked of the kernel, which may give less: room for what arrives while Python is busy."""


class UdpSocket:
    """One bound, non-blocking UDP socket on the loop.

    Parameters
    ----------
    bound
        The socket; owned from now on.
    received
        Called with data, sender and monotonic instant of arrival; must not raise.
    counters
        `datagrams_dropped` and `datagrams_unsendable` are counted here.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        bound: socket.socket,
        received: Callable[[bytes, Address, float], None],
        counters: dict[str, int],
    ) -> None:
        self._loop, self._socket, self._received, self._counters = loop, bound, received, counters
        self.family = bound.family
        with contextlib.suppress(OSError):
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
        self.has_kernel_stamps = sys.platform == "linux" and _ask_for_stamps(bound)
        loop.add_reader(bound.fileno(), self._readable)

    def send(self, data: bytes, address: Address) -> None:
        """Send and forget; what the kernel does not take is counted."""
        try:
            self._socket.sendto(data, address)
        except BlockingIOError:
            self._counters["datagrams_dropped"] += 1
        except (OSError, OverflowError) as error:
            # No route, a network that is down, a datagram too long, no such port: for the protocol above it is lost like any other.
            self._counters["datagrams_unsendable"] += 1
            log.debug("datagram.unsendable", address=address, size_bytes=len(data), reason=str(error))

    def close(self) -> None:
        """Stop reading; further sends are lost."""
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()

    def _readable(self) -> None:
        for _ in range(_BURST_MAX):
            if self._socket.fileno() < 0:
                return  # closed by what the last datagram brought about
            try:
                data, ancillary, _, sender = self._socket.recvmsg(_DATAGRAM_BYTES_MAX, socket.CMSG_SPACE(_TIMESPEC.size))
            except BlockingIOError:
                return
            except OSError as error:
                log.debug("datagram.unreceivable", reason=str(error))
                return
            self._received(data, (sender[0], sender[1]), _arrived_at(ancillary))


def _ask_for_stamps(bound: socket.socket) -> bool:
    try:
        bound.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    except OSError:
        return False
    return True


def _arrived_at(ancillary: list[tuple[int, int, bytes]]) -> float:
    """Monotonic instant at which the kernel took the datagram in; now, where it does not say."""
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == _SO_TIMESTAMPNS and len(data) == _TIMESPEC.size:
            seconds, nanoseconds = _TIMESPEC.unpack(data)
            now, wall_ns = _both_clocks()
            age_s = (wall_ns - (seconds * 1_000_000_000 + nanoseconds)) / 1e9
            return now - age_s if 0 <= age_s <= _AGE_S_MAX else now
    return time.monotonic()


def _both_clocks() -> tuple[float, int]:
    """Monotonic seconds and wall clock nanoseconds of one instant.

    Another thread may run between the two readings; then they are taken again, lest its turn count as time in the socket's buffer.
    """
    now = 0.0
    wall_ns = 0
    for _ in range(_READINGS_MAX):
        before, wall_ns, after = time.monotonic(), time.time_ns(), time.monotonic()
        now = (before + after) / 2
        if after - before <= _READING_S_MAX:
            break
    return now, wall_ns
