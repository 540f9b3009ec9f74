"""Measures the machine's own latency of a lone message: lines over one asyncio TCP connection to another process, without sbon.

Run as a module, this is the other process: it prints its port, reads the lone rows of `sbon bench link` until the connection ends, and
prints the age of each row in ms, as JSON.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime

from sbon.errors import SbonError

END_TIMEOUT_S = 30.0


def ages_ms(write: Callable[[int], None]) -> list[float]:
    """Returns the age in ms of each line that `write` sends; `write` gets the port to connect to, and returns when it has sent all lines.

    Raises
    ------
    SbonError
        The process ends too early, or does not end.
    """
    with subprocess.Popen([sys.executable, "-P", "-m", __name__], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            write(int(process.stdout.readline() or 0))
            told, _ = process.communicate(timeout=END_TIMEOUT_S)
            found: list[float] = json.loads(told)
        except (OSError, ValueError, subprocess.TimeoutExpired) as problem:
            raise SbonError(f"the reader of the bare TCP connection gave no ages: {problem}") from problem
        finally:
            process.kill()  # if the writer has failed, nothing ends its connection
    return found


class _Reader(asyncio.Protocol):
    def __init__(self, ended: "asyncio.Future[None]") -> None:
        self.ages_ms: list[float] = []
        self._ended = ended

    def data_received(self, data: bytes) -> None:
        """Notes the ages of one or more whole lines; a line is too short for the kernel to split it."""
        now = datetime.now(UTC)
        for line in data.splitlines():
            made = datetime.fromisoformat(json.loads(line)["ts"]).replace(tzinfo=UTC)
            self.ages_ms.append((now - made).total_seconds() * 1000)

    def connection_lost(self, error: Exception | None) -> None:
        self._ended.set_result(None)


async def _read() -> list[float]:
    loop = asyncio.get_running_loop()
    reader = _Reader(loop.create_future())
    server = await loop.create_server(lambda: reader, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await reader._ended
    return reader.ages_ms


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_read())))
