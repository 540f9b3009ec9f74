"""The most important numbers: boxes at the top of the report, and the lines that the command prints."""

from collections.abc import Mapping
from typing import Any

from sbon.analysis.findings import count, figure, percent, size
from sbon.analysis.page import Headline


def headlines(numbers: Mapping[str, Any]) -> list[Headline]:
    """Returns one box for each number that is known."""
    log, space, usage, moved = numbers["log"], numbers["coordinates"], numbers["network_usage"], numbers["migrations"]
    sharing, latency, health, healed = numbers["sharing"], numbers["latencies"], numbers["health"], numbers["recoveries"]
    boxes = [
        (
            log.get("agents"),
            f"{log['agents']:,} agents",
            f"{count(log['rows'], 'row')} of telemetry, {count(log['problems'], 'problem')} in the log",
        ),
        (space.get("median_relative_error"), percent(space.get("median_relative_error")), "median error of predicted round trips"),
        (usage.get("mean_usage_bytes"), size(usage.get("mean_usage_bytes")), "in transit on average, network usage of all queries"),
        (usage.get("over_optimal"), percent(_over(usage.get("over_optimal"))), "more than the best placements in hindsight"),
        (usage.get("over_producer"), f"{figure(_inverse(usage.get('over_producer')))} x", "as much, had all been placed at a producer"),
        (usage.get("over_consumer"), f"{figure(_inverse(usage.get('over_consumer')))} x", "as much, had all been placed at the consumer"),
        (
            moved.get("committed"),
            f"{moved.get('committed', 0):,}",
            f"migrations; pause {figure(moved.get('median_pause_ms'), 'ms')} (median)",
        ),
        (sharing.get("saved_share"), percent(sharing.get("saved_share")), "of traffic between nodes saved by shared operators"),
        (
            latency.get("p50_ms"),
            figure(latency.get("p50_ms"), "ms"),
            f"from creation to sink (median); 99 %: {figure(latency.get('p99_ms'), 'ms')}",
        ),
        (
            health.get("crashes"),
            f"{health.get('crashes', 0):,}",
            "crashes"
            + (f" noticed, after {figure(health['median_detection_s'], 's')} (median)" if health.get("crashes") else " of agents noticed"),
        ),
        (
            healed.get("median_s"),
            f"{healed['recoveries']:,}",
            f"recoveries of queries, in {figure(healed.get('median_s'), 's')} (median); {count(healed['rows_lost'], 'row')} lost",
        ),
    ]
    return [Headline(value, text) for known, value, text in boxes if known is not None]


def summary_lines(numbers: Mapping[str, Any]) -> list[str]:
    """Returns the lines for the terminal."""
    log = numbers["log"]
    lines = [
        f"{count(log['rows'], 'row')} of {count(log['agents'], 'agent')}, {log['first'][:19]} to {log['last'][:19]} UTC, "
        f"analysed in {numbers['seconds']:g} s:"
    ]
    return lines + [f"  {box.value:>12}  {box.text}" for box in headlines(numbers)[1:]]


def _over(ratio: float | None) -> float | None:
    return None if ratio is None else ratio - 1


def _inverse(ratio: float | None) -> float | None:
    return 1 / ratio if ratio else None
