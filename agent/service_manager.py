"""Tells the service manager (systemd, or another one with sd_notify(3)) the agent's state, in datagrams to `$NOTIFY_SOCKET`.

    starting --READY--> running --STOPPING--> stopping
    running --RELOADING--> reloading --READY--> running

While the event loop runs, WATCHDOG is sent twice in each `$WATCHDOG_USEC`, so that a blocked loop is noticed. Without `$NOTIFY_SOCKET`
nothing is sent.
"""

import asyncio
import os
import socket
import time
from collections.abc import MutableMapping

from sbon_agent.logs import structlog

log = structlog.get_logger("service_manager")

SEND_TIMEOUT_S = 0.2
"""Longest wait for room in the service manager's queue, in seconds. If a message is lost, the service manager waits for its own timeout,
then restarts the agent."""
ENDING_S = 15.0
"""Seconds requested beyond the time of leaving, to close connections and write telemetry."""


class ServiceManager:
    """Sender to the notification socket, if there is one.

    Parameters
    ----------
    environment : read and stripped of these variables, so that programs started by the agent do not notify in its name
    """

    def __init__(self, environment: MutableMapping[str, str], loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._address = _address(environment.pop("NOTIFY_SOCKET", ""))
        usec, process = environment.pop("WATCHDOG_USEC", ""), environment.pop("WATCHDOG_PID", "")
        is_ours = not process or process == str(os.getpid())
        self._watchdog_s = int(usec) / 1e6 if usec.isdecimal() and is_ours else 0.0
        self._socket: socket.socket | None = None
        if self._address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.settimeout(SEND_TIMEOUT_S)

    def ready(self, status: str) -> None:
        """Tells that the agent answers on its control socket, after its start or a reload."""
        self._send("READY=1", f"STATUS={status}")
        if self._timer is None and self._watchdog_s > 0 and self._socket is not None:
            self._still_alive()

    def reloading(self) -> None:
        """Tells that the configuration is being read again; `ready` must follow."""
        now_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._send("RELOADING=1", f"MONOTONIC_USEC={now_us}", "STATUS=reading the configuration again")

    def stopping(self, within_s: float) -> None:
        """Tells that the agent is leaving, and requests the time for it, which may exceed the unit's own TimeoutStopSec."""
        usec = int((within_s + ENDING_S) * 1e6)
        self._send("STOPPING=1", f"EXTEND_TIMEOUT_USEC={usec}", f"STATUS=leaving within {within_s:g} s: operators go to other agents")

    def close(self) -> None:
        """Closes the socket and stops the watchdog messages."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _still_alive(self) -> None:
        self._send("WATCHDOG=1")
        self._timer = self._loop.call_later(self._watchdog_s / 2, self._still_alive)

    def _send(self, *assignments: str) -> None:
        if self._socket is None:
            return
        data = "\n".join(" ".join(text.splitlines()) for text in assignments).encode()
        try:
            self._socket.sendto(data, self._address)
        except OSError as problem:
            log.warning("service_manager.not_told", what=assignments[0], reason=problem.strerror or str(problem))


def _address(text: str) -> str:
    """Returns the socket's address: a path, or an abstract name if it begins with @; empty for any other."""
    if text.startswith("@"):
        return "\0" + text[1:]
    if text and not text.startswith("/"):
        log.warning("service_manager.unknown_socket", address=text, expected="a path, or @ and a name")
        return ""
    return text
