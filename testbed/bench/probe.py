"""`sbon bench probe`: what a busy agent does to the round trips that it measures, and with them to everybody's coordinates.

Two real agents in processes of their own probe each other on loopback. The samples are those that their coordinates are fed: each
probe through sockets, sealing and the membership machine, before any filter. First both are idle; then both run a generator without a
pause into a windowed aggregate, which keeps every operator thread busy and the interpreter's lock in demand.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from agent.telemetry.spool import spooled
from sbon.cli.client import ControlClient, UnreachableError
from sbon.cli.output import Column, count, number, print_table
from sbon.control import SOCKET_NAME
from sbon.errors import ConfigError, SbonError
from sbon.sealing import KEY_BYTES, generate_key
from sbon.telemetry.rows import Probe
from testbed.processes.local import free_ports

NAMES = ("a", "b")
INTERVAL_S = 0.04
"""Pause between probes of each agent: enough samples for a 99th percentile within seconds, and still a hundredth of a core."""
WARM_S = 2.0
"""Left out before each phase: joining, loading of libraries, the first batches."""
START_TIMEOUT_S = 60.0
SECONDS_MIN = 2.0
RATIO_TARGET, MARGIN_TARGET_MS = 1.2, 0.05
"""The saturated median should be at most this many idle medians and this much more."""

SETTINGS = f"""
membership = {{ interval_s = {INTERVAL_S} }}
telemetry = {{ flush_interval_s = 0.25, parquet = false }}
optimiser = {{ enabled = false }}
log = {{ level = "warning" }}
"""

LOAD = """
CREATE SOURCE load_{name} (ts TIMESTAMP, key BIGINT, value DOUBLE, WATERMARK FOR ts AS ts)
WITH (connector = 'datagen', nodes = '{name}', rows_per_second = 'max', fields.key.min = 0, fields.key.max = 99);
CREATE SINK saturate_{name} FROM (
  SELECT window_end, key, avg(value) AS mean, count(*) AS n FROM TUMBLE(load_{name}, ts, INTERVAL '1 second') GROUP BY window_end, key
) WITH (connector = 'discard');
"""


def measure(seconds: float, *, sealed: bool = True) -> dict[str, Any]:
    """Both phases, half of the time each.

    Raises
    ------
    SbonError
        The time is too short, or an agent does not start, or dies.
    """
    if not seconds >= SECONDS_MIN:
        raise ConfigError(f"--seconds {seconds:g}, expected at least {SECONDS_MIN:g}")
    with tempfile.TemporaryDirectory(prefix="sbon-bench-") as directory, _agents(Path(directory), sealed) as clients:
        idle = _phase(Path(directory), clients, seconds / 2)
        for name in NAMES:
            clients[name].ask("submit", sql=LOAD.format(name=name))
        saturated = _phase(Path(directory), clients, seconds / 2)
    allowed_ms = RATIO_TARGET * idle["median_ms"] + MARGIN_TARGET_MS
    return {
        "seconds": seconds,
        "sealed": sealed,
        "cores": os.cpu_count(),
        "idle": idle,
        "saturated": saturated,
        "ratio": round(saturated["median_ms"] / idle["median_ms"], 3),
        "allowed_saturated_median_ms": round(allowed_ms, 4),
        "within_target": saturated["median_ms"] <= allowed_ms,
    }


def show(result: dict[str, Any]) -> None:
    """The result as a table for people."""
    columns = (Column("agents"), *(Column(title, right=True) for title in ("median ms", "p99 ms", "probes", "CPU", "rows/s")))
    rows = []
    for name in ("idle", "saturated"):
        phase = result[name]
        rows.append(
            [
                name,
                number(phase["median_ms"], 3),
                number(phase["p99_ms"], 3),
                count(phase["samples"]),
                f"{100 * phase['cpu']:.0f} %",
                count(phase["rows_per_s"]),
            ]
        )
    print_table(columns, rows)
    verdict = "within" if result["within_target"] else "beyond"
    print(f"saturated / idle: {result['ratio']:.2f}; {verdict} the {result['allowed_saturated_median_ms']:.3f} ms aimed for")


@contextmanager
def _agents(directory: Path, sealed: bool) -> Iterator[dict[str, ControlClient]]:
    """Two agents that know each other; they end with the block."""
    config = directory / "agent.toml"
    config.write_text(SETTINGS, encoding="utf-8")
    options = ["--config", str(config)]
    if sealed:
        key = directory / "cluster.key"
        with open(os.open(key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(generate_key(os.urandom(KEY_BYTES)) + "\n")
        options += ["--key-file", str(key)]
    addresses = [f"127.0.0.1:{port}" for port in free_ports(len(NAMES))]
    processes = []
    clients = {}
    try:
        for name, address in zip(NAMES, addresses, strict=True):
            with (directory / f"{name}.log").open("ab") as log:
                command = [sys.executable, "-P", "-m", "testbed.processes.child", str(os.getpid()), "--name", name, "--bind", address]
                command += ["--data-dir", str(directory / name), "--join", addresses[0], *options]
                processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0))
        for name, process in zip(NAMES, processes, strict=True):
            clients[name] = _client(directory, name, process)
        yield clients
    finally:
        for client in clients.values():
            client.close()
        for process in processes:
            process.kill()
            process.wait()


def _client(directory: Path, name: str, process: "subprocess.Popen[bytes]") -> ControlClient:
    """A connection to an agent that has found the other one."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            last = (directory / f"{name}.log").read_text(encoding="utf-8", errors="replace").splitlines()[-1:]
            raise SbonError(f"agent {name} ended at its start: {last[0] if last else 'its log is empty'}")
        with suppress(UnreachableError):
            client = ControlClient(directory / name / SOCKET_NAME)
            if client.ask("status")["members"]["alive"] == len(NAMES):
                return client
            client.close()
        time.sleep(0.05)
    raise SbonError(f"agent {name} has not found the other one within {START_TIMEOUT_S:g} s")


