"""The part of `sbon bench link` with lone messages: each is alone in its batch and goes from outside to a sink on another agent.

How long the machine has rested before a message matters as much as the processing, because after a pause the code and data on the path
have left the processor's caches. So latency is measured at two paces, and beside each that of a bare TCP connection between two processes
at the same pace. The latency ends when the sink `discard` reads its clock; a program that reads from a `tcp` sink gets the message later,
which is measured too.
"""

import socket
import time
from contextlib import closing
from datetime import UTC, datetime

from sbon.errors import SbonError
from sbon_testbed.bench.agents import BenchAgent
from sbon_testbed.bench.bare_line import ages_ms
from sbon_testbed.bench.percentiles import Buckets
from sbon_testbed.bench.sinks import FIRST_ROWS_TIMEOUT_S, LOOK_S, ages, came, rows_taken, wait_for_rows
from sbon_testbed.processes.local import free_ports

PACES = {"lone": 200, "lone_rare": 50}
"""Messages a second, by the name of the figure. Sources send at most one batch a millisecond, so each message has its own batch."""
SECONDS_MIN = {"lone": 5.0, "lone_rare": 20.0}
"""Least seconds for each pace: enough messages for a 99th percentile."""
WARM_S = 1.0

TCP_PACES = ("lone",)
"""Paces at which a program behind a `tcp` sink is measured as well."""

SQL = """
CREATE SOURCE lone (ts TIMESTAMP, key BIGINT) WITH (connector = 'tcp', nodes = 'a', port = {port});
CREATE SINK arrived FROM (SELECT ts, key FROM lone) WITH (connector = 'discard', node = 'b', latency_column = 'ts');
"""

TCP_SQL = """
CREATE SOURCE {name}_written (ts TIMESTAMP, key BIGINT) WITH (connector = 'tcp', nodes = 'a', port = {port});
CREATE SINK {name}_read FROM (SELECT ts, key FROM {name}_written) WITH (connector = 'tcp', node = 'b', port = {reader});
"""


def measure(pair: dict[str, BenchAgent], seconds: float) -> dict[str, Buckets | list[float]]:
    """Returns latencies in ms at each pace over the link and over a bare connection, for `percentiles.pooled`."""
    port = free_ports(1)[0]
    pair["a"].client.ask("submit", sql=SQL.format(port=port))
    found: dict[str, Buckets | list[float]] = {}
    for name, per_s in PACES.items():
        lasting_s = max(seconds, SECONDS_MIN[name])
        found[name] = _over_the_link(pair["b"], port, per_s, lasting_s)
        if name in TCP_PACES:
            found[f"{name}_tcp"] = _to_a_program(pair, name, per_s, lasting_s)
        found[f"{name}_bare"] = ages_ms(lambda bare_port, per_s=per_s, lasting_s=lasting_s: _to(bare_port, per_s, lasting_s))  # type: ignore[misc]
    return found


def _over_the_link(sink: BenchAgent, port: int, per_s: int, seconds: float) -> Buckets:
    with closing(_connected(port)) as line:
        known = sum(ages(sink).values())
        _write(line, per_s, WARM_S)
        wait_for_rows(sink, known + round(WARM_S * per_s))
        before = ages(sink)
        _write(line, per_s, seconds)
        wait_for_rows(sink, known + round(WARM_S * per_s) + round(seconds * per_s))
    return came(before, ages(sink), seconds)


def _to_a_program(pair: dict[str, BenchAgent], name: str, per_s: int, seconds: float) -> list[float]:
    """Returns the ages of rows in ms at a program that reads from a `tcp` sink: the reader of `bare_line`, to which the sink connects."""
    port, warm, rows = free_ports(1)[0], round(WARM_S * per_s), round((WARM_S + seconds) * per_s)

    def write(reader: int) -> None:
        known = rows_taken(pair["b"])
        pair["a"].client.ask("submit", sql=TCP_SQL.format(name=name, port=port, reader=reader))
        with closing(_connected(port)) as line:
            _write(line, per_s, WARM_S + seconds)
            wait_for_rows(pair["b"], known + rows)
        pair["a"].client.ask("drop", query=f"{name}_read")  # closes the connection of the reader, which then prints its ages

    times_ms = ages_ms(write)
    if len(times_ms) != rows:
        raise SbonError(f"the sink has written {len(times_ms)} of {rows} rows")
    return times_ms[warm:]


def _to(port: int, per_s: int, seconds: float) -> None:
    with closing(_connected(port)) as line:
        _write(line, per_s, seconds)


def _connected(port: int) -> socket.socket:
    deadline = time.monotonic() + FIRST_ROWS_TIMEOUT_S
    while True:
        try:
            line = socket.create_connection(("127.0.0.1", port), timeout=FIRST_ROWS_TIMEOUT_S)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise SbonError(f"the source does not listen on port {port} within {FIRST_ROWS_TIMEOUT_S:g} s") from None
            time.sleep(LOOK_S)
        else:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return line


def _write(line: socket.socket, per_s: int, seconds: float) -> None:
    """Writes `per_s` rows a second, each with its time of writing."""
    for key in range(round(seconds * per_s)):
        time.sleep(1 / per_s)
        ts = datetime.fromtimestamp(time.time(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")
        line.sendall(f'{{"ts": "{ts}", "key": {key}}}\n'.encode())
