"""Addresses of the host names to which datagrams are sent, each kept for a minute."""

import ipaddress
import math
import time

BAD_ADDRESS = (OSError, ValueError, OverflowError)
"""Errors that Python raises for an address: unreachable or unknown; an invalid name (a label of 64 letters); a port beyond 65535."""
_NAMES_MAX = 256
_NAME_TTL_S = 60.0


class HostNames:
    """The last 256 resolved host names."""

    def __init__(self) -> None:
        self._resolved: dict[str, tuple[float, str]] = {}

    def known(self, host: str) -> str | None:
        """Returns the IP address of a host; None if its name must be resolved first."""
        known = self._resolved.get(host)
        if known is None:
            try:
                ipaddress.ip_address(host)
            except ValueError:
                return None
            known = self._keep(host, host, math.inf)
        return known[1] if time.monotonic() < known[0] else None

    def resolved(self, host: str, ip: str) -> None:
        """Keeps the address of a resolved name."""
        self._keep(host, ip, _NAME_TTL_S)

    def _keep(self, host: str, ip: str, ttl_s: float) -> tuple[float, str]:
        if len(self._resolved) >= _NAMES_MAX:
            del self._resolved[next(iter(self._resolved))]
        self._resolved[host] = known = (time.monotonic() + ttl_s, ip)
        return known
