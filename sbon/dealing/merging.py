"""The merger: turns answers for starts, found by any instance in any order, into the answers of one instance.

Each start has an answer: a candidate, or none. Candidates are judged in the order of their starts. A candidate is a match if AFTER MATCH
SKIP of the earlier matches lets one begin there. Otherwise it is void, because a single instance would not have looked there.
"""

from collections import deque
from collections.abc import Hashable, Sequence
from typing import Any

import msgspec

from sbon.errors import ShapeError


class Candidate(msgspec.Struct, frozen=True):
    """The match that is found at a start, if one may begin there."""

    start: int
    """Number of its first row."""
    resumes: int
    """Number of the row where the next match of the partition may begin; greater than `start`."""
    answer: Any
    """The output if it is a match."""

    def __post_init__(self) -> None:
        if self.resumes <= self.start:
            raise ShapeError(
                f"a match at row {self.start} lets the next one begin at row {self.resumes}, expected a later row than its own"
            )


class Merger:
    """Puts answers in order."""

    def __init__(self) -> None:
        self._starts: deque[tuple[int, Hashable]] = deque()
        """Starts whose answers have not left yet, with their partitions."""
        self._waiting: set[int] = set()
        self._found: dict[int, Candidate | None] = {}
        self._resumes: dict[Hashable, int] = {}
        self._dealt_before = 0
        self.repeated = 0
        """Answers that came again and were dropped."""

    def dealt(self, starts: Sequence[tuple[int, Hashable]], before: int) -> None:
        """Takes from the splitter the starts before row `before`, with their partitions, in order and without those of earlier calls.

        Raises
        ------
        ShapeError
            Starts are out of order, or were given before.
        """
        numbers = [start for start, _ in starts]
        if any(b <= a for a, b in zip([self._dealt_before - 1, *numbers], [*numbers, max(before, 0)], strict=True)):
            raise ShapeError(f"starts {numbers} before {before}, expected them in order, from {self._dealt_before} on")
        self._starts.extend(starts)
        self._waiting.update(numbers)
        self._dealt_before = before

    def found(self, start: int, candidate: Candidate | None) -> None:
        """Takes the answer of an instance for a start. A second answer for a start is dropped."""
        if start not in self._waiting or start in self._found:
            self.repeated += 1
        else:
            self._found[start] = candidate

    def leave(self) -> list[Any]:
        """Returns the matches that are known now, in the order of their starts."""
        answers = []
        while self._starts and self._starts[0][0] in self._found:
            start, partition = self._starts.popleft()
            self._waiting.discard(start)
            candidate = self._found.pop(start)
            if candidate is not None and start >= self._resumes.get(partition, 0):
                self._resumes[partition] = candidate.resumes
                answers.append(candidate.answer)
        # Drops the partitions whose next match may begin at the next start: none of their starts can be void any more.
        first = self.answered
        self._resumes = {partition: resumes for partition, resumes in self._resumes.items() if resumes > first}
        return answers

    @property
    def answered(self) -> int:
        """Returns the number of the first row that may be a start without an answer: the splitter may forget earlier rows."""
        return self._starts[0][0] if self._starts else self._dealt_before

    @property
    def waiting(self) -> int:
        """Returns the number of starts that have no answer yet, or wait for earlier ones."""
        return len(self._starts)
