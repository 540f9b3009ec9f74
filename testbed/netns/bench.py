"""`sbon bench wan`: compares configured and measured delays through the router, and measures how many packets it carries."""

import socket
import time
from collections.abc import Callable
from typing import Any

from sbon.cli.output import print_table, say
from sbon.cli.tables import Column
from sbon.errors import SbonError
from sbon_testbed.kernel import in_network_namespace
from sbon_testbed.leftovers import run_directory
from sbon_testbed.netns.devices import ip_address
from sbon_testbed.netns.lateness import LatenessProbe
from sbon_testbed.netns.messages import Report
from sbon_testbed.netns.wan import Wan
from sbon_testbed.ranges import check_seconds
from sbon_testbed.simulator.network import NetworkConfig

DELAYS_MS = (1.0, 5.0, 20.0, 40.0, 100.0, 200.0)
OFFERED_PER_S = (5_000, 20_000, 40_000, 60_000, 80_000, 120_000)
PAYLOAD_BYTES = 1000
SECONDS_MIN = 0.5
_PORT = 5000
_STEP_S = 0.002
_DRAIN_LOOKS = 2500

Progress = Callable[[str], None]


def measure(seconds: float, progress: Progress = lambda what: None) -> dict[str, Any]:
    """Measures one-way delays over a quiet WAN, then packets/s offered and delivered, with their lateness.

    Parameters
    ----------
    seconds : duration of each line

    Raises
    ------
    UsageError
        The time is too short, or this machine or user cannot have namespaces.
    SbonError
        The router does not start, or ends.
    """
    check_seconds("--seconds", seconds, SECONDS_MIN)
    with run_directory() as directory:
        delays = []
        wan = Wan(2, NetworkConfig(jitter_ms=0.0), 1, directory / "router.log")
        try:
            for delay_ms in DELAYS_MS:
                progress(f"{delay_ms:g} ms for {seconds:g} s")
                delays.append(_delay(wan, delay_ms, seconds))
        finally:
            wan.close()
        loads = []
        for offered in OFFERED_PER_S:
            progress(f"{offered:,} packets/s for {seconds:g} s")
            # Default settings of scenarios, with a little loss so that every packet takes the longest path through the schedule.
            wan = Wan(2, NetworkConfig(loss=0.001), 1, directory / "router.log")
            try:
                loads.append(_load(wan, offered, seconds))
            finally:
                wan.close()
    return {"seconds": seconds, "delays": delays, "loads": loads}


def show(result: dict[str, Any]) -> None:
    """Prints the result as tables for people."""
    columns = [Column(title, right=True) for title in ("asked ms", "median ms", "p99 ms", "packets")]
    rows = [[f"{row['asked_ms']:g}", f"{row['median_ms']:.2f}", f"{row['p99_ms']:.2f}", f"{row['samples']:,}"] for row in result["delays"]]
    print_table(columns, rows, title="one way, nothing else under way")
    say()
    columns = [Column(title, right=True) for title in ("sent/s", "delivered/s", "not read", "late ms", "p99 ms", "router's CPU")]
    rows = [
        [
            f"{row['sent_per_s']:,.0f}",
            f"{row['delivered_per_s']:,.0f}",
            f"{row['unread_share']:.1%}",
            f"{row['late_ms']:.2f}",
            f"{row['late_p99_ms']:.2f}",
            f"{row['router_cpu']:.0%}",
        ]
        for row in result["loads"]
    ]
    print_table(columns, rows, title=f"datagrams of {PAYLOAD_BYTES} bytes, {result['loads'][0]['delay_ms']:g} ms one way")


def _delay(wan: Wan, delay_ms: float, seconds: float) -> dict[str, Any]:
    wan.set_paths([[delay_ms] * 2] * 2, [0, 0], [])
    probe = LatenessProbe((wan.namespaces[0], ip_address(0)), (wan.namespaces[1], ip_address(1)), delay_ms)
    time.sleep(seconds + delay_ms / 1000)
    probe.close()
    found = probe.counters()
    return {
        "asked_ms": delay_ms,
        "median_ms": round(delay_ms + found.get("probes_late_us_p50", 0) / 1000, 3),
        "p99_ms": round(delay_ms + found.get("probes_late_us_p99", 0) / 1000, 3),
        "samples": found["probes"],
    }


def _load(wan: Wan, offered_per_s: float, seconds: float, delay_ms: float = 20.0) -> dict[str, Any]:
    """Offers datagrams in steps of 2 ms from one namespace to the other, where a socket discards them."""
    wan.set_paths([[delay_ms] * 2] * 2, [0, 0], [])
    with in_network_namespace(wan.namespaces[0]):
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with in_network_namespace(wan.namespaces[1]):
        receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        receiver.bind((ip_address(1), _PORT))
    with sender, receiver:
        sender.connect((ip_address(1), _PORT))
        before = wan.report()
        began = time.monotonic()
        sent = _offer(sender, offered_per_s, began, seconds)
        took_s = time.monotonic() - began
        after = _drained(wan)
    counted = {name: value - before.counters.get(name, 0) for name, value in after.counters.items()}
    return {
        "delay_ms": delay_ms,
        "sent_per_s": round(sent / took_s),
        "delivered_per_s": round(counted["delivered"] / took_s),
        "unread_share": round(counted["unread"] / max(1, sent), 4),
        "tail_dropped_share": round(counted["tail_dropped"] / max(1, sent), 4),
        "late_ms": after.counters.get("probes_late_us_p50", 0) / 1000,
        "late_p99_ms": after.counters.get("probes_late_us_p99", 0) / 1000,
        "router_cpu": round((after.cpu_s - before.cpu_s) / took_s, 3),
    }


def _drained(wan: Wan) -> Report:
    """Returns the router's report once no packet is in flight; raises SbonError if that does not happen."""
    for _ in range(_DRAIN_LOOKS):
        report = wan.report()
        if report.counters["under_way"] == 0:
            return report
        time.sleep(_STEP_S)
    raise SbonError(f"packets are still under way {_DRAIN_LOOKS * _STEP_S:g} s after the last was sent: the machine is overloaded")


def _offer(sender: socket.socket, offered_per_s: float, began: float, seconds: float) -> int:
    payload, sent = bytes(PAYLOAD_BYTES), 0
    while (elapsed := time.monotonic() - began) < seconds:
        for _ in range(int(elapsed * offered_per_s) - sent):
            sender.send(payload)
            sent += 1
        time.sleep(_STEP_S)
    return sent