def _phase(directory: Path, clients: dict[str, ControlClient], seconds: float) -> dict[str, Any]:
    """The samples of a stretch of time, and what the agents did meanwhile."""
    time.sleep(WARM_S)
    before = {name: _row_count(client) for name, client in clients.items()}
    used = _cpu_s()
    began_s, began = time.time(), time.monotonic()
    time.sleep(seconds)
    ended_s, took_s = time.time(), time.monotonic() - began
    cpu = (_cpu_s() - used) / took_s / (os.cpu_count() or 1)
    rows = sum(_row_count(client) - before[name] for name, client in clients.items())
    time.sleep(1.0)  # the last samples reach their files
    rtts = np.array([rtt for name in NAMES for at_s, rtt in _samples(directory / name) if began_s <= at_s < ended_s])
    if not rtts.size:
        raise SbonError("no probe was answered; the agents' machine is too busy to measure on")
    median, p99 = np.percentile(rtts, [50, 99])
    return {
        "median_ms": round(float(median), 4),
        "p99_ms": round(float(p99), 4),
        "samples": int(rtts.size),
        "cpu": round(cpu, 3),
        "rows_per_s": round(rows / took_s),
    }


def _row_count(client: ControlClient) -> int:
    """Rows that the agent's sources have made."""
    return sum(operator["rows_out"] for operator in client.ask("operators") if operator["kind"] == "source")


def _cpu_s() -> float:
    """Processor seconds used on this machine so far, by everybody."""
    import psutil

    times = psutil.cpu_times()
    return float(times.user + times.system + times.nice)


def _samples(data_dir: Path) -> Iterator[tuple[float, float]]:
    """Instants (wall clock) and round trips of the probes that an agent has logged."""
    for line in spooled(data_dir / "telemetry"):
        if isinstance(line.row, Probe):
            yield line.time_us / 1e6, line.row.rtt_ms
