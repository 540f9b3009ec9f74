"""The UDP socket of an agent, with the kernel's time of arrival where there is one.

A datagram may wait in the socket's buffer while Python is busy. The kernel's time of arrival keeps this wait out of round trip times. Linux
stamps datagrams on request (SO_TIMESTAMPNS, socket(7)) with the wall clock; the age of the stamp when it is read, subtracted from the
monotonic clock, gives the instant of arrival. On other systems the instant of reading is used.
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
"""Number of the socket option on Linux, on every processor that Python is commonly built for; the socket module does not name it."""
_TIMESPEC = struct.Struct("@ll")
_DATAGRAM_BYTES_MAX = 65535
_BURST_MAX = 64
"""Most datagrams read before other callbacks get their turn."""
_AGE_S_MAX = 30.0
"""Greatest plausible age of a stamp, in seconds; an older stamp, or one in the future, results from a step of the wall clock."""
_READING_S_MAX = 20e-6
_READINGS_MAX = 3
"""Both clocks are read up to _READINGS_MAX times, until the readings are at most _READING_S_MAX apart. Undisturbed, they are less than a
microsecond apart."""
_RECEIVE_BUFFER_BYTES = 1 << 20
"""Requested size of the receive buffer, for datagrams that arrive while Python is busy; the kernel may give less."""


class UdpSocket:
    """One bound, non-blocking UDP socket on the loop.

    Parameters
    ----------
    bound
        The socket; this object closes it.
    received
        Called with data, sender and monotonic time of arrival; must not raise.
    counters
        Gets the counts `datagrams_dropped` and `datagrams_unsendable`.
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
        """Sends a datagram; one that the kernel refuses is counted as lost."""
        try:
            self._socket.sendto(data, address)
        except BlockingIOError:
            self._counters["datagrams_dropped"] += 1
        except (OSError, OverflowError) as error:
            # No route, network down, datagram too long, or invalid port: the protocol above treats it as any lost datagram.
            self._counters["datagrams_unsendable"] += 1
            log.debug("datagram.unsendable", address=address, size_bytes=len(data), reason=str(error))

    def close(self) -> None:
        """Stops reading; further datagrams are lost."""
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()

    def _readable(self) -> None:
        for _ in range(_BURST_MAX):
            if self._socket.fileno() < 0:
                return  # closed while the last datagram was handled
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
    """Returns the monotonic time at which the kernel received the datagram; the present time if there is no stamp."""
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == _SO_TIMESTAMPNS and len(data) == _TIMESPEC.size:
            seconds, nanoseconds = _TIMESPEC.unpack(data)
            now, wall_ns = _both_clocks()
            age_s = (wall_ns - (seconds * 1_000_000_000 + nanoseconds)) / 1e9
            return now - age_s if 0 <= age_s <= _AGE_S_MAX else now
    return time.monotonic()


def _both_clocks() -> tuple[float, int]:
    """Reads monotonic seconds and wall clock nanoseconds at the same instant.

    If another thread runs between the two readings, they are repeated, because its time would count as time in the socket's buffer.
    """
    now = 0.0
    wall_ns = 0
    for _ in range(_READINGS_MAX):
        before, wall_ns, after = time.monotonic(), time.time_ns(), time.monotonic()
        now = (before + after) / 2
        if after - before <= _READING_S_MAX:
            break
    return now, wall_ns
