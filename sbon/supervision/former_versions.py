"""The latest versions of records that one agent owns or keeps no more: other holders may have older ones, and need its promise.

See docs/recovery.md, Ownership.
"""

from collections import OrderedDict

from sbon.types import QueryId
from sbon.wire.ownership import Record

VERSIONS_MAX = 1_000
"""Most versions that are remembered; of more, the earliest are forgotten."""
BYTES_MAX = 16 * 2**20
"""Most bytes of their contents."""


class FormerVersions:
    """One version of each query that others own or keep by now."""

    def __init__(self) -> None:
        self._of: OrderedDict[QueryId, Record] = OrderedDict()

    def of(self, query: QueryId) -> Record | None:
        """Returns the version of a query."""
        return self._of.get(query)

    def add(self, version: Record | None) -> None:
        """Takes the latest version that was kept here, or that counted; None if there was none."""
        if version is None:
            return
        self._of[version.query] = version
        self._of.move_to_end(version.query)
        size = sum(len(one.content) for one in self._of.values())
        while len(self._of) > VERSIONS_MAX or size > BYTES_MAX:
            size -= len(self._of.popitem(last=False)[1].content)

    def forget(self, query: QueryId) -> None:
        """Forgets a query that has ended, or of which a later version is kept."""
        self._of.pop(query, None)
