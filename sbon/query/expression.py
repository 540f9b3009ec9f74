"""Scalar expressions as data: what a filter or a projection computes, in a form that travels between agents.

The SQL front end makes these trees, `sbon.operators.compile` turns them into polars expressions on the node that runs them. No
SQL text and no code crosses the wire, so that a host of operators needs no SQL parser and cannot be told to run anything that is
not in the table of functions.
"""

from typing import TypeAlias

import msgspec

from sbon.schema import ColumnType


class Column(msgspec.Struct, frozen=True, tag="column", tag_field="form"):
    """The value of a column of the input row."""

    name: str


class Literal(msgspec.Struct, frozen=True, tag="literal", tag_field="form"):
    """A constant. Times are microseconds since 1970 in UTC, intervals are microseconds; `type` tells them from plain integers."""

    value: bool | int | float | str | None
    type: ColumnType


class Call(msgspec.Struct, frozen=True, tag="call", tag_field="form"):
    """A function, operator or comparison of `sbon.query.functions`, by its name there."""

    function: str
    arguments: tuple["Expression", ...]


class Cast(msgspec.Struct, frozen=True, tag="cast", tag_field="form"):
    """Conversion to another type; a value that does not convert becomes NULL."""

    operand: "Expression"
    type: ColumnType


class Case(msgspec.Struct, frozen=True, tag="case", tag_field="form"):
    """The value of the first branch whose condition holds, else `default`."""

    branches: tuple[tuple["Expression", "Expression"], ...]
    default: "Expression"


Expression: TypeAlias = Column | Literal | Call | Cast | Case


def is_bare_null(expression: Expression) -> bool:
    """Tells whether an expression is a NULL of no fixed type. A NULL written without a type is a TEXT literal; any other NULL has
    its type."""
    return isinstance(expression, Literal) and expression.value is None and expression.type is ColumnType.TEXT
