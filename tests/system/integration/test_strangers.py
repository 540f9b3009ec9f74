"""Strangers at the TCP port of a real agent."""

import os
import signal
import socket
import time

from sbon.sealing import generate_key
from tests.processes import Process, wait_until

STRANGER = "127.0.0.66"
"""The strangers' address; the member dials from 127.0.0.1."""


class HalfOpen:
    """Silent connections; each is reopened when the agent closes it."""

    def __init__(self, address: str, count: int) -> None:
        host, _, port = address.rpartition(":")
        self.target = (host, int(port))
        self.sockets = [self.open() for _ in range(count)]

    def open(self) -> socket.socket:
        stream = socket.create_connection(self.target, source_address=(STRANGER, 0))
        stream.setblocking(False)
        return stream

    def keep_up(self) -> None:
        for place, stream in enumerate(self.sockets):
            try:
                closed = stream.recv(64) == b""
            except BlockingIOError:
                closed = False
            except ConnectionError:
                closed = True
            if closed:
                stream.close()
                self.sockets[place] = self.open()

    def close(self) -> None:
        for stream in self.sockets:
            stream.close()


def test_two_hundred_half_open_connections_keep_no_member_out(tmp_path):
    """Without a limit for each source address, 64 of them blocked the port as long as they stayed."""
    key_file = tmp_path / "cluster.key"
    key_file.write_text(generate_key(os.urandom(32)))
    key_file.chmod(0o600)
    options = ("--bind", "127.0.0.1:0", "--key-file", str(key_file))
    seed = Process(tmp_path, "seed", *options).wait_until_ready()
    address = seed.ask("status")["address"]
    strangers, member = HalfOpen(address, 200), None
    try:
        began = time.monotonic()
        member = Process(tmp_path, "member", *options, "--join", address)

        def joined() -> bool:
            strangers.keep_up()
            return "member.alive" in member.events() and "member.alive" in seed.events()

        wait_until(joined, timeout_s=20.0)
        took_s = time.monotonic() - began
        counters = seed.ask("status")["counters"]
        assert counters["handshakes_displaced"] >= 200 - 32
        assert seed.events().count("peer.displaced") == 1
        assert STRANGER in next(line for line in seed.log.read_text().splitlines() if "peer.displaced" in line)
        print(f"joined after {took_s:.1f} s")  # 1 s in process start-up, on a quiet machine
    finally:
        strangers.close()
        for process in (seed, member):
            if process is not None:
                process.end(signal.SIGKILL)
