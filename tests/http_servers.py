"""A server with prepared answers, for tests of HTTP clients, and certificates."""

import http.server
import json
import queue
import ssl
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Got(NamedTuple):
    """A received request."""

    path: str
    headers: dict[str, str]
    body: bytes


class _Listener(http.server.ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says nothing of a client that leaves, or refuses the certificate; other errors are errors of the test."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class Server:
    """Gives the prepared answers in turn, then 200 to POST and `page` to GET. None: closes without an answer; "silent": never answers."""

    def __init__(self, *answers: Any, tls: ssl.SSLContext | None = None) -> None:
        self.got: list[Got] = []
        self.page: tuple[int, bytes, dict[str, str]] = (200, b"", {"Content-Type": "application/x-ndjson"})
        self.connections = self.held = 0
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for answer in answers:
            self._answers.put(answer)
        self._end = threading.Event()
        self._server = _Listener(("127.0.0.1", 0), self._handler())
        if tls is not None:  # the handshake is part of a handler's first read: a client that is silent holds up nobody else
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/out?x=1"

    @property
    def rows(self) -> list[int]:
        return [json.loads(line)["n"] for got in self.got for line in got.body.splitlines()]

    def stop(self) -> None:
        self._end.set()
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                outer.connections += 1
                super().setup()

            def do_POST(self) -> None:
                self.reply(self.rfile.read(int(self.headers["Content-Length"])), 200)

            def do_GET(self) -> None:
                known = self.headers.get("If-None-Match")
                page = outer.page
                self.reply(b"", 304 if known and known == page[2].get("ETag") else page)

            def reply(self, body: bytes, usual: Any) -> None:
                try:
                    answer = outer._answers.get_nowait()
                except queue.Empty:
                    answer = usual
                if answer == "silent":
                    outer.held += 1
                    outer._end.wait(60)
                    return
                outer.got.append(Got(self.path, {name.lower(): value for name, value in self.headers.items()}, body))
                if answer is None:
                    self.close_connection = True
                    return
                status, text, headers = answer if isinstance(answer, tuple) else (answer, b"", {})
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(text))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, format: str, *args: Any) -> None:
                """Logs nothing."""

        return Handler


@contextmanager
def serving(*answers: Any, **how: Any) -> Iterator[Server]:
    server = Server(*answers, **how)
    try:
        yield server
    finally:
        server.stop()


def certificate(folder: Path) -> ssl.SSLContext:
    """Returns the TLS settings of a server with a self-signed certificate for localhost, written to `ca.pem`."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = (
        builder.serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
    )
    names = x509.SubjectAlternativeName([x509.DNSName("localhost")])
    builder = builder.add_extension(names, critical=False).add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    made = builder.sign(key, hashes.SHA256())
    (folder / "ca.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    pem = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "key.pem").write_bytes(key.private_bytes(*pem))
    (folder / "key.pem").chmod(0o600)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(folder / "ca.pem", folder / "key.pem")
    return tls
