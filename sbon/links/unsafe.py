"""Batches that a stateless operator has processed, and that would be lost with its host: a machine without I/O, one for each input.

A stateless operator keeps only the rows that it has given. An input batch is *safe* when all rows made of it have been acknowledged as
safe by the consumers. The batch's sender keeps it until then (docs/recovery.md).
"""

from collections import deque
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from sbon.links.origins import ByOrigin

Given = TypeVar("Given")


class Mark(NamedTuple, Generic[Given]):
    """The counts of an operator after one batch of an input."""

    sequence: int
    made: int | None
    """Rows that the operator had made; None for a multicast, which makes no rows, or if unknown."""
    parts: tuple[int, ...]
    """Rows of each part, if the operator deals its rows."""
    given: tuple[Given, ...]
    """The last batch offered to each output."""
    by_origin: ByOrigin | None = None
    """Rows taken and made, by origin (`InputRows.by_origin`)."""
    is_level: bool = True
    """False while the operator skips rows that its consumers took before a crash: the consumers' counts then cover more rows than these."""


class Unsafe(Generic[Given]):
    """Processed batches of one input, oldest first, until they are safe."""

    __slots__ = ("_marks", "behind", "by_origin", "made", "safe")

    def __init__(self) -> None:
        self._marks: deque[Mark[Given]] = deque()
        self.safe = 0
        """All batches up to this number are safe."""
        self.made: int | None = 0
        """Rows that the operator had made up to there; None if unknown."""
        self.behind: tuple[int, ...] = ()
        """If the operator deals its rows: the rows of each part. Otherwise: the rows that each stateless operator behind it had made of
        these, nearest operator first, as far as known. If the operator has several inputs: the numbers for this input that the operators
        behind it have sent by origin (`sbon.links.origins.folded`)."""
        self.by_origin: ByOrigin | None = ()
        """For each origin: the rows taken, and the rows made of them for each part. If the rows are not dealt, the same numbers of the
        operators behind follow (`sbon.links.origins.folded`), as far as known. None: unknown."""

    def __len__(self) -> int:
        return len(self._marks)

    def begin(self, safe: int, made: int | None, parts: tuple[int, ...] = (), by_origin: ByOrigin | None = None) -> None:
        """Continues after another copy of the operator, or another link; all rows given by then count as acknowledged."""
        self._marks.clear()
        self.safe, self.made, self.behind, self.by_origin = safe, made, parts, by_origin

    def processed(self, mark: Mark[Given]) -> None:
        """Notes that a batch has been processed. If no output was made of it, it becomes safe together with the previous batch."""
        if self._marks and self._marks[-1].given == mark.given:
            self._marks[-1] = mark
        else:
            self._marks.append(mark)

    def again(self, mark: Mark[Given]) -> None:
        """Replaces all marks by this one: the batches become safe together, when the last of them does."""
        self._marks.clear()
        if mark.sequence > self.safe:
            self._marks.append(mark)

    def look(self, is_safe: Callable[[Given], bool]) -> Mark[Given] | None:
        """Notes which batches have become safe; returns the mark of the last of these, None if there is none."""
        found: Mark[Given] | None = None
        while self._marks:
            for one in self._marks[0].given:
                if not is_safe(one):
                    return found
            found = self._marks.popleft()
            self.safe, self.made, self.behind, self.by_origin = found.sequence, found.made, found.parts, found.by_origin
        return found
