"""Rows that a source received and could not use: column, cause, number, and the first row of each kind.

A kind is a column and a cause. A source distinguishes `KINDS_MAX` kinds and counts the rest as one, and all texts are cut. So a flood of
bad lines takes no more memory, and no more room in a report, than a few of them.
"""

from collections.abc import Iterable
from typing import Annotated, TypeAlias

import msgspec

from sbon.message_limits import Count
from sbon.printable import printable

KINDS_MAX = 32
"""Most kinds that a source distinguishes; rows of further kinds count as `OTHER`."""
KINDS_REPORTED_MAX = 8
"""Most kinds in an operator's report to other agents: those with the most rows."""
VALUE_CHARACTERS_MAX = 40
CAUSE_CHARACTERS_MAX = 120
TEXT_CHARACTERS_MAX = 400
LINE_CHARACTERS_MAX = 160
OTHER = "other causes"
_NULL = "is NULL, declared NOT NULL"

_Text: TypeAlias = Annotated[str, msgspec.Meta(max_length=TEXT_CHARACTERS_MAX)]


class Misfit(msgspec.Struct, frozen=True):
    """Rows that were unusable for one reason. The texts are printable and short."""

    column: _Text
    """The column; empty for the line as a whole."""
    cause: _Text
    """The reason, in the same words for all rows of the kind: `is not an integer (BIGINT)`."""
    rows: Count
    text: _Text
    """A sentence about the first such row: `column age: "abc" is not an integer (BIGINT)`."""
    line: _Text = ""
    """The first such row, as it arrived; empty if there is none to show."""


class Misfits:
    """Counts the unusable rows of one source. One thread at a time counts; any other may call `told`.

    Parameters
    ----------
    beside : counts of another part of the same source, reported together with these
    after : counts to which these will be moved; kinds known there are not new here
    """

    def __init__(self, beside: "Misfits | None" = None, after: "Misfits | None" = None) -> None:
        self.rows = 0
        """All unusable rows, without those of `beside`."""
        self._beside = beside
        self._after = after
        self._kinds: dict[tuple[str, str], Misfit] = {}

    def is_new(self, column: str, cause: str) -> bool:
        """Tells whether a row of this kind would be the first. Only then `add` needs its value and line."""
        known = (cut(column, VALUE_CHARACTERS_MAX), cut(cause, CAUSE_CHARACTERS_MAX)) in self._kinds
        return len(self._kinds) < KINDS_MAX and not known and (self._after is None or self._after.is_new(column, cause))

    def add(self, column: str, cause: str, *, rows: int = 1, value: str = "", text: str = "", line: str | bytes = "") -> None:
        """Counts rows.

        Parameters
        ----------
        column : empty for the line as a whole
        cause : a predicate, the same for all rows of a kind: it must not quote the row
        value : value in the first row, in the form to show
        text : sentence about the first row, if column, value and cause do not make one
        line : the first row
        """
        if rows <= 0:
            return
        self.rows += rows
        key = (cut(column, VALUE_CHARACTERS_MAX), cut(cause, CAUSE_CHARACTERS_MAX))
        known = self._kinds.get(key)
        if known is None and len(self._kinds) >= KINDS_MAX:
            key = ("", OTHER)
            known = self._kinds.get(key, Misfit(*key, 0, OTHER))
        if known is None:
            known = Misfit(*key, 0, cut(text, TEXT_CHARACTERS_MAX) or _sentence(*key, value), cut(line, LINE_CHARACTERS_MAX))
        self._kinds[key] = msgspec.structs.replace(known, rows=known.rows + rows)

    def null(self, column: str, *, rows: int = 1, line: str | bytes = "") -> None:
        """Counts rows with NULL in a column that is declared NOT NULL."""
        self.add(column, _NULL, rows=rows, line=line)

    def is_new_null(self, column: str) -> bool:
        """Tells whether `null` would count the first such row."""
        return self.is_new(column, _NULL)

    def move_to(self, other: "Misfits") -> None:
        """Adds all counts, without those of `beside`, to another object, and resets them."""
        for kind in self._kinds.values():
            other.add(kind.column, kind.cause, rows=kind.rows, text=kind.text, line=kind.line)
        self.clear()

    def clear(self) -> None:
        """Resets the counts, without those of `beside`."""
        self.rows = 0
        self._kinds.clear()

    def told(self, kinds_max: int = 2 * KINDS_MAX + 2) -> tuple[Misfit, ...]:
        """Returns the kinds with the most rows, most first."""
        kinds = tuple(self._kinds.values()) + (() if self._beside is None else self._beside.told())
        return tuple(sorted(kinds, key=lambda kind: -kind.rows)[:kinds_max])


def cut(text: str | bytes, characters_max: int) -> str:
    """Returns others' text in printable form, no longer than this.

    Examples
    --------
    >>> cut(b'{"a": 1}\\r', 20), cut("0123456789", 5)
    ('{"a": 1}\\\\r', '0123…')
    """
    piece = text[: 4 * characters_max + 4]
    shown = printable(piece.decode("utf-8", "backslashreplace") if isinstance(piece, bytes) else piece)
    return shown if len(shown) <= characters_max else shown[: characters_max - 1] + "…"


def clause(misfits: Iterable[Misfit], rows: int) -> str:
    """Describes for people the rows that a source has left out, in one clause; empty if none are known.

    Parameters
    ----------
    rows : number of all rows left out, of all kinds

    Examples
    --------
    >>> clause([Misfit("n", "is not an integer (BIGINT)", 800, 'column n: "x" is not an integer (BIGINT)')], 803)
    '803 rows left out: column n: "x" is not an integer (BIGINT) (800 rows), other causes (3 rows)'
    """
    kinds = sorted(misfits, key=lambda kind: (kind.cause == OTHER, -kind.rows))
    if not kinds:
        return ""
    shown = kinds[:2]
    rest = rows - sum(kind.rows for kind in shown)
    said = [f"{kind.text} ({_rows(kind.rows)})" for kind in shown] + ([f"{OTHER} ({_rows(rest)})"] if rest > 0 else [])
    return f"{_rows(rows)} left out: {', '.join(said)}"


def _rows(number: int) -> str:
    return f"{number:,} row{'' if number == 1 else 's'}"


def _sentence(column: str, cause: str, value: str) -> str:
    shown = f"{cut(value, VALUE_CHARACTERS_MAX)} " if value else ""
    if not column:
        return f"{shown}{cause}"
    return f"column {column}: {shown}{cause}" if shown else f"column {column} {cause}"
