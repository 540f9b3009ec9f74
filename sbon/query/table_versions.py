"""How a lookup table travels: its columns, then which version a row is of and how many rows that version has.

A version without rows is one row with NULLs that says so. A version is whole when as many of its rows have come as each
of them says. These two columns are the last, whatever the author has called the others.
"""

from collections.abc import Sequence

from sbon.query.schema import ColumnType, Field, Schema

ROWS_MAX = 1_000_000
"""Rows of one version: the host of the join keeps them in memory."""
BYTES_MAX = 256 * 2**20
"""Memory of one version where it is read."""
ROWS_PER_S = 1.0
"""Expected rows a second of a table, where its declaration says nothing: it is sent once, and again when it changes."""


def sent_columns(columns: Schema) -> Schema:
    """The columns of a table as they are sent.

    Examples
    --------
    >>> [field.name for field in sent_columns((Field("id", ColumnType.INT), Field("version", ColumnType.TEXT)))]
    ['id', 'version', 'version_2', 'rows']
    """
    version = _free("version", [field.name for field in columns])
    rows = _free("rows", [field.name for field in columns])
    return (*columns, Field(version, ColumnType.INT), Field(rows, ColumnType.INT))


def _free(name: str, taken: Sequence[str]) -> str:
    number, free = 2, name
    while free in taken:
        free, number = f"{name}_{number}", number + 1
    return free
