"""Observes an overlay at one moment through its agents' control interface, for the figures of results and demos."""

import hashlib
import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np

from sbon.cost_space.coordinate import Coordinate, estimated_rtt_ms
from sbon.errors import SbonError
from sbon.links.link_names import target_of
from sbon.types import FloatArray, LinkId, NodeId, OperatorId
from sbon_testbed.backend import Backend, Tail

LATE_MS_MAX = 5.0
"""99th percentile of packets' lateness in network namespaces above which a run's times are reported as unreliable."""


class Operator(NamedTuple):
    """One running operator."""

    id: OperatorId
    node: NodeId
    kind: str
    state: str
    pinned: bool
    migrations: int
    rows_in: int
    rows_out: int
    late_rows: int


class Link(NamedTuple):
    """One link between running operators; `received` is None while the receiving operator is not found."""

    id: LinkId
    source: OperatorId
    target: OperatorId
    sent: int
    acknowledged: int
    received: int | None
    bytes_per_s: float


class Running(NamedTuple):
    """All operators and links of the overlay."""

    operators: dict[OperatorId, Operator]
    links: dict[LinkId, Link]


def ask_all(backend: Backend, command: str) -> dict[NodeId, Any]:
    """Returns the answer of every living agent that answers, by name, in the topology's order."""
    answers = {}
    for name in backend.topology.nodes:
        if backend.alive(name):
            try:
                answers[name] = backend.ask(name, command)
            except SbonError:
                continue
    return answers


def members(backend: Backend) -> dict[str, Any]:
    """Returns the members that each living agent sees, and whether they agree with the truth."""
    living = sorted(name for name in backend.topology.nodes if backend.alive(name))
    seen, agree = {}, True
    answers = ask_all(backend, "members")
    for name, table in answers.items():
        counts = dict.fromkeys(("alive", "suspect", "failed", "left"), 0)
        for member in table:
            counts[member["status"]] = counts.get(member["status"], 0) + 1
        seen[name] = counts
        agree = agree and sorted(member["name"] for member in table if member["status"] == "alive") == living
    return {"alive": living, "agree": agree and len(answers) == len(living), "seen": seen}


def coordinate_errors(backend: Backend) -> dict[str, float | int | None]:
    """Returns the errors of the RTTs that the living agents' coordinates predict, against the true ones without jitter, over all pairs.

    Keys: `pairs`, `median_relative_error`, `p90_relative_error`, `median_absolute_error_ms`; the errors are None without a pair.
    """
    return errors_of(coordinates_of(backend, ask_all(backend, "status")), backend.latencies.rtt_ms())


def coordinates_of(backend: Backend, statuses: Mapping[NodeId, Any]) -> list[tuple[int, Coordinate]]:
    """Returns the coordinates in answers to `status`, with the nodes' numbers."""
    found = []
    for name, status in statuses.items():
        given = status.get("coordinate")
        if given is not None:
            found.append((backend.topology.index(name), Coordinate(tuple(given["vector"]), given["height_ms"], given["error"])))
    return found


def errors_of(coordinates: list[tuple[int, Coordinate]], true_rtt_ms: FloatArray) -> dict[str, float | int | None]:
    """Returns the errors as `coordinate_errors` does, for given coordinates of numbered nodes and true RTTs, (nodes, nodes)."""
    relative, absolute = [], []
    for index, (a, coordinate_a) in enumerate(coordinates):
        for b, coordinate_b in coordinates[index + 1 :]:
            true_ms = float(true_rtt_ms[a, b] + true_rtt_ms[b, a]) / 2
            if true_ms > 0:
                absolute.append(abs(estimated_rtt_ms(coordinate_a, coordinate_b) - true_ms))
                relative.append(absolute[-1] / true_ms)
    if not relative:
        return {"pairs": 0, "median_relative_error": None, "p90_relative_error": None, "median_absolute_error_ms": None}
    return {
        "pairs": len(relative),
        "median_relative_error": float(np.median(relative)),
        "p90_relative_error": float(np.percentile(relative, 90)),
        "median_absolute_error_ms": float(np.median(absolute)),
    }


