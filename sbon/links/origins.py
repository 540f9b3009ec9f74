"""Origins of rows: the number of the input of which a stateless operator has made a batch.

A stateless operator with several inputs numbers them, and sends the number with each batch. Its consumers count its rows by this number. So
after a crash the consumers know how far the lost operator had got with each input, in whatever order the batches of its inputs had come
(docs/recovery.md).

A stateless operator with one input makes each batch of rows of one origin, and passes that origin on. So its consumers also know this if
the operator is lost together with the one that feeds it.

Inputs are numbered from 1 in the order of their links' first names, so a link keeps its number when it is renewed.
"""

import zlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeAlias

from sbon.links.batch import Batch
from sbon.links.link_names import first_name
from sbon.links.row_times import RowTimes
from sbon.types import LinkId
from sbon.watermarks import WATERMARK_MIN

if TYPE_CHECKING:
    from sbon.query.plan import LinkSpec

ByOrigin: TypeAlias = tuple[tuple[int, ...], ...]
"""Numbers of rows of each origin; the first entry is for origin 1."""


def numbered(links: Iterable[LinkId]) -> dict[LinkId, int]:
    """Returns the numbers of an operator's inputs by the first names of their links.

    Examples
    --------
    >>> numbered(["b>u:0+7", "a>u:0"])
    {'a>u:0': 1, 'b>u:0': 2}
    """
    return {name: number for number, name in enumerate(sorted(map(first_name, links)), 1)}


def counted(known: tuple[int, ...] | None, batches: Iterable[Batch]) -> tuple[int, ...] | None:
    """Returns the rows taken of each origin plus those of more batches; None if the origin of any rows is unknown.

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
    """Returns the rows of each origin after more rows of one origin; None if that origin is unknown (0).

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
    """Returns the numbers of several links in one tuple: for each link a short name, how many numbers follow, and the numbers.

    Examples
    --------
    >>> unfolded(folded([("a>u:0", (7, 8)), ("b>u:0+7", ())]), "b>u:0"), unfolded((), "a>u:0")
    ((), None)
    """
    return tuple([number for link, numbers in behind for number in (short(link), len(numbers), *numbers)])


def unfolded(told: tuple[int, ...], link: LinkId) -> tuple[int, ...] | None:
    """Returns the numbers of one link from a tuple of `folded`; None if it has none for the link, or is malformed."""
    wanted, at = short(link), 0
    while at + 1 < len(told):
        end = at + 2 + told[at + 1]
        if told[at] == wanted:
            return told[at + 2 : end] if end <= len(told) else None
        at = end
    return None


def short(link: LinkId) -> int:
    """Returns a short name of a link, a number of 32 bits, which stays the same when the link is renewed."""
    return zlib.crc32(first_name(link).encode())


def of_part(made: tuple[int, ...], link: "LinkSpec") -> int:
    """Returns how many of the rows made of one input go to a link: all, or those of the link's part.

    Parameters
    ----------
    made : rows of each part
    """
    return sum(made) if link.part is None else made[link.part.index]


