"""Shared parts of the agent's MQTT clients (connectors and telemetry): pauses, TLS, secrets in files, and the client library's log."""

from __future__ import annotations

import logging
import random
import ssl
from typing import Any

RETRY_S_MIN, RETRY_S_MAX = 0.5, 30.0
"""Shortest and longest pause before connecting again, in seconds. It doubles each time; the actual pause is random, between half of it and
all of it."""
TIMEOUT_S = 10.0
"""Seconds for the broker to answer when connecting and subscribing."""
KEEPALIVE_S = 20
QUIET = 100
"""Log level above the client library's own messages about failures, which the callers log once themselves."""


def quiet_logger() -> logging.Logger:
    """Returns the logger for the client library."""
    quiet = logging.getLogger("sbon.mqtt")
    quiet.setLevel(QUIET)
    return quiet


class Pauses:
    """Pauses between attempts to connect."""

    def __init__(self) -> None:
        self._pause_s = RETRY_S_MIN

    def next(self) -> float:
        """Returns the next pause in seconds."""
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, RETRY_S_MAX)
        return random.uniform(pause_s / 2, pause_s)

    def reset(self) -> None:
        """Starts again with the shortest pause, because the broker has answered."""
        self._pause_s = RETRY_S_MIN


class _NamedContext(ssl.SSLContext):
    """Checks certificates against the broker's name, even if the client library was given one of its addresses."""

    server_name = ""

    def wrap_socket(self, *given: Any, **how: Any) -> ssl.SSLSocket:
        """Wraps a socket, as the client library calls it."""
        if self.server_name:
            how["server_hostname"] = self.server_name
        return super().wrap_socket(*given, **how)


def tls_context(ca_pem: str | None, server_name: str = "") -> ssl.SSLContext:
    """Returns the context that checks the broker's certificate.

    Parameters
    ----------
    ca_pem : trusted certificates; None for the system's
    server_name : name that the certificate must have; empty for the host that the client library connects to

    Raises
    ------
    ValueError
        `ca_pem` holds no certificates.
    """
    context = _NamedContext(ssl.PROTOCOL_TLS_CLIENT)
    context.server_name = server_name
    if ca_pem is None:
        context.load_default_certs()
        return context
    try:
        context.load_verify_locations(cadata=ca_pem)
    except (ssl.SSLError, ValueError) as problem:
        raise ValueError(str(problem)) from None
    return context


def open_to_others(mode: int) -> bool:
    """Tells whether others than its owner can access a file with this mode."""
    return bool(mode & 0o077)
