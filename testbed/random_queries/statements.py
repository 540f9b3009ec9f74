"""Random queries of the whole dialect, each with its equivalent for DuckDB."""

from collections.abc import Callable

from sbon_testbed.random_queries import joins, shapes
from sbon_testbed.random_queries.draws import Draws
from sbon_testbed.random_queries.parts import FORMS_EVERY, Query

SHAPES: dict[str, Callable[[Draws], Query]] = {
    "scalars": shapes.scalars,
    "filters": shapes.filters,
    "taken_apart": shapes.taken_apart,
    "windows": shapes.windows,
    "sessions": shapes.sessions,
    "twice": shapes.twice,
    "rows_of_windows": shapes.rows_of_windows,
    "distinct": shapes.distinct,
    "top": shapes.top,
    "numbered": shapes.numbered,
    "deduplicated": shapes.deduplicated,
    "interval_join": joins.interval_join,
    "window_join": joins.window_join,
    "over": shapes.over,
    "join_of_aggregates": joins.join_of_aggregates,
    "union_all": joins.union_all,
}
LATE_SHAPES = ("scalars", "filters", "windows", "distinct", "numbered", "deduplicated")


def make_query(seed: int, number: int, late: bool = False) -> Query:
    """Returns a query of a seed.

    Parameters
    ----------
    number : its place among the queries of the seed
    late : the streams have late rows, so that only shapes are drawn whose answers can be predicted nevertheless
    """
    draws = Draws(seed, number, late)
    names = [shape for shape in SHAPES if not late or shape in LATE_SHAPES]
    shape = "scalars" if number % FORMS_EVERY == 0 else names[int(draws.rng.integers(len(names)))]
    return draws.finished(SHAPES[shape](draws), shape)
