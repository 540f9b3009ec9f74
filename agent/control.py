"""The control socket: a Unix socket in the data directory through which people and scripts talk to their agent. The daemon opens it.

Only the owner may connect (mode 0600). A lock on the data directory makes sure that only one agent owns it; the holder of the lock may
remove a socket that a crashed agent has left. Each client's requests in progress, and the data waiting to be sent to it, are limited.

    open --socket or directory deleted--> lost --lock taken again, socket made again--> open
    lost --another agent owns the directory, or it cannot be made--> lost; logged, and tried again
"""

import asyncio
import contextlib
import fcntl
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, cast

import msgspec

from sbon.cli.client import short_socket_path
from sbon.control import REQUEST_BYTES_MAX, SOCKET_NAME, ControlReply, ControlRequest, FrameReader, decode, encode, refusal
from sbon.errors import ConfigError, RemoteProtocolError, SbonError
from sbon_agent.logs import structlog

LOCK_NAME = "agent.lock"
WATCH_S = 1.0
"""Seconds between checks that the socket still exists. Longer: the agent is unreachable for longer after somebody has deleted it."""


class ControlConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of the control socket. TOML table [control]."""

    clients_max: int = 64
    """Most clients at a time; further ones are disconnected at once."""
    requests_max: int = 32
    """Most requests of one client in progress; further ones are refused."""
    buffer_bytes_max: int = 16 * 2**20
    """Most bytes waiting to be sent to one client. A `tail` that reads more slowly than rows arrive ends with an error when the limit is
    exceeded."""

    def __post_init__(self) -> None:
        for name, value in (("clients_max", self.clients_max), ("requests_max", self.requests_max)):
            if not 1 <= value <= 10_000:
                raise ValueError(f"{name} = {value}, expected 1 to 10000")
        if self.buffer_bytes_max < 2**16:
            raise ValueError(f"buffer_bytes_max = {self.buffer_bytes_max}, expected at least 65536")


Reply = Callable[[ControlReply], None]
Cancel = Callable[[], None]


class Controlled(Protocol):
    """Answers requests: the agent, or a fake in tests."""

    def control(self, request: ControlRequest, reply: Reply) -> Cancel:
        """Answers through `reply`, now or later, until a final reply is sent or the returned function is called."""


class DataDirectory:
    """Sole ownership of a data directory while the object is open. The kernel releases the lock when the process ends, in whatever way.

    Raises
    ------
    ConfigError
        The directory cannot be made or written, or another agent owns it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = _locked(path)

    def hold(self) -> None:
        """Takes ownership again if somebody has deleted the directory or its contents.

        Raises
        ------
        ConfigError
            Another agent now owns the directory, or it cannot be made.
        """
        with contextlib.suppress(OSError):
            if os.path.samestat(os.stat(self.path / LOCK_NAME), os.fstat(self._lock)):
                return
        fresh = _locked(self.path)
        os.close(self._lock)
        self._lock = fresh

    def close(self) -> None:
        """Releases the directory."""
        os.close(self._lock)


def _locked(path: Path) -> int:
    """Opens and locks the lock file of a data directory, making the directory if necessary; returns the descriptor."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(path / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as problem:
        raise ConfigError(f"cannot use the data directory {path}: {problem.strerror}; choose another with --data-dir") from problem
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as problem:
        owner = os.pread(lock, 32, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(lock)
        raise ConfigError(
            f"the data directory {path} belongs to a running agent (process {owner}); stop it or choose another with --data-dir"
        ) from problem
    with contextlib.suppress(OSError):  # the process id only informs the next agent that tries; a full disk must not prevent a start
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock


class ControlServer:
    """Listens on the control socket, passes requests on, and makes the socket again if somebody deletes it.

    Parameters
    ----------
    directory : folder of the socket
    agent : answers the requests
    hold : makes sure that the directory exists and that this agent owns it; raises ConfigError otherwise
    """

    def __init__(self, directory: Path, agent: Controlled, config: ControlConfig, hold: Callable[[], None] = lambda: None) -> None:
        self.path = directory / SOCKET_NAME
        self._agent = agent
        self._config = config
        self._clients: list[_Client] = []
        self._hold = hold
        self._server: asyncio.Server | None = None
        self._bound: os.stat_result | None = None
        """File system status of the bound socket."""
        self._watching: asyncio.TimerHandle | None = None
        self._opening: asyncio.Task[None] | None = None
        self._lost = False
        self._log = structlog.get_logger("control")
        self.counters = {"control_clients_refused": 0, "control_requests": 0, "control_requests_bad": 0, "control_clients_too_slow": 0}

    async def start(self) -> None:
        """Opens the socket.

        Raises
        ------
        ConfigError
            The socket cannot be made.
        """
        await self._open()
        self._watch()

    async def _open(self) -> None:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        mask = os.umask(0o177)
        try:
            self.path.unlink(missing_ok=True)
            with short_socket_path(self.path) as path:
                listener.bind(path)
            self._bound = self.path.stat()
        except OSError as problem:
            listener.close()
            raise ConfigError(f"cannot open the control socket {self.path}: {problem.strerror or problem}") from problem
        finally:
            os.umask(mask)
        before, self._server = self._server, await asyncio.get_running_loop().create_unix_server(self._client, sock=listener)
        if before is not None:
            before.close()

    def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        self._watching = loop.call_later(WATCH_S, self._watch)
        if not self._is_there() and (self._opening is None or self._opening.done()):
            self._opening = loop.create_task(self._open_again())

    def _is_there(self) -> bool:
        with contextlib.suppress(OSError):
            return self._bound is not None and os.path.samestat(self.path.stat(), self._bound)
        return False

    async def _open_again(self) -> None:
        """Makes the socket again; connected clients are not affected."""
        try:
            self._hold()
            await self._open()
        except ConfigError as problem:
            if not self._lost:
                self._log.error("control.socket_lost", path=str(self.path), reason=str(problem), doing="trying again")
            self._lost = True
            return
        self._lost = False
        self._log.warning("control.socket_made_again", path=str(self.path), reason="somebody had deleted it")

    async def close(self) -> None:
        """Closes the socket, and each client's connection once its replies are sent."""
        if self._watching is not None:
            self._watching.cancel()
        if self._opening is not None:
            self._opening.cancel()
        if self._server is None:
            return
        self._server.close()
        for client in list(self._clients):
            client.close()
        self._server = None
        if self._is_there():
            self.path.unlink(missing_ok=True)

    def _client(self) -> asyncio.Protocol:
        return _Client(self._agent, self._config, self._clients, self.counters)


