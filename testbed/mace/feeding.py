"""Feeds rows to a real agent at scheduled instants, and takes down when its answers come. Both go over TCP on loopback."""

import json
import socket
import threading
import time
from collections.abc import Iterator
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


def parsed(came: list[tuple[float, bytes]]) -> Answers:
    """Returns the answers in pieces of a stream of NDJSON lines. A line has come when its end has.

    Examples
    --------
    >>> parsed([(1.0, b'{"visit": 3}\\n{"vis'), (2.0, b'it": 5}\\n')])
    Answers(visits=array([3, 5]), at_s=array([1., 2.]))
    """
    visits, at_s, rest = list[int](), list[float](), b""
    for instant_s, data in came:
        *whole, rest = (rest + data).split(b"\n")
        visits += [json.loads(line)["visit"] for line in whole]
        at_s += [instant_s] * len(whole)
    return Answers(np.array(visits, dtype=np.int64), np.array(at_s, dtype=np.float64))


def feed(port: int, at_s: FloatArray, numbers: IntArray) -> Sent:
    """Sends rows with these numbers to a source at their instants; all that are due go at once.

    Parameters
    ----------
    at_s : (rows,), seconds since the start, increasing
    """
    sent_s = np.empty(len(at_s))
    found: list[float] = []

    def send() -> None:
        wake_punctually()
        with connected(port) as line:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            start_s, wall_us = time.monotonic() + AHEAD_S, (time.time() + AHEAD_S) * 1e6
            found.append(start_s)
            stamps = (wall_us + at_s * 1e6).astype(np.int64).tolist()
            lines = [b'{"ts":%d,"visit":%d}\n' % pair for pair in zip(stamps, numbers.tolist(), strict=True)]
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

    thread = threading.Thread(target=send)
    thread.start()
    thread.join()
    if not found:
        raise SbonError(f"nothing could be sent to port {port}")
    return Sent(found[0], sent_s - at_s)
