"""Feeds rows to a real agent at scheduled instants, and takes down when its answers come. Both go over TCP on loopback."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from sbon.errors import SbonError
from sbon.types import FloatArray, IntArray
from sbon_testbed.bench.sender import connected
from sbon_testbed.kernel import wake_punctually

AHEAD_S = 0.5
"""Time from the call to the first instant of the schedule."""
CHUNK_BYTES = 1 << 16
LOOK_S = 0.2
"""Seconds between two looks whether all rows have been sent, or the run is interrupted."""


class Answers(NamedTuple):
    """Answers in the order in which they came."""

    visits: IntArray
    """(answers,): number of the row of the source behind each."""
    at_s: FloatArray
    """(answers,): when each came, on the monotonic clock."""


class Sent(NamedTuple):
    """A schedule after it has been sent."""

    start_s: float
    """Instant 0 of the schedule, on the monotonic clock."""
    late_s: FloatArray
    """(rows,): by how much each row was sent after its instant."""


class Collector:
    """Takes the answers of a sink that connects to it, each with its instant."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self._came: list[tuple[float, bytes]] = []
        self._lines = 0
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        """Returns the port on which it listens."""
        port: int = self._server.getsockname()[1]
        return port

    def begin(self, timeout_s: float = 30.0) -> None:
        """Forgets earlier answers, and waits until a sink has connected.

        Raises
        ------
        SbonError
            No sink connects in time.
        """
        self._came, self._lines = [], 0
        self._server.settimeout(timeout_s)
        try:
            connection, _ = self._server.accept()
        except TimeoutError as problem:
            raise SbonError(f"the sink has not connected within {timeout_s:g} s") from problem
        self._thread = threading.Thread(target=self._read, args=(connection,), daemon=True)
        self._thread.start()

    def _read(self, connection: socket.socket) -> None:
        wake_punctually()
        connection.settimeout(None)
        with connection:
            while data := connection.recv(CHUNK_BYTES):
                self._came.append((time.monotonic(), data))
                self._lines += data.count(b"\n")

    def wait(self, answers: int, timeout_s: float) -> None:
        """Waits until so many answers have come.

        Raises
        ------
        SbonError
            They do not come in time.
        """
        deadline_s = time.monotonic() + timeout_s
        while self._lines < answers:
            if time.monotonic() > deadline_s:
                raise SbonError(f"{self._lines} of {answers} answers after {timeout_s:g} s")
            time.sleep(0.05)

    def lines(self) -> list[tuple[float, bytes]]:
        """Returns the answers as lines, each with its instant; call it after the sink has disconnected, or after `wait`."""
        return lines_of(self._came)

    def answers(self) -> Answers:
        """Returns the answers; call it after the sink has disconnected, or after `wait`."""
        return parsed(self._came)

    def close(self) -> None:
        """Stops listening."""
        self._server.close()


@contextmanager
def collecting() -> Iterator[Collector]:
    """Yields a collector that listens during the block."""
    collector = Collector()
    try:
        yield collector
    finally:
        collector.close()


def lines_of(came: list[tuple[float, bytes]]) -> list[tuple[float, bytes]]:
    """Returns the lines in pieces of a stream. A line has come when its end has; a line without an end is left out.

    Examples
    --------
    >>> lines_of([(1.0, b"one\\ntw"), (2.0, b"o\\nthree")])
    [(1.0, b'one'), (2.0, b'two')]
    """
    found: list[tuple[float, bytes]] = []
    rest = b""
    for instant_s, data in came:
        *whole, rest = (rest + data).split(b"\n")
        found += [(instant_s, line) for line in whole]
    return found


def parsed(came: list[tuple[float, bytes]]) -> Answers:
    """Returns the answers in pieces of a stream of NDJSON lines.

    Examples
    --------
    >>> parsed([(1.0, b'{"visit": 3}\\n{"vis'), (2.0, b'it": 5}\\n')])
    Answers(visits=array([3, 5]), at_s=array([1., 2.]))
    """
    lines = lines_of(came)
    visits = np.array([json.loads(line)["visit"] for _, line in lines], dtype=np.int64)
    return Answers(visits, np.array([at_s for at_s, _ in lines], dtype=np.float64))


def feed(port: int, at_s: FloatArray, numbers: IntArray) -> Sent:
    """Sends rows with these numbers to a source at their instants; as `feed_lines`."""

    def lines(start_us: float) -> list[bytes]:
        stamps = (start_us + at_s * 1e6).astype(np.int64).tolist()
        return [b'{"ts":%d,"visit":%d}\n' % pair for pair in zip(stamps, numbers.tolist(), strict=True)]

    return feed_lines(port, at_s, lines)


def feed_lines(port: int, at_s: FloatArray, lines_from: Callable[[float], Sequence[bytes]]) -> Sent:
    """Sends lines to a source at their instants; all that are due go at once.

    Parameters
    ----------
    at_s : (rows,), seconds since the start, increasing
    lines_from : returns the lines, given the start in microseconds since 1970
    """
    sent_s = np.empty(len(at_s))
    found: list[float] = []

    def send() -> None:
        wake_punctually()
        with connected(port) as line:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            start_s, start_us = time.monotonic() + AHEAD_S, (time.time() + AHEAD_S) * 1e6
            found.append(start_s)
            lines = lines_from(start_us)
            done = 0
            while done < len(lines):
                pause_s = start_s + float(at_s[done]) - time.monotonic()
                if pause_s > 0:
                    time.sleep(pause_s)
                    continue
                due = int(np.searchsorted(at_s, time.monotonic() - start_s, side="right"))
                line.sendall(b"".join(lines[done:due]))
                sent_s[done:due] = time.monotonic() - start_s
                done = due

    thread = threading.Thread(target=send, daemon=True)  # it must not outlive a run that is interrupted
    thread.start()
    while thread.is_alive():  # polars restarts system calls after Ctrl-C, so a wait without end would not see it
        thread.join(LOOK_S)
    if not found:
        raise SbonError(f"nothing could be sent to port {port}")
    return Sent(found[0], sent_s - at_s)
