"""Runs a private MQTT broker for a benchmark, on loopback: mosquitto, if it is installed."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sbon.errors import SbonError
from sbon_testbed.processes.local import free_ports

START_TIMEOUT_S = 30.0
_LOOK_S = 0.02


def mosquitto() -> str | None:
    """Returns the path of the program; None if it is not installed."""
    return shutil.which("mosquitto", path=os.environ.get("PATH", "") + os.pathsep + "/usr/sbin")


@contextmanager
def broker(directory: Path) -> Iterator[int]:
    """Runs a broker that keeps messages in memory until they are read, and yields its port; it ends with the block.

    Raises
    ------
    SbonError
        Mosquitto is not installed, or does not start.
    """
    program = mosquitto()
    if program is None:
        raise SbonError("mosquitto is not installed on this machine: install it, or leave out the source mqtt (--source)")
    directory.mkdir()
    [port] = free_ports(1)
    config, log = directory / "mosquitto.conf", directory / "log"
    settings = ("allow_anonymous true", "persistence false", "max_queued_messages 0", "max_inflight_messages 1000", "set_tcp_nodelay true")
    config.write_text("\n".join((f"listener {port} 127.0.0.1", *settings)) + "\n", encoding="utf-8")
    with log.open("wb") as output:
        process = subprocess.Popen([program, "-c", str(config)], stdout=output, stderr=output, process_group=0)
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not _answers(port):
            if process.poll() is not None or time.monotonic() > deadline:
                last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
                raise SbonError(f"mosquitto does not start: {last[0] if last else 'it wrote nothing'}")
            time.sleep(_LOOK_S)
        yield port
    finally:
        process.kill()
        process.wait()


def _answers(port: int) -> bool:
    with socket.socket() as line:
        return line.connect_ex(("127.0.0.1", port)) == 0
