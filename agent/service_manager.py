"""Tells the service manager (systemd, or another that speaks sd_notify(3)) how the agent does, in datagrams to `$NOTIFY_SOCKET`.

    starting --READY--> running --STOPPING--> stopping
    running --RELOADING--> reloading --READY--> running

While the event loop runs it says WATCHDOG twice in each `$WATCHDOG_USEC`, so that a loop that stands still is noticed. Without
`$NOTIFY_SOCKET` nothing is sent.
"""

import asyncio
import os
import socket
import time
from collections.abc import MutableMapping

from sbon_agent.logs import structlog

log = structlog.get_logger("service_manager")

SEND_TIMEOUT_S = 0.2
"""Longest wait for room in the service manager's queue. A word that is lost would make it wait for its own time-out, then restart us."""
ENDING_S = 15.0
"""What is asked for beyond the time of leaving: connections close, telemetry is written."""


class ServiceManager:
    """The other end of the notification socket, if there is one.

    Parameters
    ----------
    environment : the variables are taken out of it, so that programs that the agent starts do not speak for it
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
        """The agent answers on its control socket: after its start, or after a reload."""
        self._send("READY=1", f"STATUS={status}")
        if self._timer is None and self._watchdog_s > 0 and self._socket is not None:
            self._still_alive()

    def reloading(self) -> None:
        """The configuration is read again; `ready` must follow."""
        now_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._send("RELOADING=1", f"MONOTONIC_USEC={now_us}", "STATUS=reading the configuration again")

    def stopping(self, within_s: float) -> None:
        """The agent leaves, and may take that long, whoever has told it to: more than the unit's own TimeoutStopSec, perhaps."""
        usec = int((within_s + ENDING_S) * 1e6)
        self._send("STOPPING=1", f"EXTEND_TIMEOUT_USEC={usec}", f"STATUS=leaving within {within_s:g} s: operators go to other agents")

    def close(self) -> None:
        """Say nothing more."""
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
    """The socket's address: a path, or a name that begins with @, in the abstract namespace; empty for any other."""
    if text.startswith("@"):
        return "\0" + text[1:]
    if text and not text.startswith("/"):
        log.warning("service_manager.unknown_socket", address=text, expected="a path, or @ and a name")
        return ""
    return text
