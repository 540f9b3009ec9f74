"""Origins of rows: of which of its inputs an operator without state has made a batch.

An operator with several inputs numbers them, and tells the number with each batch. Whatever takes its rows counts them by this number. So
after a crash it is known how far the lost operator was with each input, in whichever order batches of several inputs had come
(docs/recovery.md).

Numbers are the places of the inputs' links in the order of their first names, from 1 on: a link keeps its number when it begins anew.
"""

from collections.abc import Iterable

from sbon.links.batch import Batch
from sbon.query.plan import first_name
from sbon.types import LinkId


def numbered(links: Iterable[LinkId]) -> dict[LinkId, int]:
    """Returns the numbers of an operator's inputs by the first names of their links.

    Examples
    --------
    >>> numbered(["b>u:0+7", "a>u:0"])
    {'a>u:0': 1, 'b>u:0': 2}
    """
    return {name: number for number, name in enumerate(sorted(map(first_name, links)), 1)}


def counted(known: tuple[int, ...] | None, batches: Iterable[Batch]) -> tuple[int, ...] | None:
    """Adds the rows of batches to those taken of each origin; None once rows have come whose origin is not told.

    Examples
    --------
    >>> counted((5,), []), counted(None, [])
    ((5,), None)
    """
    for batch in batches:
        if known is None:
            return None
        if batch.rows:
            known = added(known, batch.origin, batch.rows)
    return known


def added(known: tuple[int, ...], origin: int, rows: int) -> tuple[int, ...] | None:
    """Returns numbers of rows by origin with more rows of one; None if that one is not told.

    Examples
    --------
    >>> added((5,), 3, 2), added((5, 0, 2), 1, 1), added((), 0, 1)
    ((5, 0, 2), (6, 0, 2), None)
    """
    if not origin:
        return None
    if len(known) < origin:
        known = (*known, *[0] * (origin - len(known)))
    return (*known[: origin - 1], known[origin - 1] + rows, *known[origin:])


class InputRows:
    """The rows of one input of an operator, by origins.

    `made_of_all`: the rows that the operator had made in all when it had processed the last batch of the input; None if unknown.
    `number` is the origin of what is made of the input, 0 for an only input. `made`: if it has a number, the rows that the operator had
    made of it, of each part if it deals them; None if unknown. `taken`: rows of processed batches by their origin; None if some did not
    tell theirs.
    """

    __slots__ = ("made", "made_of_all", "number", "taken")

    def __init__(self) -> None:
        self.number = 0
        self.made_of_all: int | None = 0
        self.made: tuple[int, ...] | None = None
        self.taken: tuple[int, ...] | None = ()

    def count(self, batch: Batch) -> None:
        """Counts the rows of a batch that has just been processed."""
        if self.taken is not None and batch.rows:
            self.taken = added(self.taken, batch.origin, batch.rows)


class Giving:
    """The next rows of an output that are not given: the first `rows` of all, and so many of each origin.

    `is_whole`: it has been given all that the operator has made, so that what takes its rows knows how many of each origin there are.
    """

    __slots__ = ("by_origin", "is_whole", "rows")

    def __init__(self) -> None:
        self.is_whole = True
        self.rows = 0
        self.by_origin: list[int] = []

    @property
    def is_due(self) -> bool:
        """True if the next rows are not all given."""
        return bool(self.rows or self.by_origin)

    def due(self, origin: int) -> int:
        """Returns how many of the next rows of an origin are not given."""
        return self.by_origin[origin - 1] if 0 < origin <= len(self.by_origin) else 0

    def skip(self, origin: int, rows: int) -> None:
        """Sets how many of the next rows of an origin are not given."""
        by_origin = [*self.by_origin, *[0] * (origin - len(self.by_origin))]
        by_origin[origin - 1] = rows
        self.by_origin = by_origin if any(by_origin) else []

    def take(self, rows: int, origin: int) -> int:
        """Returns how many of the next rows, of one origin, are not given, and counts them as skipped."""
        skipped = min(self.rows, rows)
        self.rows -= skipped
        of_origin = min(self.due(origin), rows - skipped)
        if of_origin:
            self.skip(origin, self.due(origin) - of_origin)
        return skipped + of_origin
