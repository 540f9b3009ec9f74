"""Resolves the host names that connectors listen on or connect to, and checks the addresses against what the statement may access."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Sequence
from typing import Any

from sbon.errors import ConnectorError
from sbon.reach import Reach
from sbon_agent.connectors.base import ConnectorContext


class SocketPlace:
    """A host and port to listen on or to connect to.

    Parameters
    ----------
    what : the connector's name in messages, such as `source trades`
    option : name of the option with the host, for messages
    """

    def __init__(self, what: str, host: str, port: int, reach: Reach, *, listens: bool, option: str = "host") -> None:
        self.host = host
        self.port = port
        self.what = what
        self._reach = reach
        self._does = "listen on" if listens else "connect to"
        self.option = option

    def check(self) -> None:
        """Resolves the host and checks whether its addresses may be used. Blocks until the name is resolved.

        Raises
        ------
        ConnectorError
            None of the addresses may be used; the message names the setting to change.
        """
        if self._reach.addresses is None:
            return
        with contextlib.suppress(OSError):  # the name may become known later
            self.usable(_addresses(socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)))

    async def addresses(self, loop: asyncio.AbstractEventLoop) -> list[str]:
        """Returns the checked addresses to listen on or to connect to.

        Use these, because a name that is resolved again may lead elsewhere.

        Raises
        ------
        ConnectorError
            As for `check`.
        OSError
            The name cannot be resolved.
        """
        if self._reach.addresses is None:
            return [self.host]
        return self.usable(_addresses(await loop.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)))

    def usable(self, addresses: Sequence[str]) -> list[str]:
        """Returns those of the addresses, as numbers, that may be used.

        Raises
        ------
        ConnectorError
            None of them may be used.
        """
        usable = [address for address in addresses if self._reach.allows_address(address, self.port)]
        if not usable:
            node = self._reach.node
            raise ConnectorError(
                f"{self.what}: other agents may not have {node} {self._does} {self.host}:{self.port}: to allow it, add its address to "
                f"connectors.tcp.allow in the configuration of {node}",
                option=self.option,
            )
        return usable


def _addresses(found: Sequence[tuple[Any, ...]]) -> list[str]:
    """Returns the addresses that a resolver has found, each once."""
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def loop_of(what: str, connector: str, context: ConnectorContext) -> asyncio.AbstractEventLoop:
    """Returns the event loop of an agent on real sockets.

    Raises
    ------
    ConnectorError
        The agent runs in the simulation, which has no event loop.
    """
    loop = getattr(context.host, "loop", None)
    if not isinstance(loop, asyncio.AbstractEventLoop):
        raise ConnectorError(
            f"{what}: connector '{connector}' needs real sockets, and the simulation has none: use 'datagen', 'file', 'tcp' or 'discard'"
        )
    return loop
