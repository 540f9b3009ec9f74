"""Parameters of MATCH_RECOGNIZE."""

from typing import TypeAlias

import msgspec

from sbon.query.expression import Expression
from sbon.query.limits import PRECEDING_MAX, LimitError, check_count, check_expressions, check_span
from sbon.query.params.aggregate import Aggregate
from sbon.query.params.streams import WindowPart
from sbon.query.row_pattern import PROGRAM_MAX, Pattern, Variable, check_pattern_depth, length, may_skip, walk

VARIABLES_MAX = 60
"""Most variables of a pattern; the conditions that a row meets are bits of one number."""


class Navigation(msgspec.Struct, frozen=True, tag="navigation", tag_field="form"):
    """A value of one row of a match, or of a row beside it; NULL if there is no such row.

    The row is found among the rows of the match so far (with `final`: of the whole match) that were taken for one of `variables`: it is
    `skip` rows after the first of them, or before the last. From there, `shift` goes on by rows of the partition (NEXT), or back (PREV).
    """

    name: str
    """Column by which conditions and measures name the value."""
    value: Expression | None
    """Expression over the columns of that row; None: the name of the row's variable (CLASSIFIER)."""
    variables: tuple[int, ...] = ()
    """Places of variables; empty: all rows of the match."""
    first: bool = False
    skip: int = 0
    shift: int = 0
    final: bool = False

    def __post_init__(self) -> None:
        check_count("rows beside a row of a pattern", abs(self.shift), 0, PRECEDING_MAX)
        check_count("rows skipped in a pattern", self.skip, 0, PRECEDING_MAX)
        check_expressions((self.value,))


ROW_LABEL = "classifier()"
"""Column with the name of a row's variable, for operands of aggregates over a match."""


class Tally(msgspec.Struct, frozen=True, tag="tally", tag_field="form"):
    """An aggregate over the rows of the match so far (with `final`: of the whole match) that were taken for one of `variables`. Its
    operands may read `ROW_LABEL`."""

    name: str
    aggregate: Aggregate
    variables: tuple[int, ...] = ()
    final: bool = False

    def __post_init__(self) -> None:
        check_expressions((self.aggregate.operand, self.aggregate.by))


class MatchNumber(msgspec.Struct, frozen=True, tag="number", tag_field="form"):
    """The number of the match in its partition, from 1."""

    name: str


Operand: TypeAlias = Navigation | Tally | MatchNumber


class MatchParams(msgspec.Struct, frozen=True, tag="match"):
    """Rows of a partition, in the order of their event times, that match a pattern: MATCH_RECOGNIZE.

    Rows are ordered by event time, then by the columns `ties`, NULLs last (first in columns of `descending`). Matches of a partition are
    searched from left to right; among those that begin at one row, the pattern's preference chooses. A match leaves as soon as no later row
    can change it; matches leave in the order in which that is known. A row that comes behind the watermark is late: counted, not used.
    """

    time_column: str
    partition: tuple[str, ...]
    """Partition columns; NULL is a value like any other."""
    ties: tuple[str, ...]
    variables: tuple[str, ...]
    """Names of the variables."""
    conditions: tuple[Expression | None, ...]
    """For each variable, its condition over the operands; None: it holds for every row."""
    pattern: Pattern
    operands: tuple[Operand, ...]
    measures: tuple[tuple[str, Expression], ...]
    """Name of each measure, and its value over the operands."""
    passed: tuple[str, ...] | None
    """None (ONE ROW PER MATCH): the output has the partition columns, and the measures at the last row. Else (ALL ROWS PER MATCH) it has
    these columns of each row of a match, and the measures."""
    skip_to: str = "past"
    """Row at which the next match may begin: `past` the last row, at the `next` row, at the `first` or `last` row of `skip_variables`."""
    skip_variables: tuple[int, ...] = ()
    within_us: int | None = None
    """The last row of a match is less than this time after its first one; None: no limit."""
    empty: bool = True
    """Matches without a row are in the output, too."""
    unmatched: bool = False
    """Rows that are in no match are in the output, too, with NULL for all measures."""
    timeouts: bool = False
    """Attempts that reach `within_us` before they are a match are in the output, too, with their rows so far, and no match number."""
    known: tuple[str, ...] = ()
    """Two further output columns that tell a merge of several instances when an answer was known: the event time, and 1 where only a row
    of that time tells, else 0. With them, the output's watermark is that of these times. Empty: no such columns."""
    descending: tuple[str, ...] = ()
    """Columns of `ties` that go from the greatest value to the least."""
    dealt: WindowPart | None = None
    """The part of the windows that the operator has; None: all."""

    def __post_init__(self) -> None:
        check_count("columns that tell when a match was known", len(self.known), 0 if not self.known else 2, 2)
        check_count("variables of a pattern", len(self.variables), 1, VARIABLES_MAX)
        check_count("conditions of a pattern", len(self.conditions), len(self.variables), len(self.variables))
        check_count("columns", len(self.partition) + len(self.ties) + len(self.passed or ()) + len(self.measures) + len(self.operands))
        check_expressions((*self.conditions, *(value for _, value in self.measures)))
        check_pattern_depth(self.pattern)
        check_count("steps of a pattern", length(self.pattern), 0, PROGRAM_MAX)
        named = {part.index for part in walk(self.pattern) if isinstance(part, Variable)}
        named.update(self.skip_variables, *(one.variables for one in self.operands if not isinstance(one, MatchNumber)))
        if not named.issubset(range(len(self.variables))):
            raise LimitError(f"a pattern with variables {sorted(named)[-1]} and less, expected less than {len(self.variables)}")
        if self.skip_to not in ("past", "next", "first", "last") or bool(self.skip_variables) != (self.skip_to in ("first", "last")):
            raise LimitError(
                f"skip to {self.skip_to!r} of {len(self.skip_variables)} variables, expected past, next, or first or last of some"
            )
        if self.skip_variables and not may_skip(self.pattern, self.skip_to, frozenset(self.skip_variables)):
            raise LimitError(
                "skip to a row that may be missing, or the first of its match; expected a row that every match has after its first one"
            )
        if self.within_us is not None:
            check_span("pattern within", self.within_us)
        elif self.timeouts:
            raise LimitError("matches that run out of time, without a time, expected within")
