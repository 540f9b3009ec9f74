"""Limits what sources and sinks may access outside the overlay: folders of files, addresses of sockets.

A statement that is submitted over an agent's own control socket and runs on that agent may access everything that the agent's user may,
because only that user can use the socket. Statements from other agents may access the folders and addresses of the table [connectors].

This module decides; `sbon_agent.connectors.opening` resolves paths and opens files, `sbon_agent.connectors.addresses` resolves names.
"""

import ipaddress
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

import msgspec

from sbon.types import NodeId

FILES_FOLDER = "files"
"""Folder in the data directory where relative paths of other agents' statements start."""
_PORT_MAX = 65_535


class AddressRange(NamedTuple):
    """A network and a range of ports."""

    network: ipaddress.IPv4Network | ipaddress.IPv6Network
    port_min: int = 0
    port_max: int = _PORT_MAX

    def has(self, address: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int) -> bool:
        """Tells whether an address and port are in the range."""
        return address.version == self.network.version and address in self.network and self.port_min <= port <= self.port_max


def parse_range(text: str) -> AddressRange:
    """Parses a network with an optional port range after it.

    Raises
    ------
    ValueError
        The text is not such a range.

    Examples
    --------
    >>> parse_range("10.0.0.0/8:9000-9999")
    AddressRange(network=IPv4Network('10.0.0.0/8'), port_min=9000, port_max=9999)
    >>> parse_range("[2001:db8::]/32:9000").port_max, parse_range("::1").network
    (9000, IPv6Network('::1/128'))
    """
    network, ports = text, ""
    if text.startswith("[") and "]" in text:
        host, _, rest = text[1:].partition("]")
        mask, _, ports = rest.partition(":")
        network = host + mask
    elif text.count(":") == 1:
        network, _, ports = text.partition(":")
    first, dash, last = ports.partition("-")
    try:
        found = ipaddress.ip_network(network)
        port_min = int(first) if ports else 0
        port_max = int(last) if dash else port_min if ports else _PORT_MAX
        if not 0 <= port_min <= port_max <= _PORT_MAX:
            raise ValueError
    except ValueError:
        raise ValueError(
            f"allow has {text!r}, expected an address or network, optionally with ports, such as 10.0.0.0/8, 192.0.2.7:9000 or [::1]:9000"
        ) from None
    return AddressRange(found, port_min, port_max)


class FileConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Files that sources and sinks of other agents may use. TOML table [connectors.file]."""

    allow: tuple[str, ...] = (FILES_FOLDER,)
    """Folders (with their subfolders) in which other agents may read, overwrite and append to files. Relative paths start in the data
    directory, and `~` is the home of the agent's user. Symbolic links are followed before the check. More: every member of the overlay can
    read and write there; none: no files for other agents. Statements submitted over this agent's own control socket and run here are not
    limited."""

    def __post_init__(self) -> None:
        for folder in self.allow:
            if not folder or "\0" in folder:
                raise ValueError(f"allow has {folder!r}, expected the path of a folder")


class TcpConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sockets that sources and sinks of other agents may use. TOML table [connectors.tcp]."""

    allow: tuple[str, ...] = ("127.0.0.0/8", "::1")
    """Addresses and networks on which other agents' sources and sinks may listen and to which they may connect, each optionally with a port
    or a range of ports: "10.0.0.0/8", "192.0.2.7:9000", "[2001:db8::]/32:9000-9999". Names are resolved before the check; listening on all
    addresses needs "0.0.0.0". More: every member can reach these addresses from this machine, past firewalls; none: no sockets for other
    agents. Statements submitted over this agent's own control socket and run here are not limited."""

    def __post_init__(self) -> None:
        for entry in self.allow:
            parse_range(entry)


class ConnectorsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Files and addresses outside the overlay that other agents' statements may use on this agent. TOML table [connectors]."""

    file: FileConfig = FileConfig()
    tcp: TcpConfig = TcpConfig()


class Reach(msgspec.Struct, frozen=True):
    """The files and addresses that one source or sink may access."""

    node: NodeId
    """The agent that accesses them, for messages."""
    base: str
    """Absolute path from which relative paths start."""
    folders: tuple[str, ...] | None = None
    """Allowed folders, absolute; None: only the user's rights limit access."""
    addresses: tuple[AddressRange, ...] | None = None
    """Allowed addresses; None: no limit."""

    def allows_address(self, address: str, port: int) -> bool:
        """Tells whether a socket may listen on a numeric address, or connect to it. Other texts are refused."""
        if self.addresses is None:
            return True
        try:
            known = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return False
        if isinstance(known, ipaddress.IPv6Address) and known.ipv4_mapped is not None:
            known = known.ipv4_mapped
        return any(allowed.has(known, port) for allowed in self.addresses)


def is_within(path: str, folders: Iterable[str]) -> bool:
    """Tells whether a path is one of the folders or below one. All must be absolute and free of symbolic links and `..`.

    Examples
    --------
    >>> is_within("/data/in/x.csv", ["/data/in"]), is_within("/data/inner", ["/data/in"]), is_within("/data", ["/"])
    (True, False, True)
    """
    place = PurePosixPath(path)
    return ".." not in place.parts and any(place.is_relative_to(folder) for folder in folders)


def reach_of_others(config: ConnectorsConfig, node: NodeId, data_dir: str, folders: Sequence[str]) -> Reach:
    """Returns the files and addresses that statements of other agents may access.

    Parameters
    ----------
    data_dir : absolute path of the data directory
    folders : the folders of `config.file.allow`, as absolute paths
    """
    base = str(PurePosixPath(data_dir) / FILES_FOLDER)
    return Reach(node, base, tuple(folders), tuple(parse_range(entry) for entry in config.tcp.allow))
