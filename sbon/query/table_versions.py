"""The stream of a lookup table: its columns, then each row's version and the number of rows of that version.

An empty version is one row of NULLs with a row count of 0. A version is complete when as many rows have arrived as each of them
announces. The columns of version and row count are always the last.
"""

from collections.abc import Sequence

from sbon.schema import ColumnType, Field, Schema

ROWS_MAX = 1_000_000
"""Most rows of one version: the host of the join keeps them in memory."""
BYTES_MAX = 256 * 2**20
"""Most memory of one version where it is read."""
ROWS_PER_S = 1.0
"""Expected rows a second of a table without a declared rate: it is sent once, and again when it changes."""


def sent_columns(columns: Schema) -> Schema:
    """Returns the columns of a table as they are sent.

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
