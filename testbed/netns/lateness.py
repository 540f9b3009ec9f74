"""Measures how late packets arrive, from outside the router: datagrams between two more namespaces, stamped by the kernel on arrival.

The router knows how late it writes a packet, but not how long the packet waited before the router woke and read it. These datagrams take
the whole path with a fixed delay, so any excess is added by the WAN itself.
"""

import socket
import struct
import threading
import time
from collections import deque

import numpy as np

from sbon_testbed.kernel import in_network_namespace

INTERVAL_S = 0.02
SAMPLES_MAX = 100_000
_PORT = 9
_SO_TIMESTAMPNS = 35
_STAMP = struct.Struct("@ll")
_SENT = struct.Struct("!q")

End = tuple[int, str]
"""A namespace's descriptor and the address in it."""


class LatenessProbe:
    """Sends a datagram every 20 ms, on a thread of its own, and records how late each arrived."""

    def __init__(self, sender: End, receiver: End, delay_ms: float) -> None:
        self._delay_ns = int(delay_ms * 1e6)
        self._late_ns: deque[int] = deque(maxlen=SAMPLES_MAX)
        self._receiver = _bound(receiver)
        self._receiver.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        self._sender = _bound(sender)
        self._sender.connect((receiver[1], _PORT))
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._probe, name="lateness", daemon=True)
        self._thread.start()

    def counters(self) -> dict[str, int]:
        """Returns the number of samples and the quantiles of their lateness in microseconds; without samples, only their number, 0."""
        late_us = np.array(self._late_ns) / 1000
        if not late_us.size:
            return {"probes": 0}
        p50, p99 = (round(float(value)) for value in np.percentile(late_us, [50, 99]))
        return {"probes": int(late_us.size), "probes_late_us_p50": p50, "probes_late_us_p99": p99}

    def close(self) -> None:
        """Ends the thread."""
        self._ended.set()
        self._thread.join()
        self._sender.close()
        self._receiver.close()

    def _probe(self) -> None:
        while not self._ended.wait(INTERVAL_S):
            try:
                self._sender.send(_SENT.pack(time.time_ns()))
            except OSError:
                continue  # the router has ended: the world detects that by itself
            self._collect()

    def _collect(self) -> None:
        while True:
            try:
                data, ancillary, _, _ = self._receiver.recvmsg(64, 128)
            except BlockingIOError:
                return
            for level, kind, stamp in ancillary:
                if (level, kind, len(stamp), len(data)) == (socket.SOL_SOCKET, _SO_TIMESTAMPNS, _STAMP.size, _SENT.size):
                    seconds, rest_ns = _STAMP.unpack(stamp)
                    self._late_ns.append(seconds * 1_000_000_000 + rest_ns - _SENT.unpack(data)[0] - self._delay_ns)


def _bound(end: End) -> socket.socket:
    namespace, address = end
    with in_network_namespace(namespace):
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        made.bind((address, _PORT))
    made.setblocking(False)
    return made
