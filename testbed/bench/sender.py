"""A process that sends the rows of a file to a source of an agent: `python -m sbon_testbed.bench.sender tcp PORT FILE`.

It connects, says `ready` on standard output, and sends when a line comes on standard input; it ends when all has been sent, or with the
process that started it.
"""

import os
import socket
import sys
import time
from pathlib import Path

from sbon_testbed.kernel import die_with_parent

CONNECT_TIMEOUT_S = 30.0
RETRY_S = 0.02


def connected(port: int) -> socket.socket:
    """A connection to a port of loopback, as soon as somebody listens there."""
    deadline = time.monotonic() + CONNECT_TIMEOUT_S
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(RETRY_S)


def wait_for_start() -> None:
    """Tell that all is ready, and wait for the word to begin; end if the other side is gone."""
    print("ready", flush=True)
    if not sys.stdin.readline():
        sys.exit("nobody waits for rows any more")


def tcp(port: int, path: Path) -> None:
    """Send the file's lines as they are."""
    with connected(port) as line, path.open("rb") as file:
        wait_for_start()
        line.sendfile(file)


def main() -> None:
    """Send what the arguments ask for."""
    parent = os.getppid()
    die_with_parent()
    if os.getppid() != parent:
        sys.exit("the process that started this one has ended")
    kind, port, path = sys.argv[1:]
    {"tcp": tcp}[kind](int(port), Path(path))


if __name__ == "__main__":
    main()
