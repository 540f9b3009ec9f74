"""Batches that an operator without state has processed, and that would be lost with its host: a machine without I/O, one for each input.

Such an operator keeps nothing but what it has given. A batch is *safe* when all that was made of it has been acknowledged further on, and
is safe there. Its sender keeps it until then (docs/recovery.md).
"""

from collections import deque
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from sbon.links.origins import ByOrigin

Given = TypeVar("Given")


class Mark(NamedTuple, Generic[Given]):
    """The state of an operator after one of its batches."""

    sequence: int
    made: int | None
    """Rows that the operator had made; None for one that passes rows on without counting as a maker of them."""
    parts: tuple[int, ...]
    """Rows of each part, if the operator deals its rows."""
    given: tuple[Given, ...]
    """The last batch offered to each output."""
    by_origin: ByOrigin | None = None
    """Rows taken and made of each origin (`InputRows.by_origin`)."""
    is_level: bool = True
    """False if rows were left out there that the targets have had before a crash, with more to come: what these have made by that batch is
    made of more rows."""


class Unsafe(Generic[Given]):
    """Processed batches of one input, oldest first, until they are safe."""

    __slots__ = ("_marks", "behind", "by_origin", "made", "safe")

    def __init__(self) -> None:
        self._marks: deque[Mark[Given]] = deque()
        self.safe = 0
        """All batches up to this number are safe."""
        self.made: int | None = 0
        """Rows that the operator had made of them."""
        self.behind: tuple[int, ...] = ()
        """Rows of each part, if it deals them; otherwise what operators without state behind it had made of these rows, one after the
        other, as far as that is known. Of an operator with several inputs: the numbers for this input that the operators behind it have
        told by origin (`sbon.links.origins.folded`)."""
        self.by_origin: ByOrigin | None = ()
        """For each origin of these rows: those taken, and those made of them, of each part. If they are not dealt, the same numbers of the
        operators behind it follow (`sbon.links.origins.folded`), as far as they are known. None: not known."""

    def __len__(self) -> int:
        return len(self._marks)

    def begin(self, safe: int, made: int | None, parts: tuple[int, ...] = (), by_origin: ByOrigin | None = None) -> None:
        """Goes on behind another copy of the operator, or another link, with all that had been given by then acknowledged."""
        self._marks.clear()
        self.safe, self.made, self.behind, self.by_origin = safe, made, parts, by_origin

    def processed(self, mark: Mark[Given]) -> None:
        """Notes that a batch has been processed. One of which nothing was made is as safe as the one before it."""
        if self._marks and self._marks[-1].given == mark.given:
            self._marks[-1] = mark
        else:
            self._marks.append(mark)

    def again(self, mark: Mark[Given]) -> None:
        """Forgets which batch led to which output: all are safe when the last of them is."""
        self._marks.clear()
        if mark.sequence > self.safe:
            self._marks.append(mark)

    def look(self, is_safe: Callable[[Given], bool]) -> Mark[Given] | None:
        """Takes note of what has become safe; returns the last batch of it, None if there is none."""
        found: Mark[Given] | None = None
        while self._marks:
            for one in self._marks[0].given:
                if not is_safe(one):
                    return found
            found = self._marks.popleft()
            self.safe, self.made, self.behind, self.by_origin = found.sequence, found.made, found.parts, found.by_origin
        return found
