"""Builds filters and projections on top of a stream, with canonical column names and order: see `sbon.query.lowering`."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from sbon.query.expression import Column, Expression, Literal
from sbon.query.relation import Relation, Scan, Select, Union, sent
from sbon.query.rewrite import canonical, sort_key, type_of
from sbon.query.text import expression_text
from sbon.schema import ColumnType

NAME_LENGTH = 80
"""Longest column name that is the full text of its expression."""
NAME_LENGTH_CUT = 60


@dataclass(frozen=True)
class Lowered:
    """A stream, and the column of each wanted value in it."""

    relation: Relation
    names: tuple[str, ...]


def types_of(relation: Relation) -> dict[str, ColumnType]:
    """Returns the types of a stream's columns, by name."""
    return {column.name: column.type for column in relation.schema}


def declared(relation: Relation) -> list[str]:
    """Returns the names of the columns that a stream has when it runs."""
    return [column.name for column in sent(relation)]


def mapped(relation: Relation, conditions: tuple[Expression, ...], wanted: Sequence[Expression]) -> Lowered:
    """Puts a filter and projection on top of a stream, if one is needed."""
    plain = not conditions and all(isinstance(value, Column) for value in wanted)
    if plain and not isinstance(relation, Scan):
        return Lowered(relation, tuple(value.name for value in wanted if isinstance(value, Column)))
    types = types_of(relation)
    values = {canonical(value) for value in wanted}
    passed = [name for name in types if Column(name) in values]
    computed = sorted(values.difference(map(Column, passed)), key=lambda value: (expression_text(value), sort_key(value)))
    if plain and isinstance(relation, Scan) and tuple(passed) == tuple(column.name for column in relation.source.columns):
        return Lowered(relation, tuple(value.name for value in wanted if isinstance(value, Column)))
    names: dict[Expression, str] = {Column(name): name for name in passed}
    for value in computed:  # equal texts may stand for different values: a column and a constant, or NULLs of two types
        names[value] = free_name(_short(expression_text(value)), names.values())
    columns = tuple((name, value, _column_type(value, types)) for value, name in names.items())
    return Lowered(Select(relation, conditions, columns), tuple(names[canonical(value)] for value in wanted))


def arranged(relation: Relation, columns: Sequence[tuple[str, str]]) -> Relation:
    """Returns the stream with exactly these columns, as (new name, name in the stream); unchanged if it has them already."""
    if [(name, name) for name in declared(relation)] == list(columns):
        return relation
    if isinstance(relation, Select):
        values = {name: (value, type_) for name, value, type_ in relation.columns}
        return replace(relation, columns=tuple((new, *values[old]) for new, old in columns))
    if isinstance(relation, Union):
        positions = {column.name: index for index, column in enumerate(relation.schema)}
        order = [(new, positions[old]) for new, old in columns]
        return Union(tuple(arranged(part, [(new, part.schema[index].name) for new, index in order]) for part in relation.inputs))
    types = types_of(relation)
    return Select(relation, (), tuple((new, Column(old), types[old]) for new, old in columns))


def free_name(name: str, taken: Iterable[str]) -> str:
    """Returns the name, with the first number from 2 appended that makes it unique if it is taken."""
    names, number, free = set(taken), 2, name
    while free in names:
        free, number = f"{name}_{number}", number + 1
    return free


def _short(text: str) -> str:
    """Returns a text as a column name. Names travel with each batch, so a long one is cut and made unique with a digest."""
    if len(text) <= NAME_LENGTH:
        return text
    return f"{text[:NAME_LENGTH_CUT]}~{hashlib.blake2b(text.encode(), digest_size=6).hexdigest()}"


def _column_type(value: Expression, types: Mapping[str, ColumnType]) -> ColumnType:
    """Returns the type of an output column; a NULL has the type it is written with, as in `sbon.operators.compile`."""
    found = type_of(value, types)
    if found is not None:
        return found
    return value.type if isinstance(value, Literal) else ColumnType.TEXT
