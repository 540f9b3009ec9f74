"""Sends HTTP/1.1 requests, one after the other over a kept connection, on the agent's event loop. `h11` parses the messages."""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import ssl
import time
from pathlib import Path
from typing import NamedTuple

import h11

from sbon.errors import ConnectorError
from sbon.formats.http_urls import Url, parse_url
from sbon.misfits import cut
from sbon.options import Options
from sbon.reach import Reach
from sbon_agent.connectors.addresses import SocketPlace
from sbon_agent.connectors.opening import open_to_read, path_of
from sbon_agent.connectors.secret_files import SecretFile

HEAD_BYTES_MAX = 64 * 1024
_FILE_BYTES_MAX = 1 << 20
_READ_BYTES = 64 * 1024
_SHOWN_CHARACTERS = 200
RETRY_AFTER_S_MAX = 600.0
"""Longest pause that a server may ask for."""

Headers = tuple[tuple[str, str], ...]


class AnswerTooLargeError(Exception):
    """The body of an answer is too large."""


class Response(NamedTuple):
    """An answer with its whole body."""

    status: int
    headers: dict[str, str]
    """Headers by names in lower case; the last of each."""
    body: bytes

    @property
    def shown(self) -> str:
        """Status and the beginning of the body, for messages."""
        text = cut(b" ".join(self.body[: 4 * _SHOWN_CHARACTERS].split()), _SHOWN_CHARACTERS)
        return f"{self.status}: {text}" if text else str(self.status)

    @property
    def retry_after_s(self) -> float:
        """The pause that the server asks for (`Retry-After`), as a number of seconds or a date; 0 if it asks for none."""
        text = self.headers.get("retry-after", "").strip()
        if text.isascii() and text.isdecimal():
            return min(RETRY_AFTER_S_MAX, float(text))
        with contextlib.suppress(ValueError, OverflowError, IndexError, TypeError):  # raised by the parser for nonsense
            date = email.utils.parsedate_tz(text)
            return 0.0 if date is None else min(RETRY_AFTER_S_MAX, max(0.0, email.utils.mktime_tz(date) - time.time()))
        return 0.0


