"""Gets a URL repeatedly: asks for changed bodies only, follows redirections, and reports in one line why there is no body.

After a usable body, the next request carries its `ETag` and `Last-Modified`, so that the server sends only a different body (RFC 9110,
section 13). These are sent only to the URL that they came from.
"""

from __future__ import annotations

import ssl
from typing import NamedTuple

import h11

from sbon.connectors.http_bodies import MEDIA_TYPES
from sbon.errors import ConnectorError
from sbon.formats.http_urls import Url, redirected
from sbon.misfits import cut
from sbon_agent.connectors.http_client import AnswerTooLargeError, Headers, HttpClient, Response

REDIRECTS_MAX = 5
_ACCEPT = ", ".join(dict.fromkeys(MEDIA_TYPES))
_REDIRECTIONS = (301, 302, 303, 307, 308)
_SHOWN_CHARACTERS = 200
_VALIDATOR_CHARACTERS_MAX = 1024


class FetchError(Exception):
    """There is no body; the message says why in one line."""

    def __init__(self, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        """The pause that the server asks for."""


class Validators(NamedTuple):
    """Headers by which a server tells whether the body at a URL has changed."""

    url: Url
    headers: Headers


class Fetched(NamedTuple):
    """A fetched body."""

    content_type: str | None
    body: bytes
    validators: Validators | None
    """For `Fetcher.unchanged_since`, once the body has proved usable; None if the server sent no usable ones."""


class Fetcher:
    """Gets the URL of a client.

    Parameters
    ----------
    body_bytes_max : larger bodies are errors
    """

    def __init__(self, client: HttpClient, body_bytes_max: int) -> None:
        self._client = client
        self._body_bytes_max = body_bytes_max
        self._validators: Validators | None = None

    def unchanged_since(self, validators: Validators | None) -> None:
        """Makes later fetches return only a body that differs from the one with these validators; None: any body."""
        self._validators = validators

    async def fetch(self) -> Fetched | None:
        """Returns the body; None if it has not changed (304), or if there is none (204).

        Raises
        ------
        FetchError
            There is no usable answer.
        """
        url = self._client.url
        for _ in range(REDIRECTS_MAX + 1):
            response = await self._answer(url)
            if response.status not in _REDIRECTIONS:
                return self._body(url, response)
            location = response.headers.get("location", "")
            try:
                url = redirected(url, location)
            except ValueError as error:
                shown = cut(location, _SHOWN_CHARACTERS)
                raise FetchError(f"{url} has answered {response.status} and redirects to '{shown}', expected {error}") from None
        raise FetchError(f"{self._client.url} redirects more than {REDIRECTS_MAX} times, last to {cut(str(url), _SHOWN_CHARACTERS)}")

    async def _answer(self, url: Url) -> Response:
        shown = cut(str(url), _SHOWN_CHARACTERS)
        known = self._validators.headers if self._validators is not None and self._validators.url == url else ()
        try:
            return await self._client.ask("GET", url, (("Accept", _ACCEPT), *known), b"", self._body_bytes_max)
        except ssl.SSLCertVerificationError as error:
            raise FetchError(f"{shown}: the certificate is not trusted: {error.verify_message}") from error
        except TimeoutError:
            raise FetchError(f"{shown} has not answered within {self._client.timeout_s:g} s") from None
        except AnswerTooLargeError as error:
            raise FetchError(f"{shown} has answered {error} (body_bytes_max)") from None
        except (OSError, h11.RemoteProtocolError) as error:
            raise FetchError(f"{shown}: {error}") from error
        except ConnectorError as error:  # it redirects to an address that may not be used
            raise FetchError(str(error)) from error

    def _body(self, url: Url, response: Response) -> Fetched | None:
        shown = cut(str(url), _SHOWN_CHARACTERS)
        if response.status == 204 or (response.status == 304 and self._validators is not None):
            return None
        if response.status != 200:
            raise FetchError(f"{shown} has answered {response.shown}", response.retry_after_s)
        encoding = response.headers.get("content-encoding", "identity").lower()
        if encoding != "identity":
            raise FetchError(f"{shown} has answered with Content-Encoding '{cut(encoding, 40)}', which was not asked for")
        named = (("If-None-Match", "etag"), ("If-Modified-Since", "last-modified"))
        headers = tuple((name, response.headers[said]) for name, said in named if said in response.headers)
        usable = headers and all(len(value) <= _VALIDATOR_CHARACTERS_MAX for _, value in headers)
        return Fetched(response.headers.get("content-type"), response.body, Validators(url, headers) if usable else None)
