"""The questions of `sbon plan`: each takes a placed query and the options that the person gave, and returns plain values.

A new question adds its function to `QUESTIONS`, and a command to `sbon/cli/plan.py`. The agent knows neither: it places the query, gathers
its known figures (`sbon.planning.gathering`), and passes options and answer on.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from sbon.cost.placed_query import PlacedQuery
from sbon.errors import ConfigError
from sbon.planning.capacity import capacity
from sbon.planning.known_arrivals import latency
from sbon.planning.resources import resources
from sbon.planning.throughput import throughput
from sbon.query.catalog import did_you_mean

Question: TypeAlias = Callable[[PlacedQuery, Mapping[str, Any]], dict[str, Any]]

QUESTIONS: dict[str, Question] = {"capacity": capacity, "throughput": throughput, "resources": resources, "latency": latency}


def answer(question: str, query: PlacedQuery, options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the answer to a question about a query.

    Raises
    ------
    ConfigError
        There is no such question, or an option cannot be used.
    """
    found = QUESTIONS.get(question)
    if found is None:
        hint = did_you_mean(question, QUESTIONS)
        raise ConfigError(f"there is no question {question!r} about a plan" + (f"; {hint}" if hint else ""))
    return found(query, options)
