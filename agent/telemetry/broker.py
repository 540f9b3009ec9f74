"""The MQTT broker for telemetry: its address, the credentials, and the format of messages.

The publisher (`sbon_agent.telemetry.mqtt`) and the collector (`sbon_agent.telemetry.collect`) use it.

A message on the topic PREFIX/telemetry/AGENT holds a batch of rows of one run of one agent, in the order of their numbers. It is sent again
until the broker has acknowledged it (QoS 1), so it may arrive twice: the receiver drops rows whose numbers are not above the last.
"""

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

from sbon.errors import ConfigError
from sbon.types import NodeId
from sbon_agent.mqtt import KEEPALIVE_S, TIMEOUT_S, open_to_others, tls_context
from sbon_agent.telemetry.spool import Line

PASSWORD_VARIABLE = "SBON_MQTT_PASSWORD"
PORTS = {"mqtt": 1883, "mqtts": 8883}
_PREFIX = re.compile(r"[^+#\x00]{1,200}")


class Batch(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One message, encoded as MessagePack."""

    version: int
    agent: NodeId
    start: str
    lines: list[Line]


class Broker(msgspec.Struct, frozen=True):
    """Address of a broker and the user name there; never the password."""

    host: str
    port: int
    tls: bool
    user: str
    prefix: str

    def topic(self, agent: NodeId) -> str:
        """Returns the topic of an agent's telemetry; "+" stands for all agents."""
        return f"{self.prefix}/telemetry/{agent}"

    def __str__(self) -> str:
        """Returns the address, for logs."""
        return f"{'mqtts' if self.tls else 'mqtt'}://{self.host}:{self.port}/{self.prefix}"


def parse_broker(url: str) -> Broker:
    """Parses mqtt://[USER@]HOST[:PORT]/PREFIX (mqtts:// with TLS).

    Raises
    ------
    ConfigError
        The text is not such an address, or contains a password.

    Examples
    --------
    >>> print(parse_broker("mqtts://ams@broker.example/plant/7"))
    mqtts://broker.example:8883/plant/7
    """
    expected = "expected mqtt://[USER@]HOST[:PORT]/PREFIX, or mqtts:// for TLS"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ConfigError(f"the broker's address is invalid; {expected}") from None
    if parts.password is not None:
        raise ConfigError(f"the broker's address has a password in it, which would be shown: put it in a file, or in {PASSWORD_VARIABLE}")
    prefix = unquote(parts.path).strip("/")
    if parts.scheme not in PORTS or not parts.hostname or not _PREFIX.fullmatch(prefix) or parts.query or parts.fragment:
        raise ConfigError(f"{url!r} is no broker's address; {expected}")
    return Broker(parts.hostname, port or PORTS[parts.scheme], parts.scheme == "mqtts", unquote(parts.username or ""), prefix)


class Access(msgspec.Struct, frozen=True):
    """Credentials for the broker. Their text form shows no password."""

    password: str | None
    ca_file: str

    def __repr__(self) -> str:
        return f"Access(password={'given' if self.password else None}, ca_file={self.ca_file!r})"

    __str__ = __repr__


def access(password_file: str, ca_file: str, environment: Mapping[str, str] = os.environ) -> Access:
    """Reads the password, from the file if one is given, otherwise from the environment, and checks that the certificates' file exists.

    Raises
    ------
    ConfigError
        A file cannot be read, or others can read the password.
    """
    password = environment.get(PASSWORD_VARIABLE)
    if password_file:
        path = Path(password_file).expanduser()
        try:
            mode = stat.S_IMODE(path.stat().st_mode)
            password = path.read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as problem:
            reason = problem.strerror if isinstance(problem, OSError) else "not UTF-8 text"
            raise ConfigError(f"cannot read the broker's password file {path}: {reason}") from None
        if open_to_others(mode):
            raise ConfigError(f"others can read the broker's password file {path} (mode {mode:04o}): chmod 600 {path}")
    if ca_file and not Path(ca_file).expanduser().is_file():
        raise ConfigError(f"there is no certificates' file {ca_file}, expected PEM")
    return Access(password, str(Path(ca_file).expanduser()) if ca_file else "")


def client_options(broker: Broker, let_in: Access) -> dict[str, Any]:
    """Returns options of `aiomqtt.Client`, without identifier and session.

    Raises
    ------
    ConfigError
        The certificates' file is unreadable or holds no certificates.
    """
    options: dict[str, Any] = {"hostname": broker.host, "port": broker.port, "timeout": TIMEOUT_S, "keepalive": KEEPALIVE_S}
    if broker.user:
        options |= {"username": broker.user, "password": let_in.password}
    if broker.tls:
        try:
            options["tls_context"] = tls_context(Path(let_in.ca_file).read_text(encoding="utf-8") if let_in.ca_file else None)
        except (ValueError, OSError) as problem:
            raise ConfigError(f"the certificates' file {let_in.ca_file} holds no certificates: {problem}") from None
    return options
