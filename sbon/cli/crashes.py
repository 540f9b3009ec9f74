"""Prints crashes for `sbon explain`: when operators would run again, and what would be lost."""

from typing import Any


def crash_rows(told: dict[str, Any]) -> list[list[str]]:
    """Returns the cells of the table that `sbon explain` prints: host, operators, when they run again, what is lost."""
    rows = []
    for host in told["hosts"]:
        when = []
        if host["moves"]:
            when.append(f"{_short(host['moves'])} elsewhere, {_range(host['elsewhere_s'])} after the crash")
        if host["waits"]:
            when.append(f"{_short(host['waits'])} there, {_range(host['there_s'])} after its return")
        if host["is_home"]:
            when = ["with its home"]
        states = f"state of {_short(host['states_lost'])}, " if host["states_lost"] else ""
        rows.append([host["node"], _short([*host["moves"], *host["waits"]]), "; ".join(when), f"{states}rows on their way"])
    return rows


def _short(operators: list[str]) -> str:
    return " ".join(operator.rpartition(".")[2] for operator in sorted(operators))


def _range(seconds: list[float]) -> str:
    return f"{seconds[0]:.1f} to {seconds[1]:.1f} s"
