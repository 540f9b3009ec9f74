"""Lays out tables in lines of a given width, without breaking or cutting anything that may be typed again.

A table shows its main columns. Those marked `wide` are added with `--wide`, or if the line has room for them. A line that is too long is
reduced in this order: texts and lists that may be shortened; main columns that are neither first nor `keep`, from the right; and if even
the rest does not fit, each row becomes a block with a line for each column. Without a width (no terminal) nothing is reduced.
"""

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple
from unicodedata import combining, east_asian_width

from sbon.printable import printable

GAP = "  "
TEXT_WIDTH_MIN = 16
"""Least width to which a text is shortened while other columns can be left out."""
TEXT_WIDTH_LEAST = 8
"""Least width to which a text is shortened at all."""
TEXT_WIDTH_FAIR = 40
"""Least width of texts from which an optional column is shown without `--wide`."""


class Shorten(Enum):
    """The ways to shorten a column's cells on a narrow line."""

    NEVER = "never"
    """Not shortened: ids, names, numbers."""
    END = "end"
    """For texts: the end becomes an ellipsis."""
    LIST = "list"
    """For items separated by blanks: whole items are left out and counted (`ams nyc +3`)."""


class Column(NamedTuple):
    """A table's column."""

    title: str
    right: bool = False
    """Aligned on the right, as numbers are."""
    shorten: Shorten = Shorten.NEVER
    keep: bool = False
    """Never left out for lack of room, like the first column."""
    wide: bool = False
    """Shown with `--wide`, or if there is room."""


class Span(NamedTuple):
    """A piece of a line, and the style in which a terminal shows it."""

    text: str
    style: str = ""


Line = list[Span]

STYLES = {
    "alive": "green",
    "running": "green",
    "suspect": "yellow",
    "degraded": "yellow",
    "blocked": "yellow",
    "paused": "yellow",
    "stalled": "yellow",
    "waiting": "yellow",
    "orphaned": "yellow",
    "recovering": "yellow",
    "failed": "red",
    "left": "dim",
    "finished": "dim",
    "shared": "dim",
}
"""Colours of states that stand alone in a cell."""


def table_lines(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None, *, wide: bool = False) -> list[Line]:
    """Lays a table out.

    Parameters
    ----------
    width : width of a line; None for no limit
    wide : show all columns

    Examples
    --------
    >>> columns = [Column("node"), Column("what it does", shorten=Shorten.END), Column("rtt", right=True)]
    >>> rows = [["ams1", "counts the trades of each symbol", "9.5"], ["b", "filters", "120.0"]]
    >>> print(*plain(table_lines(columns, rows, 30)), sep="\\n")
    node  what it does         rtt
    ams1  counts the trade…    9.5
    b     filters            120.0
    """
    cells = [[printable(cell) for cell in row] for row in rows]
    measures = [_measure(column, [row[i] for row in cells]) for i, column in enumerate(columns)]
    shown, widths = _fitted(columns, measures, width, wide)
    if shown and widths is None:
        titles = [columns[i].title for i in shown]
        blocks: list[Line] = []
        for row in cells:
            blocks += [[], *record_lines([(title, row[i]) for title, i in zip(titles, shown, strict=True)], width)]
        return blocks[1:]
    assert widths is not None
    lines = [_line([Span(columns[i].title, "bold") for i in shown], widths, [columns[i].right for i in shown])]
    for row in cells:
        spans = [Span(shortened(row[i], width, columns[i].shorten), STYLES.get(row[i], "")) for i, width in zip(shown, widths, strict=True)]
        lines.append(_line(spans, widths, [columns[i].right for i in shown]))
    return lines


def record_lines(pairs: Sequence[tuple[str, str]], width: int | None) -> list[Line]:
    """Lays names and values out, a line for each; long values go on below themselves, broken between words only.

    Examples
    --------
    >>> print(*plain(record_lines([("name", "ams1"), ("labels", "region=eu site=amsterdam")], 24)), sep="\\n")
    name    ams1
    labels  region=eu
            site=amsterdam
    """
    titles = max((display_width(title) for title, _ in pairs), default=0)
    lines = []
    for title, value in pairs:
        value = printable(value)
        for number, part in enumerate(wrapped(value, None if width is None else max(width - titles - len(GAP), 1))):
            lines.append(_line([Span("" if number else title, "bold"), Span(part, STYLES.get(value, ""))], [titles, 0], [False, False]))
    return lines


def plain(lines: Sequence[Line]) -> list[str]:
    """Returns the lines without styles."""
    return ["".join(span.text for span in line) for line in lines]


