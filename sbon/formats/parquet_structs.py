"""Converts columns of texts to columns of structs, or of arrays of structs, for Parquet. The `file` sink uses it."""

from __future__ import annotations

import polars as pl

from sbon.arrays import plain_value
from sbon.operators.frames import polars_type
from sbon.schema import ColumnType, Schema, element_type, family, members_of


class StructColumns:
    """Converts the struct columns of one schema; others stay as they are.

    Examples
    --------
    >>> from sbon.schema import Field
    >>> columns = StructColumns((Field("place", ColumnType('struct[["lat","float"]]')),))
    >>> columns.of(pl.DataFrame({"place": ['{"lat":1.5}', None]})).rows()
    [({'lat': 1.5},), (None,)]
    """

    def __init__(self, schema: Schema) -> None:
        self._kinds = {field.name: field.type for field in schema if family(field.type) is not field.type}

    def of(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Returns the frame with structs in place of their texts."""
        columns = []
        for name, kind in self._kinds.items():
            values = [None if text is None else plain_value(text, kind) for text in frame[name]]
            columns.append(pl.Series(name, values, dtype=_type(kind)))
        return frame.with_columns_seq(columns)


def _type(kind: ColumnType) -> pl.DataType:
    """Returns the type of a column, element or field within a struct column."""
    members, element = members_of(kind), element_type(kind)
    if members:
        return pl.Struct([pl.Field(member.name, _type(member.type)) for member in members])
    return polars_type(kind) if element is None else pl.List(_type(element))
