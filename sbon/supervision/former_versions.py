"""Latest versions of the records that this agent no longer owns or keeps. Other holders may have older versions, and need its promise.

See docs/recovery.md, Ownership.
"""

from collections import OrderedDict

from sbon.types import QueryId
from sbon.wire.ownership import Record

VERSIONS_MAX = 1_000
"""Most versions that are remembered; beyond that, the earliest are forgotten."""
BYTES_MAX = 16 * 2**20
"""Most bytes that the remembered versions may have in all."""


class FormerVersions:
    """The last known version of each query that others own or keep by now."""

    def __init__(self) -> None:
        self._of: OrderedDict[QueryId, Record] = OrderedDict()

    def of(self, query: QueryId) -> Record | None:
        """Returns the version of a query."""
        return self._of.get(query)

    def add(self, version: Record | None) -> None:
        """Remembers the latest version that was kept here, or that counted; ignores None."""
        if version is None:
            return
        self._of[version.query] = version
        self._of.move_to_end(version.query)
        size = sum(len(one.content) for one in self._of.values())
        while len(self._of) > VERSIONS_MAX or size > BYTES_MAX:
            size -= len(self._of.popitem(last=False)[1].content)

    def forget(self, query: QueryId) -> None:
        """Forgets a query that has ended, or whose later version is kept."""
        self._of.pop(query, None)
