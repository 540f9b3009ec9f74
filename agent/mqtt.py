"""What all that speaks to an MQTT broker has in common: pauses, TLS, secrets in files, and the client library's log."""

from __future__ import annotations

import logging
import random
import ssl
from typing import Any

RETRY_S_MIN, RETRY_S_MAX = 0.5, 30.0
"""Pause before the broker is tried again, doubled each time; each pause is drawn between its half and the whole."""
TIMEOUT_S = 10.0
"""For the broker to answer, when connecting and subscribing."""
KEEPALIVE_S = 20
QUIET = 100
"""The client library logs each failure itself, at levels up to this one; we say it once."""


def quiet_logger() -> logging.Logger:
    """Returns the log for the client library."""
    quiet = logging.getLogger("sbon.mqtt")
    quiet.setLevel(QUIET)
    return quiet


class Pauses:
    """Pauses between attempts to connect."""

    def __init__(self) -> None:
        self._pause_s = RETRY_S_MIN

    def next(self) -> float:
        """Returns the next one, in seconds."""
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, RETRY_S_MAX)
        return random.uniform(pause_s / 2, pause_s)

    def reset(self) -> None:
        """The broker has answered."""
        self._pause_s = RETRY_S_MIN


class _NamedContext(ssl.SSLContext):
    """Checks certificates against the broker's name, whichever of its addresses the client library has been given."""

    server_name = ""

    def wrap_socket(self, *given: Any, **how: Any) -> ssl.SSLSocket:
        """As the client library calls it."""
        if self.server_name:
            how["server_hostname"] = self.server_name
        return super().wrap_socket(*given, **how)


def tls_context(ca_pem: str | None, server_name: str = "") -> ssl.SSLContext:
    """Returns what checks the broker's certificate.

    Parameters
    ----------
    ca_pem : certificates that are trusted; None: the system's
    server_name : that the certificate must have; empty: what the socket is connected to

    Raises
    ------
    ValueError
        The certificates are none.
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
    """Tells whether a file that holds a password can be read by others than its owner."""
    return bool(mode & 0o077)
