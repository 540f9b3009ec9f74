"""URLs of HTTP servers that connectors send requests to."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urljoin, urlsplit

_PORTS = {"http": 80, "https": 443}


class Url(NamedTuple):
    """A URL that requests are sent to."""

    scheme: str
    host: str
    port: int
    target: str
    """Path and query."""

    @property
    def origin(self) -> tuple[str, str, int]:
        """Returns scheme, host and port; secrets are sent to no other origin."""
        return self.scheme, self.host, self.port

    @property
    def authority(self) -> str:
        """Returns host and port as in a URL."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.target}"


def parse_url(text: str) -> Url:
    """Reads a URL.

    Raises
    ------
    ValueError
        The text is no URL for this client; the message says what was expected.
    """
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise ValueError("a URL such as 'https://example.org/in'") from None
    if parts.scheme not in _PORTS or not parts.hostname or not text.isascii() or any(letter <= " " for letter in text):
        raise ValueError("a URL such as 'https://example.org/in'")
    if parts.username is not None or parts.password is not None:
        raise ValueError("a URL without user and password: put a token into a file (token_file)")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Url(parts.scheme, parts.hostname, port or _PORTS[parts.scheme], target)


def redirected(url: Url, location: str) -> Url:
    """Returns the URL that the header `Location` of an answer leads to.

    Raises
    ------
    ValueError
        The header is empty or no such URL, or leads from https to http; the message says what was expected.
    """
    if not location:
        raise ValueError("a header Location")
    found = parse_url(urljoin(str(url), location))
    if url.scheme == "https" and found.scheme == "http":
        raise ValueError("a URL with https again")
    return found
