"""Origins of rows: of which of its inputs an operator without state has made a batch.

An operator with several inputs numbers them, and tells the number with each batch. Whatever takes its rows counts them by this number. So
after a crash it is known how far the lost operator was with each input, in whichever order batches of several inputs had come
(docs/recovery.md).

An operator without state with one input makes each batch of rows of one origin, and passes that origin on. So the same is known if it is
lost together with the operator that it is fed by.

Numbers are the places of the inputs' links in the order of their first names, from 1 on: a link keeps its number when it begins anew.
"""

import zlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeAlias

from sbon.links.batch import Batch
from sbon.links.link_names import first_name
from sbon.types import LinkId

if TYPE_CHECKING:
    from sbon.query.plan import LinkSpec

ByOrigin: TypeAlias = tuple[tuple[int, ...], ...]
"""Numbers of rows for each origin, from the first one on."""


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


def folded(behind: Iterable[tuple[LinkId, tuple[int, ...]]]) -> tuple[int, ...]:
    """Returns in one row the numbers that several links have told: for each link a short name, how many numbers follow, and these.

    Examples
    --------
    >>> unfolded(folded([("a>u:0", (7, 8)), ("b>u:0+7", ())]), "b>u:0"), unfolded((), "a>u:0")
    ((), None)
    """
    return tuple([number for link, numbers in behind for number in (short(link), len(numbers), *numbers)])


def unfolded(told: tuple[int, ...], link: LinkId) -> tuple[int, ...] | None:
    """Returns the numbers of one link out of a row that `folded` has made; None if it has none, or the row is not one."""
    wanted, at = short(link), 0
    while at + 1 < len(told):
        end = at + 2 + told[at + 1]
        if told[at] == wanted:
            return told[at + 2 : end] if end <= len(told) else None
        at = end
    return None


def short(link: LinkId) -> int:
    """Returns a short name of a link, which it keeps when it begins anew: a number of 32 bits."""
    return zlib.crc32(first_name(link).encode())


def of_part(made: tuple[int, ...], link: "LinkSpec") -> int:
    """Returns those of the rows made of one input that go by a link."""
    return sum(made) if link.part is None else made[link.part.index]


class InputRows:
    """The rows of one input of an operator, by origins.

    `made_of_all`: the rows that the operator had made in all when it had processed the last batch of the input; None if unknown.
    `number` is the origin of what is made of the input, 0 for an only input. `made`: if it has a number, the rows that the operator had
    made of it, of each part if it deals them; None if unknown. `made_by_origin`: for the only input of an operator that passes origins on,
    the rows made of each origin, of each part; None if some did not tell theirs, or if it does not pass them on. `taken`: rows of processed
    batches by their origin; None if some did not tell theirs. `is_noted`: a sink notes the origins of what it writes.
    """

    __slots__ = ("is_noted", "made", "made_by_origin", "made_of_all", "number", "taken")

    def __init__(self) -> None:
        self.number = 0
        self.made_of_all: int | None = 0
        self.made: tuple[int, ...] | None = None
        self.made_by_origin: ByOrigin | None = None
        self.is_noted = False
        self.taken: tuple[int, ...] | None = ()

    def of(self, origin: int) -> int:
        """Returns the origin of what an operator without state makes of a batch of this input that tells an origin, or none (0)."""
        return self.number if self.made_by_origin is None else origin

    @property
    def is_kept_apart(self) -> bool:
        """True if batches of several origins may not be joined."""
        return self.is_noted or self.made_by_origin is not None

    def has_made(self, origin: int, rows: Callable[[], tuple[int, ...]]) -> None:
        """Counts what has been made of one origin.

        Parameters
        ----------
        rows : returns the rows, of each part if the operator deals them
        """
        if self.made is not None:
            self.made = _sum(self.made, rows())
        elif self.made_by_origin is not None:
            self.made_by_origin = _more(self.made_by_origin, origin, rows()) if origin else None

    def by_origin(self) -> ByOrigin | None:
        """Returns for each origin the rows taken, and behind them those made of them, of each part; None if that is not known."""
        if self.made_by_origin is None or self.taken is None:
            return None
        made = (*self.made_by_origin, *[()] * (len(self.taken) - len(self.made_by_origin)))
        return tuple([(rows, *(made[place] or (0,))) for place, rows in enumerate(self.taken)])

    def count(self, batch: Batch) -> None:
        """Counts the rows of a batch that has just been processed."""
        if self.taken is not None and batch.rows:
            self.taken = added(self.taken, batch.origin, batch.rows)


def _sum(before: tuple[int, ...], more: tuple[int, ...]) -> tuple[int, ...]:
    return tuple([one + other for one, other in zip(before, more, strict=True)])


def _more(known: ByOrigin, origin: int, rows: tuple[int, ...]) -> ByOrigin:
    nothing = (0,) * len(rows)
    known = (*known, *[nothing] * (origin - len(known)))
    return (*known[: origin - 1], _sum(known[origin - 1] or nothing, rows), *known[origin:])


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

    def next(self, rows: int, origin: int) -> int:
        """Returns how many of the next rows, of one origin, are not given."""
        skipped = min(self.rows, rows)
        return skipped + min(self.due(origin), rows - skipped)

    def acknowledged(self, rows: int, before: tuple[int, ...] | None, now: tuple[int, ...] | None) -> None:
        """Takes that some of these rows will never come: they have been acknowledged.

        Parameters
        ----------
        before, now : the rows acknowledged so far, and now, by their origin; None if that is not known
        """
        self.rows = max(0, self.rows - rows)
        for number, count in enumerate(now or (), 1):
            known = before[number - 1] if before is not None and number <= len(before) else 0
            if self.due(number):
                self.skip(number, max(0, self.due(number) - (count - known)))

    def take(self, rows: int, origin: int) -> int:
        """Returns how many of the next rows, of one origin, are not given, and counts them as skipped."""
        skipped = min(self.rows, rows)
        self.rows -= skipped
        of_origin = min(self.due(origin), rows - skipped)
        if of_origin:
            self.skip(origin, self.due(origin) - of_origin)
        return skipped + of_origin