class InputRows:
    """Counts of the rows of one input of an operator, by origin.

    Attributes
    ----------
    made_of_all
        All rows that the operator had made when it had processed the last batch of the input; None if unknown.
    number
        Origin of the rows made of the input; 0 for an only input.
    made
        If the input has a number: the rows that the operator had made of it, for each part if the operator deals them. None if unknown.
    made_by_origin
        For the only input of an operator that passes origins on: the rows made of each origin, for each part. None if the origin of some
        rows is unknown, or if the operator does not pass origins on.
    taken
        Rows of processed batches, by origin; None if the origin of some rows is unknown.
    is_noted
        True if a sink notes the origins of the rows that it writes.
    times
        Watermarks that the rows of processed batches had been made for.
    began_us
        Watermark at which the operator began, empty, after a crash, before any batch of the input.

    Parameters
    ----------
    is_first : False if batches have come that are not known
    """

    __slots__ = ("began_us", "is_noted", "made", "made_by_origin", "made_of_all", "number", "taken", "times")

    def __init__(self, *, is_first: bool = True) -> None:
        self.number = 0
        self.made_of_all: int | None = 0
        self.made: tuple[int, ...] | None = None
        self.made_by_origin: ByOrigin | None = None
        self.is_noted = False
        self.taken: tuple[int, ...] | None = ()
        self.times = RowTimes(is_first=is_first)
        self.began_us = WATERMARK_MIN

    def of(self, origin: int) -> int:
        """Returns the origin of the rows that a stateless operator makes of a batch with this origin (0: unknown) on this input."""
        return self.number if self.made_by_origin is None else origin

    @property
    def is_kept_apart(self) -> bool:
        """True if batches of different origins must not be joined."""
        return self.is_noted or self.made_by_origin is not None

    def has_made(self, origin: int, rows: Callable[[], tuple[int, ...]]) -> None:
        """Counts the rows made of one origin.

        Parameters
        ----------
        rows : returns the number of rows, for each part if the operator deals them
        """
        if self.made is not None:
            self.made = _sum(self.made, rows())
        elif self.made_by_origin is not None:
            self.made_by_origin = _more(self.made_by_origin, origin, rows()) if origin else None

    def by_origin(self) -> ByOrigin | None:
        """Returns for each origin the number of rows taken, then the number made of them for each part; None if unknown."""
        if self.made_by_origin is None or self.taken is None:
            return None
        made = (*self.made_by_origin, *[()] * (len(self.taken) - len(self.made_by_origin)))
        return tuple([(rows, *(made[place] or (0,))) for place, rows in enumerate(self.taken)])

    def count(self, batch: Batch) -> None:
        """Counts the rows of a batch that has just been processed."""
        self.times.take(batch)
        if self.taken is not None and batch.rows:
            self.taken = added(self.taken, batch.origin, batch.rows)


def _sum(before: tuple[int, ...], more: tuple[int, ...]) -> tuple[int, ...]:
    return tuple([one + other for one, other in zip(before, more, strict=True)])


def _more(known: ByOrigin, origin: int, rows: tuple[int, ...]) -> ByOrigin:
    nothing = (0,) * len(rows)
    known = (*known, *[nothing] * (origin - len(known)))
    return (*known[: origin - 1], _sum(known[origin - 1] or nothing, rows), *known[origin:])


class Giving:
    """The next rows of an output that are not given: `rows` of any origin, then `by_origin` of each origin.

    `is_whole`: the output was given all rows that the operator has made, so its consumer knows how many there are of each origin.
    """

    __slots__ = ("by_origin", "is_whole", "rows")

    def __init__(self) -> None:
        self.is_whole = True
        self.rows = 0
        self.by_origin: list[int] = []

    @property
    def is_due(self) -> bool:
        """True if some of the next rows are not given."""
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
        """Returns how many of the next `rows` rows, all of one origin, are not given."""
        skipped = min(self.rows, rows)
        return skipped + min(self.due(origin), rows - skipped)

    def acknowledged(self, rows: int, before: tuple[int, ...] | None, now: tuple[int, ...] | None) -> None:
        """Reduces the rows to skip by rows that have been acknowledged, and will therefore not come.

        Parameters
        ----------
        rows : newly acknowledged rows
        before, now : rows acknowledged before and now, by origin; None if unknown
        """
        self.rows = max(0, self.rows - rows)
        for number, count in enumerate(now or (), 1):
            known = before[number - 1] if before is not None and number <= len(before) else 0
            if self.due(number):
                self.skip(number, max(0, self.due(number) - (count - known)))

    def take(self, rows: int, origin: int) -> int:
        """Returns how many of the next `rows` rows, all of one origin, are not given, and counts these as skipped."""
        skipped = min(self.rows, rows)
        self.rows -= skipped
        of_origin = min(self.due(origin), rows - skipped)
        if of_origin:
            self.skip(origin, self.due(origin) - of_origin)
        return skipped + of_origin
