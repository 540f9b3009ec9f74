"""Addresses that connectors listen on and connect to: names are resolved, and the results are checked against the statement's reach."""

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
    what : `source trades`, for messages
    option : the option that has the host, for messages
    """

    def __init__(self, what: str, host: str, port: int, reach: Reach, *, listens: bool, option: str = "host") -> None:
        self.host = host
        self.port = port
        self._what = what
        self._reach = reach
        self._does = "listen on" if listens else "connect to"
        self.option = option

    def check(self) -> None:
        """Looks the host up and checks whether its addresses may be used. Blocks until the name is resolved.

        Raises
        ------
        ConnectorError
            None of them may; the line names the setting to change.
        """
        if self._reach.addresses is None:
            return
        with contextlib.suppress(OSError):  # the name may be known later
            self._usable(socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM))

    async def addresses(self, loop: asyncio.AbstractEventLoop) -> list[str]:
        """Returns what to listen on, or where to connect, checked: pass these on, as a name looked up again may lead elsewhere.

        Raises
        ------
        ConnectorError
            As for `check`.
        OSError
            The name cannot be resolved.
        """
        if self._reach.addresses is None:
            return [self.host]
        return self._usable(await loop.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM))

    def _usable(self, found: Sequence[tuple[Any, ...]]) -> list[str]:
        addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
        usable = [address for address in addresses if self._reach.allows_address(address, self.port)]
        if not usable:
            node = self._reach.node
            raise ConnectorError(
                f"{self._what}: other agents may not have {node} {self._does} {self.host}:{self.port}: to allow it, add its address to "
                f"connectors.tcp.allow in the configuration of {node}",
                option=self.option,
            )
        return usable


def loop_of(what: str, connector: str, context: ConnectorContext) -> asyncio.AbstractEventLoop:
    """Returns the event loop of an agent on real sockets.

    Raises
    ------
    ConnectorError
        The agent is in a virtual world, which has none.
    """
    loop = getattr(context.host, "loop", None)
    if not isinstance(loop, asyncio.AbstractEventLoop):
        raise ConnectorError(
            f"{what}: connector '{connector}' needs real sockets, and this world has none: use 'datagen', 'file' or 'discard'"
        )
    return loop