def wrapped(text: str, width: int | None) -> list[str]:
    """Wraps text to lines of at most this width at blanks only; a longer word gets a line of its own.

    Examples
    --------
    >>> wrapped("ams.1t95lbp.01 waits for nyc", 12)
    ['ams.1t95lbp.01', 'waits for', 'nyc']
    """
    if width is None or display_width(text) <= width:
        return [text]
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if lines[-1] and display_width(longer) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def shortened(cell: str, width: int, how: Shorten) -> str:
    """Shortens a cell to a width, unless its column must not be shortened.

    Examples
    --------
    >>> shortened("SELECT node FROM sys.load", 12, Shorten.END), shortened("ams nyc rome tokyo", 12, Shorten.LIST)
    ('SELECT node…', 'ams nyc +2')
    """
    if how is Shorten.NEVER or display_width(cell) <= width:
        return cell
    if how is Shorten.LIST:
        items = cell.split(" ")
        for number in range(len(items) - 1, 1, -1):
            text = _first_items(items, number)
            if display_width(text) <= width:
                return text
        return _first_items(items, 1)
    while cell and display_width(cell) >= width:
        cell = cell[:-1]
    return f"{cell.rstrip()}…"


def display_width(text: str) -> int:
    """Returns the number of terminal cells that the text takes: two for each wide character of East Asia, none for a combining one.

    Examples
    --------
    >>> display_width("ams1"), display_width("東京"), display_width("Zu\\u0308rich")
    (4, 4, 6)
    """
    if text.isascii():
        return len(text)
    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)


class _Measure(NamedTuple):
    """Widths of a column: the smallest, the one up to which other columns are left out for it, and the full one."""

    least: int
    usual: int
    natural: int


def _measure(column: Column, cells: Sequence[str]) -> _Measure:
    title = display_width(column.title)
    natural = max([title, *map(display_width, cells)])
    if column.shorten is Shorten.END:
        least, usual = (max(title, min(natural, width)) for width in (TEXT_WIDTH_LEAST, TEXT_WIDTH_MIN))
        return _Measure(least, usual, natural)
    if column.shorten is Shorten.LIST:
        least = max([title, *(display_width(shortened(cell, 1, Shorten.LIST)) for cell in cells)])
        return _Measure(least, least, natural)
    return _Measure(natural, natural, natural)


def _fitted(columns: Sequence[Column], measures: Sequence[_Measure], width: int | None, wide: bool) -> tuple[list[int], list[int] | None]:
    """Returns the columns shown and their widths; no widths if they do not fit on a line."""
    shown = [i for i, column in enumerate(columns) if wide or not column.wide]
    asked = list(shown)
    if width is None:
        return shown, [measures[i].natural for i in shown]

    def spare(chosen: Sequence[int], sizes: Sequence[int]) -> int:
        return width - sum(sizes[i] for i in chosen) - len(GAP) * (len(chosen) - 1)

    least = [measure.usual for measure in measures]
    while not wide and spare(shown, least) < 0:
        droppable = [i for i in shown[1:] if not columns[i].keep]
        if not droppable:
            break
        shown.remove(droppable[-1])
    if spare(shown, least) < 0:
        least = [measure.least for measure in measures]
    if spare(shown, least) < 0:
        return asked, None
    fair = [
        min(measure.natural, TEXT_WIDTH_FAIR) if column.shorten is Shorten.END else measure.natural
        for column, measure in zip(columns, measures, strict=True)
    ]
    for i in range(len(columns)) if shown == asked else ():
        if i not in shown and spare(with_it := sorted([*shown, i]), fair) >= 0:
            shown = with_it
    widths, left = {i: least[i] for i in shown}, spare(shown, least)
    growing = sorted((i for i in shown if measures[i].natural > least[i]), key=lambda i: measures[i].natural - least[i])
    for number, i in enumerate(growing):
        more = min(measures[i].natural - least[i], left // (len(growing) - number))
        widths[i] += more
        left -= more
    return shown, [widths[i] for i in shown]


def _first_items(items: Sequence[str], number: int) -> str:
    rest = len(items) - number
    return " ".join(items[:number]) + (f" +{rest}" if rest else "")


def _line(spans: Sequence[Span], widths: Sequence[int], right: Sequence[bool]) -> Line:
    """Returns a line with the spans in their columns, without trailing blanks."""
    line: Line = []
    for number, (span, width, is_right) in enumerate(zip(spans, widths, right, strict=True)):
        padding = Span(" " * (width - display_width(span.text)))
        line += [*([Span(GAP)] if number else []), *((padding, span) if is_right else (span, padding))]
    while line and not line[-1].text.strip(" "):
        line.pop()
    return line
