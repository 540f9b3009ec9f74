"""Places of a statement's name and options in its text, for errors found only when the statement is executed."""

from collections.abc import Mapping
from typing import TypeAlias

from sbon.errors import ConnectorError, QueryError, SbonError

NAME = ""
"""Key of the statement's own name among its places; no option has this name."""

Places: TypeAlias = Mapping[str, tuple[int, int]]
"""Line and column, from 1, of NAME and of each option."""


def located(problem: SbonError, places: Places) -> SbonError:
    """Returns the error of a statement with a place in its text: of the option that the error names, else of the statement's name."""
    match problem:
        case QueryError(line=0):
            line, column = places.get(NAME, (0, 0))
            return QueryError(problem.message, line=line, column=column, hint=problem.hint)
        case ConnectorError():
            line, column = places.get(problem.option, places.get(NAME, (0, 0)))
            return QueryError(str(problem), line=line, column=column)
    return problem
