"""A process that sends the lines of a file to a source of an agent: `python -m sbon_testbed.bench.sender KIND PLACE FILE BROKER_PORT`.

tcp : sends the whole file to the port PLACE
http : POSTs bodies of at least `BODY_BYTES`, cut at lines, to the port PLACE, one after the other over one connection
mqtt : publishes messages of `MESSAGE_ROWS` rows at QoS 1 to the topic `rows/PLACE`, up to 1,000 of them unacknowledged

The process connects, prints `ready`, and sends when it reads a line from standard input. It ends when all is sent, or with the process that
started it.
"""

import http.client
import os
import socket
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from sbon_testbed.kernel import die_with_parent

CONNECT_TIMEOUT_S = 30.0
RETRY_S = 0.02
BODY_BYTES = 1_000_000
MESSAGE_ROWS = 100
SENT_TIMEOUT_S = 600.0


def connected(port: int) -> socket.socket:
    """Connects to a port of loopback as soon as a process listens there."""
    deadline = time.monotonic() + CONNECT_TIMEOUT_S
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(RETRY_S)


def wait_for_start() -> None:
    """Prints `ready`, and waits for a line that starts the sending; exits if standard input is closed."""
    print("ready", flush=True)
    if not sys.stdin.readline():
        sys.exit("standard input was closed before the start: nothing is sent")


def tcp(port: int, path: Path, broker_port: int) -> None:
    """Sends the file unchanged."""
    with connected(port) as line, path.open("rb") as file:
        wait_for_start()
        line.sendfile(file)


def http_post(port: int, path: Path, broker_port: int) -> None:
    """Sends the lines in bodies; repeats a body if the source has no room (status 429)."""
    connected(port).close()
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.connect()
    wait_for_start()
    for body in bodies(path):
        while True:
            connection.request("POST", "/", body)
            answer = connection.getresponse()
            told = answer.read()
            if answer.status < 300:
                break
            if answer.status != http.HTTPStatus.TOO_MANY_REQUESTS:
                sys.exit(f"the source answered a POST with status {answer.status}: {told[:200]!r}")
            time.sleep(RETRY_S)


def bodies(path: Path) -> Iterator[bytes]:
    """Yields the lines of a file in pieces of about `BODY_BYTES`."""
    with path.open("rb") as file:
        while lines := file.readlines(BODY_BYTES):
            yield b"".join(lines)


def mqtt(topic: int, path: Path, broker_port: int) -> None:
    """Publishes the lines, `MESSAGE_ROWS` in a message."""
    from paho.mqtt.client import Client
    from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

    client = Client(CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion.MQTTv5)
    client.max_inflight_messages_set(1_000)
    client.connect("127.0.0.1", broker_port)
    client.loop_start()
    wait_for_start()
    last = None
    with path.open("rb") as file:
        while lines := list(islice(file, MESSAGE_ROWS)):
            last = client.publish(f"rows/{topic}", b"".join(lines), qos=1)
    if last is not None:
        last.wait_for_publish(SENT_TIMEOUT_S)
    client.disconnect()
    client.loop_stop()


def main() -> None:
    """Sends the file that the arguments name."""
    parent = os.getppid()
    die_with_parent()
    if os.getppid() != parent:
        sys.exit("the process that started this one has ended")
    kind, place, path, broker_port = sys.argv[1:]
    {"tcp": tcp, "http": http_post, "mqtt": mqtt}[kind](int(place), Path(path), int(broker_port))


if __name__ == "__main__":
    main()