class HttpClient:
    """Sends requests to the address of the option `url`, and to addresses that its server redirects to.

    Options
    -------
    url : required, `http://` or `https://`
    token_file : a file with one line, sent as `Authorization: Bearer`
    headers_file : a file with further headers, `Name: value` a line
    ca_file : certificates (PEM) of the authorities to trust instead of the system's
    timeout : longest time for a request with its answer; default '30 s'
    """

    def __init__(self, what: str, options: Options, reach: Reach) -> None:
        self._what = what
        self._reach = reach
        text = options.required("url", "https://example.org/in")
        try:
            self.url = parse_url(text)
        except ValueError as error:
            shown = text if "password" not in str(error) else "..."
            raise options.refuse("url", shown, str(error)) from None
        self._token = SecretFile.of_option(what, options, "token_file", reach)
        self._headers_path = _path(what, options, "headers_file", reach)
        self._ca_path = _path(what, options, "ca_file", reach)
        if self._ca_path is not None and self.url.scheme != "https":
            raise options.refuse("ca_file", str(self._ca_path), "none: the url is not https")
        self.timeout_s = options.duration_us("timeout", 30_000_000) / 1e6
        self._secret_headers: Headers = ()
        self._tls: ssl.SSLContext | None = None
        self._kept: _Kept | None = None

    def open(self) -> None:
        """Checks the address and reads the files. Blocks while a name server or file system does not answer.

        Raises
        ------
        ConnectorError
            The address may not be used, or a file cannot be read.
        """
        self._place(self.url).check()
        headers: list[tuple[str, str]] = []
        if self._token is not None:
            self._token.read()
            headers.append(("Authorization", f"Bearer {self._token.value.decode()}"))
        if self._headers_path is not None:
            headers += self._read_headers(self._headers_path)
        self._secret_headers = tuple(headers)
        if self._ca_path is not None:
            data = self._read_file(self._ca_path)
            try:
                self._tls = ssl.create_default_context(cadata=data.decode("ascii"))
            except (ssl.SSLError, UnicodeDecodeError) as error:
                raise ConnectorError(f"{self._what}: {self._ca_path} has no certificates in PEM", option="ca_file") from error
        else:
            self._tls = ssl.create_default_context()

    async def ask(self, method: str, url: Url, headers: Headers, body: bytes, answer_bytes_max: int) -> Response:
        """Sends a request and reads its answer.

        Raises
        ------
        OSError, TimeoutError, h11.RemoteProtocolError
            There is no answer; the request may have had its effect nevertheless.
        AnswerTooLargeError
            The answer is larger than `answer_bytes_max`.
        ConnectorError
            The address may not be used.
        """
        async with asyncio.timeout(self.timeout_s):
            kept, self._kept = self._kept, None
            if kept is not None and kept.origin == url.origin:
                # The server may have closed the kept connection; if so, the request is repeated on a new one.
                with contextlib.suppress(OSError, h11.RemoteProtocolError):
                    return await self._exchange(kept, method, url, headers, body, answer_bytes_max)
            elif kept is not None:
                kept.close()
            return await self._exchange(await self._connected(url), method, url, headers, body, answer_bytes_max)

    def close(self) -> None:
        """Closes the kept connection."""
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.close()

    async def _connected(self, url: Url) -> _Kept:
        place = self._place(url)
        tls = self._tls if url.scheme == "https" else None
        failure: OSError = OSError(f"{url.host} has no address")
        for address in await place.addresses(asyncio.get_running_loop()):
            try:
                name = url.host if tls is not None else None
                return _Kept(url.origin, *await asyncio.open_connection(address, url.port, ssl=tls, server_hostname=name))
            except OSError as error:
                failure = error
        raise failure

    async def _exchange(self, kept: _Kept, method: str, url: Url, headers: Headers, body: bytes, answer_bytes_max: int) -> Response:
        secret = self._secret_headers if url.origin == self.url.origin else ()
        usual = (("Host", url.authority), ("User-Agent", "sbon"), ("Accept-Encoding", "identity"))
        length = (("Content-Length", str(len(body))),) if method == "POST" else ()
        try:
            request = h11.Request(method=method, target=url.target, headers=[*usual, *length, *headers, *secret])
            response = await kept.exchange(request, body, answer_bytes_max)
        except BaseException:
            kept.close()
            raise
        if kept.renewed():
            self._kept = kept
        else:
            kept.close()
        return response

    def _place(self, url: Url) -> SocketPlace:
        return SocketPlace(self._what, url.host, url.port, self._reach, listens=False, option="url")

    def _read_headers(self, path: Path) -> list[tuple[str, str]]:
        headers = []
        for number, line in enumerate(self._read_file(path).decode("latin-1").splitlines(), 1):
            if not line.strip():
                continue
            name, colon, value = line.partition(":")
            try:
                h11.Request(method="GET", target="/", headers=[("Host", "x"), (name if colon else "", value.strip())])
            except h11.LocalProtocolError:
                told = f"{self._what}: {path}: line {number} is no header, expected Name: value"
                raise ConnectorError(told, option="headers_file") from None
            headers.append((name, value.strip()))
        return headers

    def _read_file(self, path: Path) -> bytes:
        with open_to_read(self._what, path, self._reach) as file:
            data = file.read(_FILE_BYTES_MAX + 1) or b""
        if len(data) > _FILE_BYTES_MAX:
            raise ConnectorError(f"{self._what}: {path} is larger than {_FILE_BYTES_MAX} bytes")
        return data


class _Kept:
    """A connection that is kept for further requests."""

    def __init__(self, origin: tuple[str, str, int], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.origin = origin
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES_MAX)

    async def exchange(self, request: h11.Request, body: bytes, answer_bytes_max: int) -> Response:
        parts = [self._http.send(request), self._http.send(h11.Data(data=body)) if body else b"", self._http.send(h11.EndOfMessage())]
        self._writer.write(b"".join(part or b"" for part in parts))
        writing = asyncio.ensure_future(self._writer.drain())
        try:
            return await self._answer(answer_bytes_max)
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)

    async def _answer(self, answer_bytes_max: int) -> Response:
        status, headers, parts, size, ended = 0, {}, [], 0, False
        while True:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError:
                if not ended:
                    raise
                raise ConnectionResetError(f"the connection was closed {'in the midst of' if status else 'without'} an answer") from None
            if event is h11.NEED_DATA:
                data = await self._reader.read(_READ_BYTES)
                ended = not data
                self._http.receive_data(data)
            elif isinstance(event, h11.Response):
                status = event.status_code
                headers = {bytes(name).decode("ascii"): bytes(value).decode("latin-1") for name, value in event.headers}
            elif isinstance(event, h11.Data):
                size += len(event.data)
                if size > answer_bytes_max:
                    raise AnswerTooLargeError(f"{status}, with more than {answer_bytes_max} bytes")
                parts.append(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                return Response(status, headers, b"".join(parts))
            elif isinstance(event, h11.ConnectionClosed):
                raise ConnectionResetError("the connection was closed without an answer")

    def renewed(self) -> bool:
        """Makes the connection ready for another request; False if it cannot take one."""
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE or self._reader.at_eof():
            return False
        self._http.start_next_cycle()
        return True

    def close(self) -> None:
        """Closes the connection at once."""
        self._writer.transport.abort()


def _path(what: str, options: Options, option: str, reach: Reach) -> Path | None:
    given = options.optional(option)
    return None if given is None else path_of(what, given, reach)
