"""The table that answers a DESCRIBE or SHOW, for people and for programs."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec


class Listing(msgspec.Struct, frozen=True):
    """A table that answers a question."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str | None, ...], ...]

    def as_objects(self) -> list[dict[str, Any]]:
        """Returns the rows as objects, for programs."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


def listing_of_queries(rows: Iterable[Mapping[str, Any]]) -> Listing:
    """Builds the answer to SHOW QUERIES from the rows of `sbon queries`."""
    fields = {"query": "id", "name": "name", "state": "state", "sink at": "sink_node", "reason": "reason"}
    told = (tuple(str(row[field]) if row.get(field) else None for field in fields.values()) for row in rows)
    return Listing(tuple(fields), tuple(told))
