"""A synchronous client of an agent's control socket, for the command line, the testbed and scripts.

with ControlClient(find_socket()) as agent:
    print(agent.ask("status")["name"])
    for rows in agent.stream("tail", query="load_by_region"):
        ...
"""

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sbon.control import DEFAULT_DATA_DIR, REPLY_BYTES_MAX, SOCKET_NAME, ControlReply, ControlRequest, FrameReader, decode, encode
from sbon.errors import RemoteProtocolError, SbonError

SOCKET_PATH_BYTES_MAX = 107
"""Most bytes of a Unix socket's path, a limit of the kernel."""


class UnreachableError(SbonError):
    """No agent answers at the socket; the message says why and what to do."""


class RefusedError(SbonError):
    """The agent understood the request and refused it.

    Parameters
    ----------
    message : the agent's sentence
    place : line and column, from 1, in the SQL text that was sent
    """

    def __init__(self, message: str, place: tuple[int, int] | None = None) -> None:
        self.message, self.place = message, place
        super().__init__(message)


def find_socket(chosen: str | None = None) -> Path:
    """Returns the control socket: `chosen` (a socket or a data directory), else `$SBON_SOCKET`, else that of the default data directory."""
    path = Path(chosen or os.environ.get("SBON_SOCKET") or DEFAULT_DATA_DIR).expanduser()
    return path / SOCKET_NAME if path.is_dir() or not (chosen or os.environ.get("SBON_SOCKET")) else path


class ControlClient:
    """One connection to an agent. Requests are answered one after another.

    Parameters
    ----------
    path : path of the socket
    timeout_s : longest wait for the agent, except in streams, where silence is normal

    Raises
    ------
    UnreachableError
        Nobody listens there, or the socket is another user's.
    """

    def __init__(self, path: str | Path, timeout_s: float = 30.0) -> None:
        self.path = Path(path)
        self._timeout_s = timeout_s
        self._reader = FrameReader(REPLY_BYTES_MAX)
        self._replies: list[ControlReply] = []
        self._last_id = 0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(timeout_s)
        try:
            with short_socket_path(self.path) as short:
                self._socket.connect(short)
        except OSError as problem:
            self._socket.close()
            raise UnreachableError(_why_unreachable(self.path, problem)) from problem

    def __enter__(self) -> "ControlClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection; the agent ends streams."""
        self._socket.close()

    def ask(self, command: str, **arguments: Any) -> Any:
        """Returns the result of a command that has one reply.

        Raises
        ------
        RefusedError
            The agent refused the command.
        UnreachableError
            The agent went away or does not answer in time.
        """
        result = None
        for reply in self._replies_to(command, arguments, self._timeout_s):
            result = reply.result
        return result

    def tell(self, command: str, **arguments: Any) -> None:
        """Sends a command without waiting for the result.

        Raises
        ------
        UnreachableError
            The agent has gone away.
        """
        self._last_id += 1
        try:
            self._socket.sendall(encode(ControlRequest(self._last_id, command, arguments)))
        except OSError as problem:
            raise UnreachableError(_why_unreachable(self.path, problem)) from problem

    def stream(self, command: str, **arguments: Any) -> Iterator[Any]:
        """Yields the results of a command that has many replies, as they arrive; closing the iterator closes the connection.

        Raises
        ------
        RefusedError, UnreachableError
            As for `ask`.
        """
        replies = self._replies_to(command, arguments, None)
        finished = False
        try:
            for reply in replies:
                finished = reply.final
                if reply.result is not None:
                    yield reply.result
        finally:
            if not finished:
                self.close()

    def _replies_to(self, command: str, arguments: dict[str, Any], timeout_s: float | None) -> Iterator[ControlReply]:
        self._last_id += 1
        self._socket.settimeout(timeout_s)
        try:
            # Arguments that are None are omitted: absent and null mean the same, and fewer values can be misread.
            given = {name: value for name, value in arguments.items() if value is not None}
            self._socket.sendall(encode(ControlRequest(self._last_id, command, given)))
            while True:
                reply = self._next_reply()
                if reply.id not in (self._last_id, 0):
                    continue
                if reply.error is not None:
                    raise RefusedError(reply.error, reply.place)
                yield reply
                if reply.final:
                    return
        except TimeoutError as problem:
            raise UnreachableError(
                f"the agent at {self.path} has not answered {command} within {timeout_s:g} s; is it overloaded?"
            ) from problem
        except OSError as problem:
            raise UnreachableError(f"the agent at {self.path} hung up ({problem.strerror or problem}); see its log") from problem

    def _next_reply(self) -> ControlReply:
        while not self._replies:
            data = self._socket.recv(1 << 18)
            if not data:
                raise UnreachableError(f"the agent at {self.path} stopped while it was answering; see its log")
            try:
                self._replies += [decode(body, ControlReply) for body in self._reader.receive(data)]
            except RemoteProtocolError as problem:
                raise UnreachableError(f"the program that answers at {self.path} is no sbon agent of this version ({problem})") from problem
        return self._replies.pop(0)


@contextlib.contextmanager
def short_socket_path(path: Path) -> Iterator[str]:
    """Yields a name of the socket at `path` that fits the kernel's limit, by way of an open directory if the path is too long."""
    if len(os.fsencode(path)) <= SOCKET_PATH_BYTES_MAX:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


def _why_unreachable(path: Path, problem: OSError) -> str:
    if isinstance(problem, FileNotFoundError):
        return f"no agent at {path}; start one with `sbon agent`, or name its socket with --socket or SBON_SOCKET"
    if isinstance(problem, ConnectionRefusedError):
        return f"the agent at {path} is not running (it left its socket behind); start it again with `sbon agent`"
    if isinstance(problem, PermissionError):
        return f"{path} belongs to another user; run the command as the agent's user (sudo -u ...)"
    return f"cannot reach an agent at {path}: {problem.strerror or problem}"
