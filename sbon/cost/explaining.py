"""Formats predictions for `sbon explain` and `sbon plan`. Imports no numeric library, because the command line needs none."""

from typing import Any

NAME_WIDTH = 15
"""Characters of the names of lines."""


def table(explained: dict[str, Any]) -> list[str]:
    """Returns the lines that `sbon explain` prints, from what `Prediction.explained` gave."""
    counts = {source: count for source, count in explained["operators"].items() if count}
    total = sum(counts.values())
    names = {"measured": "measured", "sampled": "sampled", "declared": "declared", "rule": "by rule"}
    parts = [f"{count} {names[source]}" for source, count in counts.items()]
    parts[0] = parts[0].replace(" ", f" of {total} operators ", 1)
    return [f"prediction ({', '.join(parts)}):", *(f"  {line['name']:<{NAME_WIDTH}}{line['text']}" for line in explained["lines"])]


def amount(value: float) -> str:
    """Returns a number with two or three significant digits, without an exponent where it is near 1."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}" if value >= 0.0001 or value == 0 else f"{value:.1e}"