def running(backend: Backend) -> Running:
    """Returns every operator and link, as their hosts report them."""
    operators: dict[OperatorId, Operator] = {}
    sent: dict[LinkId, tuple[OperatorId, int, int, float]] = {}
    received: dict[LinkId, int] = {}
    for name, table in ask_all(backend, "operators").items():
        for row in table:
            operators[row["id"]] = Operator(
                row["id"],
                row.get("node", name),
                row["kind"],
                row["state"],
                bool(row.get("pinned")),
                int(row.get("migrations", 0)),
                int(row.get("rows_in", 0)),
                int(row.get("rows_out", 0)),
                int(row.get("late_rows", 0)),
            )
            for link in row.get("links", ()):
                # The reporting operator owns the link: a multicast's links may keep the name of the operator that feeds it.
                sent[link["id"]] = (row["id"], int(link["rows_sent"]), int(link["rows_acknowledged"]), float(link["bytes_per_s"]))
            received.update({link["id"]: int(link["rows"]) for link in row.get("received", ())})
    links = {}
    for link, (source, rows, acknowledged, rate) in sorted(sent.items()):
        links[link] = Link(link, source, target_of(link), rows, acknowledged, received.get(link), rate)
    return Running(dict(sorted(operators.items())), links)


def usage_bytes(links: Iterable[tuple[str, str, float]], rtt_ms: FloatArray, number: Mapping[str, int], where: Mapping[str, str]) -> float:
    """Returns the bytes in transit (SBON, section 2.3, equation 1) of links given as source, target and bytes/s, with true latencies.

    Links with an end on an unknown node, such as a dead one, are left out.
    """
    total = 0.0
    for source, target, bytes_per_s in links:
        a, b = where.get(source), where.get(target)
        if a is not None and b is not None and a != b and math.isfinite(bytes_per_s):
            total += bytes_per_s * float(rtt_ms[number[a], number[b]]) / 2000
    return total


def network_usage(backend: Backend, overlay: Running) -> float:
    """Returns the bytes in transit over all links now: measured rates times true latencies."""
    where = {operator.id: operator.node for operator in overlay.operators.values()}
    number = {name: index for index, name in enumerate(backend.topology.nodes)}
    links = [(link.source, link.target, link.bytes_per_s) for link in overlay.links.values()]
    return usage_bytes(links, backend.latencies.rtt_ms(), number, where)


def rows_digest(tail: Tail) -> str:
    """Returns the SHA-256 of the sorted rows, each as one line of JSON: equal for equal answers in any order."""
    digest = hashlib.sha256()
    for line in sorted(msgspec.json.encode(row) for row in tail.rows):
        digest.update(line + b"\n")
    return digest.hexdigest()


def column_sum(tail: Tail, column: str) -> int | None:
    """Returns the sum of a column over the rows so far; None if there is no such column."""
    if column not in tail.columns:
        return None
    place = tail.columns.index(column)
    return sum(row[place] or 0 for row in tail.rows)


def summed_counters(backend: Backend) -> dict[str, int]:
    """Returns the counters of all living agents, added up."""
    total: dict[str, int] = {}
    for status in ask_all(backend, "status").values():
        for name, value in status.get("counters", {}).items():
            total[name] = total.get(name, 0) + int(value)
    return dict(sorted(total.items()))


def network_lines(counters: Mapping[str, int]) -> list[str]:
    """Describes the network of namespaces in words; returns no lines for worlds with another network."""
    if "network_sent" not in counters:
        return []
    count = {name.removeprefix("network_"): value for name, value in counters.items() if name.startswith("network_")}
    p50_ms, p99_ms = count.get("probes_late_us_p50", 0) / 1000, count.get("probes_late_us_p99", 0) / 1000
    lines = [
        f"network: {count['sent']:,} packets, {count['delivered']:,} delivered, {count['lost']:,} lost by chance, "
        f"{count['blocked']:,} blocked, {count['tail_dropped'] + count['unread']:,} dropped from full queues",
        f"network: packets came {p50_ms:.2f} ms late (median), {p99_ms:.2f} ms (99th percentile)",
    ]
    if p99_ms > LATE_MS_MAX or count["unread"]:
        lines.append("network: this machine was too busy for the delays asked for; do not trust the times of this run")
    return lines