class _Client(asyncio.Protocol):
    """One client's connection."""

    def __init__(self, agent: Controlled, config: ControlConfig, clients: list["_Client"], counters: dict[str, int]) -> None:
        self._agent, self._config, self._clients, self._counters = agent, config, clients, counters
        self._reader = FrameReader(REQUEST_BYTES_MAX)
        self._under_way: dict[int, Cancel | None] = {}
        self._transport: asyncio.Transport | None = None
        self._log = structlog.get_logger("control")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's transports do not inherit from asyncio's
        if len(self._clients) >= self._config.clients_max:
            self._counters["control_clients_refused"] += 1
            transport.write(encode(ControlReply(0, final=True, error=f"the agent has {len(self._clients)} clients already; close some")))
            transport.close()
            return
        self._transport = transport
        self._clients.append(self)

    def data_received(self, data: bytes) -> None:
        if self._transport is None:
            return
        try:
            for body in self._reader.receive(data):
                self._request(decode(body, ControlRequest))
        except RemoteProtocolError as problem:
            self._counters["control_requests_bad"] += 1
            self._log.warning("control.request_refused", reason=str(problem))
            self._write(refusal(0, problem))
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self in self._clients:
            self._clients.remove(self)
        self._transport = None
        self._cancel_all()

    def close(self) -> None:
        """Closes the connection once its replies are sent."""
        if self._transport is not None:
            self._transport.close()
        self._cancel_all()

    def _cancel_all(self) -> None:
        under_way, self._under_way = self._under_way, {}
        for cancel in under_way.values():
            if cancel is not None:
                cancel()

    def _request(self, request: ControlRequest) -> None:
        self._counters["control_requests"] += 1
        if request.id in self._under_way:
            self._write(ControlReply(request.id, final=True, error=f"request {request.id} is under way already; use another number"))
            return
        if len(self._under_way) >= self._config.requests_max:
            self._write(ControlReply(request.id, final=True, error=f"{len(self._under_way)} requests are under way already; wait for one"))
            return
        self._under_way[request.id] = None
        try:
            cancel = self._agent.control(request, self._reply_to(request.id))
        except SbonError as problem:
            self._under_way.pop(request.id, None)
            self._write(refusal(request.id, problem))
            return
        except Exception as problem:
            # A bug in one command must not end the agent: the client is told, and the log has the traceback.
            self._under_way.pop(request.id, None)
            self._log.exception("control.command_failed", command=request.command)
            text = f"{request.command} failed inside the agent ({type(problem).__name__}: {problem}); its log has the details"
            self._write(ControlReply(request.id, final=True, error=text))
            return
        if request.id in self._under_way:
            self._under_way[request.id] = cancel

    def _reply_to(self, request_id: int) -> Reply:
        def reply(message: ControlReply) -> None:
            if request_id not in self._under_way:
                return
            if self._transport is not None and self._transport.get_write_buffer_size() > self._config.buffer_bytes_max:
                self._counters["control_clients_too_slow"] += 1
                cancel = self._under_way.pop(request_id)
                text = "rows arrive faster than they are read; filter the query or give it a file sink"
                self._write(ControlReply(request_id, final=True, error=text))
                if cancel is not None:
                    cancel()
                return
            if message.final:
                self._under_way.pop(request_id)
            self._write(message)

        return reply

    def _write(self, message: ControlReply) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode(message))
