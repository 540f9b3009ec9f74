"""The figures at the end of the demo, and the check that it fulfilled its promises."""

from collections.abc import Iterable, Mapping
from typing import Any

from sbon.types import FloatArray, LinkId, NodeId, OperatorId
from sbon_testbed.backend import Backend, Tail
from sbon_testbed.demo.story import ROWS_PER_SOURCE, SOURCES
from sbon_testbed.report import Link, Operator, Running, usage_bytes


def query_of(operator: OperatorId) -> str:
    """Returns the query that an operator was created for."""
    return operator.rpartition(".")[0]


def usages(backend: Backend, overlay: Running, migrations: Iterable[Mapping[str, Any]], rtt_before_ms: FloatArray) -> dict[str, float]:
    """Returns the network usage of the running queries, in bytes in transit, from measured rates and true latencies.

    Keys: `now`; `unmoved`, with operators on their hosts before the given migrations; `before_event`, as `unmoved`, with latencies
    `rtt_before_ms`; `producer`, with all unpinned operators of a query at one of its producers (mean over producers); `consumer`, with all
    of them at the consumer.
    """
    number = {name: index for index, name in enumerate(backend.topology.nodes)}
    rtt_ms = backend.latencies.rtt_ms()
    links = [(link.source, link.target, link.bytes_per_s) for link in overlay.links.values()]
    where = {operator.id: operator.node for operator in overlay.operators.values()}
    unmoved = dict(where)
    for migration in sorted(migrations, key=lambda one: -one["at_wall_s"]):
        if migration["operator"] in unmoved:
            unmoved[migration["operator"]] = migration["here"]
    return {
        "now": usage_bytes(links, rtt_ms, number, where),
        "unmoved": usage_bytes(links, rtt_ms, number, unmoved),
        "before_event": usage_bytes(links, rtt_before_ms, number, unmoved),
        "producer": _all_at(overlay, links, rtt_ms, number, where, "source"),
        "consumer": _all_at(overlay, links, rtt_ms, number, where, "sink"),
    }


def _all_at(
    overlay: Running,
    links: list[tuple[str, str, float]],
    rtt_ms: FloatArray,
    number: Mapping[NodeId, int],
    where: Mapping[OperatorId, NodeId],
    kind: str,
) -> float:
    """Returns the usage if each query's unpinned operators were all on a host of its operators of one kind; the mean over these hosts."""
    total = 0.0
    for query in sorted({query_of(operator) for operator in overlay.operators}):
        mine = [operator for operator in overlay.operators.values() if query_of(operator.id) == query]
        hosts = [operator.node for operator in mine if operator.kind == kind]
        own_links = [link for link in links if query_of(link[1]) == query]
        choices = []
        for host in hosts:
            placed = {**where, **{operator.id: host for operator in mine if not operator.pinned}}
            choices.append(usage_bytes(own_links, rtt_ms, number, placed))
        total += sum(choices) / len(choices) if choices else usage_bytes(own_links, rtt_ms, number, where)
    return total


def delivery(first: Running, second: Running, third: Running) -> dict[str, Any]:
    """Checks from three successive observations of running streams whether links lose or repeat rows.

    A link has lost rows if fewer rows were received by the second observation than were acknowledged by the first (unacknowledged rows are
    sent again). It has repeated rows if more were received by the second observation than were sent by the third. `waiting` counts rows
    sent by the first observation and not received by the second: a sign of a busy receiver, not of a loss.
    """
    lost: dict[LinkId, int] = {}
    repeated: dict[LinkId, int] = {}
    checked = waiting = 0
    for name, link in second.links.items():
        before, after = first.links.get(name), third.links.get(name)
        if before is None or after is None or link.received is None:
            continue
        checked += 1
        waiting += max(0, before.sent - link.received)
        if link.received < before.acknowledged:
            lost[name] = before.acknowledged - link.received
        if link.received > after.sent:
            repeated[name] = link.received - after.sent
    sent, received = _totals(second.links.values())
    return {
        "links": checked,
        "sent": sent,
        "received": received,
        "in_flight": sent - received,
        "waiting": waiting,
        "lost": lost,
        "repeated": repeated,
    }


def _totals(links: Iterable[Link]) -> tuple[int, int]:
    known = [link for link in links if link.received is not None]
    return sum(link.sent for link in known), sum(link.received or 0 for link in known)


def counted_readings(tail: Tail) -> dict[str, int]:
    """Returns the counts of the finite generated stream at its end, from the answers: `generated`, `counted`, `lost`, `repeated`,
    `ids_off`."""
    generated = ROWS_PER_SOURCE * len(SOURCES)
    counted = sum(int(row[2]) for row in tail.rows)
    ids = sum(int(row[3]) for row in tail.rows)
    # Each source numbers its rows from 0, so a lost row and a repeated row do not cancel in the sum of the numbers.
    expected_ids = len(SOURCES) * ROWS_PER_SOURCE * (ROWS_PER_SOURCE - 1) // 2
    return {
        "generated": generated,
        "counted": counted,
        "lost": max(0, generated - counted),
        "repeated": max(0, counted - generated),
        "ids_off": ids - expected_ids,
    }


def missing(summary: Mapping[str, Any]) -> list[str]:
    """Returns the demo's promises that this run did not fulfil, as sentences."""
    gaps = []
    if summary["agents"]["alive"] != summary["agents"]["started"]:
        gaps.append(f"{summary['agents']['alive']} of {summary['agents']['started']} agents were alive at the end")
    error = summary["coordinates"]["median_relative_error"]
    if error is None or error > 0.25:
        gaps.append(f"coordinates did not settle: median relative error {error}")
    for query in summary["queries"]:
        if query["state"] not in ("running", "finished"):
            gaps.append(f'the query "{query["name"]}" was {query["state"]}: {query["reason"]}')
        if not query["rows"]:
            gaps.append(f'the query "{query["name"]}" gave no rows')
    if not [one for one in summary["migrations"] if one["after_event"]]:
        gaps.append("no operator migrated after the event")
    usage = summary["network_usage_bytes"]
    if usage is None or not usage["now"] < usage["unmoved"]:
        gaps.append("the migration saved no network usage")
    readings, links = summary["tuples"]["readings"], summary["tuples"]["links"]
    if readings["lost"] or readings["repeated"] or readings["ids_off"]:
        gaps.append(f"of {readings['generated']} generated rows {readings['counted']} were counted at the end")
    if links is None or links["lost"] or links["repeated"] or not links["links"]:
        gaps.append("links lost or repeated rows, or could not be checked")
    return gaps


def unpinned(overlay: Running, query: str) -> list[Operator]:
    """Returns the unpinned operators of a query."""
    return [operator for operator in overlay.operators.values() if query_of(operator.id) == query and not operator.pinned]
