"""Addresses of agents as text."""

from sbon.errors import ConfigError
from sbon.types import Address


def parse_address(text: str) -> Address:
    """Splits HOST:PORT, or [HOST]:PORT for IPv6, into host and port.

    Raises
    ------
    ConfigError
        The text is not such an address.

    Examples
    --------
    >>> parse_address("[::1]:7946")
    ('::1', 7946)
    """
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    if not (colon and host and port.isascii() and port.isdigit() and int(port) < 1 << 16):
        raise ConfigError(f"{text!r} is not an address, expected HOST:PORT such as 10.0.0.5:7946 or [::1]:7946")
    return host, int(port)


def format_address(address: Address) -> str:
    """Returns the text that `parse_address` reads."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
