"""The broker of an `mqtt` source or sink, and the client's identity there: options that source and sink share, checked against the reach of
the statement.

Options
-------
broker : required, `host:port` (the port may be left out: 1883, or 8883 with TLS)
client_id : name under which the broker keeps the session; no other client may have it. Default: `sbon-NODE-NAME`, for a source followed by
    a digest of its topics. Each node that runs the source needs its own: `{node}` stands for the node's name
username : name of the user; default: none
password_file : file whose first line is the password. Only its owner may have read access
password_variable : the environment variable of the agent that holds the password; only for statements given over this agent's own
    control socket
tls : `true` or `false` (default)
ca_file : PEM certificates of the authorities to trust; default: those of the system. Only with TLS

There is no option for the password itself: statements are shown to every member of the overlay.

Statements of other agents may connect to the addresses of the setting `connectors.tcp.allow`, and read password and certificates from the
folders of `connectors.file.allow`.
"""

from __future__ import annotations

import copy
import os
import re
import ssl
from collections.abc import Mapping

from sbon.errors import ConnectorError
from sbon.options import Options
from sbon.reach import Reach
from sbon_agent.connectors.addresses import SocketPlace
from sbon_agent.connectors.base import ConnectorContext
from sbon_agent.connectors.opening import open_to_read, path_of
from sbon_agent.mqtt import open_to_others, tls_context

PORTS = {False: 1883, True: 8883}
SECRET_BYTES_MAX = 64 * 1024
"""Most bytes of a file with the password or certificates."""
CLIENT_ID_BYTES_MAX = 1024
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_BROKER = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<host>[^\s:/@\[\]]+))(?::(?P<port>\d{1,5}))?")


class BrokerSettings:
    """Address of the broker, and the identity of this client. `str` of it shows no password."""

    def __init__(self, what: str, options: Options, client_id: str, context: ConnectorContext) -> None:
        self.what = what
        self._reach: Reach = context.reach
        if options.given("password"):
            raise ConnectorError(
                f"{what}: option password would be shown to every member of the overlay: write it to a file that only its owner can read, "
                "and password_file = 'path'",
                option="password",
            )
        self.tls = options.flag("tls", False)
        self.host, self.port = _address(options, self.tls)
        self.place = SocketPlace(what, self.host, self.port, self._reach, listens=False, option="broker")
        """Address of the broker."""
        self.client_id = options.text("client_id", client_id).replace("{node}", context.node)
        if not self.client_id or "\0" in self.client_id or len(self.client_id.encode()) > CLIENT_ID_BYTES_MAX:
            raise options.refuse("client_id", self.client_id, f"1 to {CLIENT_ID_BYTES_MAX} bytes, such as 'press-{{node}}'")
        self.username = options.optional("username")
        self._password_file = options.optional("password_file")
        self._variable = options.optional("password_variable")
        self._ca_file = options.optional("ca_file")
        self._password: str | None = None
        self._ca_pem: str | None = None
        self._check(options)

    def _check(self, options: Options) -> None:
        if self._password_file is not None and self._variable is not None:
            raise options.refuse("password_variable", self._variable, "none together with password_file")
        if self.username is None and (self._password_file is not None or self._variable is not None):
            raise ConnectorError(f"{self.what}: a password needs option username: write username = 'name'", option="username")
        if self._variable is not None:
            if _VARIABLE.fullmatch(self._variable) is None:
                raise options.refuse("password_variable", self._variable, "the name of an environment variable, such as 'PLANT_PASSWORD'")
            if self._reach.folders is not None:
                raise ConnectorError(
                    f"{self.what}: other agents may not read the environment of {self._reach.node}: write password_file = 'path' instead",
                    option="password_variable",
                )
        if self._ca_file is not None and not self.tls:
            raise options.refuse("ca_file", self._ca_file, "tls = 'true' as well")

    def __str__(self) -> str:
        """Returns the broker's URL, for logs and messages."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'mqtts' if self.tls else 'mqtt'}://{host}:{self.port}"

    def with_number(self, number: int) -> BrokerSettings:
        """Returns a copy with another client id, for a further connection."""
        other = copy.copy(self)
        other.client_id = f"{self.client_id}-{number}"
        return other

    def open(self, environment: Mapping[str, str] = os.environ) -> None:
        """Reads password and certificates, and checks whether the broker's address may be used. May block.

        Raises
        ------
        ConnectorError
            A file cannot be read, others can read the password, or the address may not be used.
        """
        if self._variable is not None:
            self._password = environment.get(self._variable)
            if self._password is None:
                raise ConnectorError(
                    f"{self.what}: the agent's environment has no variable {self._variable}: set it where the agent starts",
                    option="password_variable",
                )
        if self._password_file is not None:
            self._password = self._read("password_file", self._password_file, secret=True).partition("\n")[0].rstrip("\r")
        if self._ca_file is not None:
            self._ca_pem = self._read("ca_file", self._ca_file, secret=False)
        if self.tls:
            self.tls_context()
        self.place.check()

    def credentials(self) -> dict[str, str | None]:
        """Returns user name and password for the client library; never show them."""
        return {} if self.username is None else {"username": self.username, "password": self._password}

    def tls_context(self) -> ssl.SSLContext | None:
        """Returns the TLS context that checks the broker's certificate; None without TLS.

        Raises
        ------
        ConnectorError
            `ca_file` holds no certificates.
        """
        if not self.tls:
            return None
        try:
            return tls_context(self._ca_pem, self.host)
        except ValueError as problem:
            raise ConnectorError(f"{self.what}: {self._ca_file} holds no certificates (PEM): {problem}", option="ca_file") from None

    def _read(self, option: str, text: str, *, secret: bool) -> str:
        path = path_of(self.what, text, self._reach)
        with open_to_read(self.what, path, self._reach) as file:
            mode = os.fstat(file.fileno()).st_mode & 0o777
            if secret and open_to_others(mode):
                raise ConnectorError(
                    f"{self.what}: others can read the password in {path} (mode {mode:04o}): write chmod 600 {path}", option=option
                )
            try:
                data = file.read(SECRET_BYTES_MAX + 1)
                if len(data) > SECRET_BYTES_MAX:
                    raise ConnectorError(f"{self.what}: {path} has more than {SECRET_BYTES_MAX} bytes", option=option)
                return data.decode()
            except (OSError, UnicodeDecodeError) as problem:
                reason = problem.strerror if isinstance(problem, OSError) else "it is not UTF-8 text"
                raise ConnectorError(f"{self.what}: {path} cannot be read: {reason}", option=option) from None


def _address(options: Options, tls: bool) -> tuple[str, int]:
    given = options.required("broker", "127.0.0.1:1883")
    match = _BROKER.fullmatch(given.strip())
    if match is None:
        hint = ", without a scheme (for TLS write tls = 'true')" if "://" in given else ""
        hint = ", without user and password (write username and password_file)" if "@" in given else hint
        shown = given.rpartition("@")[2] if "@" in given else given  # the part before the @ may contain a password
        raise options.refuse("broker", shown, f"'host:port', such as 'broker.example:1883'{hint}")
    port = int(match["port"] or PORTS[tls])
    if not 1 <= port <= 65_535:
        raise options.refuse("broker", given, "a port from 1 to 65535")
    return match["six"] or match["host"], port
