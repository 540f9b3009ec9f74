"""Notes the input and the origin of the rows that a sink writes, so that they are known after a crash.

A sink with several inputs, or behind an operator with several inputs, gets its rows in another order after a crash
(`sbon.links.origins`). The sink's file tells how many rows it has written; the log tells how many of these came from each input and origin.
A note is made before its rows are written. If the write fails, the next note begins at the same row, and replaces the earlier one.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Collection
from typing import IO

from sbon_agent.connectors.opening import Folder

_NOTE = struct.Struct("<QQIH")
"""Number of the first row since the query began, number of rows, short name of the input, origin."""
NOTES_MAX = 50_000
"""Notes after which the log is rewritten with one note for each input and origin."""
Key = tuple[int, int]
PLAIN: Key = (0, 0)
"""Key of rows from a single input that names no origins."""

ASIDE: Key = (0, 2**16 - 1)
"""Key of rows that are not counted any more."""


class OriginLog:
    """The log of one sink, a file in an open folder. Nothing is written before the first note.

    Errors of the disk are raised as OSError.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._file: IO[bytes] | None = None
        self._rows = 0
        """Rows written since the query began."""
        self._known: dict[Key, int] | None = {}
        """Rows written, by input and origin; None if an earlier copy of the sink has not noted that."""
        self._notes = 0
        self.is_kept = False
        """True: `close` keeps the log, for a copy of the sink that continues after the agent's restart. A crash leaves it in any case."""

    def resume(self, folder: Folder, rows: int) -> dict[Key, int] | None:
        """Continues the notes of an earlier copy, which has written `rows` rows; returns the rows by input and origin, None if unknown."""
        self._rows, self._known = rows, None
        try:
            with folder.open(self._name, os.O_RDONLY) as file:
                self._known = noted(file.read(), rows)
        except FileNotFoundError:
            self._known = None if rows else {}
        if self._known is not None:
            self._rewrite(folder)
        else:
            folder.remove(self._name)
        return self._counted()

    def set_aside(self, folder: Folder, links: Collection[int]) -> dict[Key, int] | None:
        """Counts the rows of some inputs no more, as later rows of these inputs are other ones. Returns what `resume` returns."""
        if self._known is not None and any(link in links for link, _ in self._known):
            aside = sum(rows for (link, _), rows in self._known.items() if link in links)
            self._known = {key: rows for key, rows in self._known.items() if key[0] not in links}
            self._known[ASIDE] = self._known.get(ASIDE, 0) + aside
            self._rewrite(folder)
        return self._counted()

    def _counted(self) -> dict[Key, int] | None:
        return None if self._known is None else {key: rows for key, rows in self._known.items() if key != ASIDE}

    def restart(self, folder: Folder) -> None:
        """Forgets all rows written so far: the next one is the first."""
        self.close(folder)
        folder.remove(self._name)
        self._rows, self._known, self._notes = 0, {}, 0

    def note(self, folder: Folder, key: Key, rows: int) -> None:
        """Notes the input and the origin of the next rows, before they are written. Rows of a single input that names no origins need no
        note."""
        if self._known is None or not rows or (key == PLAIN and not self._known):
            return
        if self._file is None or self._notes >= NOTES_MAX:
            self._rewrite(folder)
        assert self._file is not None
        data = memoryview(_NOTE.pack(self._rows, rows, *key))
        start = os.fstat(self._file.fileno()).st_size
        try:
            while data:
                data = data[self._file.write(data) :]
        except OSError:
            self._file.truncate(start)
            raise
        self._notes += 1

    def written(self, key: Key, rows: int) -> None:
        """Records that the rows of the last note have been written."""
        self._rows += rows
        if key == PLAIN and not self._known:
            self._known = None
        if self._known is not None:
            self._known[key] = self._known.get(key, 0) + rows

    def close(self, folder: Folder | None) -> None:
        """Closes the log, and removes it from its folder unless it is to be kept."""
        file, self._file = self._file, None
        if file is not None:
            file.close()
            if folder is not None and not self.is_kept:
                folder.remove(self._name)

    def _rewrite(self, folder: Folder) -> None:
        assert self._known is not None
        if self._file is not None:
            self._file.close()
        new, start = f"{self._name}.new", 0
        with folder.create(new) as file:
            for key, rows in self._known.items():
                file.write(_NOTE.pack(start, rows, *key))
                start += rows
        folder.replace(self._name, by=new)
        self._file, self._notes = folder.open(self._name, os.O_WRONLY | os.O_APPEND), 0


def noted(data: bytes, rows: int) -> dict[Key, int] | None:
    """Returns how many of the first `rows` rows are from each input and origin, by a log; None if the log does not cover them all.

    Examples
    --------
    >>> data = _NOTE.pack(0, 5, 7, 1) + _NOTE.pack(5, 9, 7, 2) + _NOTE.pack(5, 3, 7, 1)
    >>> noted(data + data[:9], 6), noted(data, 9), noted(data[_NOTE.size :], 6)
    ({(7, 1): 6}, None, None)
    """
    notes: list[tuple[int, int, Key]] = []
    for place in range(0, len(data) - _NOTE.size + 1, _NOTE.size):
        start, count, name, origin = _NOTE.unpack_from(data, place)
        while notes and notes[-1][0] >= start:
            notes.pop()
        if start != (notes[-1][0] + notes[-1][1] if notes else 0):
            return None
        notes.append((start, count, (name, origin)))
    found: dict[Key, int] = {}
    for start, count, key in notes:
        if min(count, rows - start) > 0:
            found[key] = found.get(key, 0) + min(count, rows - start)
    return found if sum(found.values()) == rows else None
