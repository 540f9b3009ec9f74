"""Labels the rows of matches with the variables that they matched, if conditions depend on single rows alone."""

import numpy as np
import numpy.typing as npt

from sbon.operators.match.program import END, Program, follow_way
from sbon.operators.match.scan import Classes, Scanner
from sbon.types import IntArray

TOGETHER_MIN = 8
"""Least number of matches that are labelled together, one row of each per step; fewer are labelled one after the other."""
_UNKNOWN, AMBIGUOUS, NOTHING = -1, -2, -3
"""Values in place of a label: not computed yet; ways differ; no way takes the row."""


class Labeller:
    """Labels rows: twice the variable, plus 1 if the row is left out of the answer.

    If all ways that wait in a state would give a row the same label, it is the preferred way's label, too, and comes from a table. Only a
    match with a row for which the ways differ is followed way by way.
    """

    def __init__(self, program: Program, scanner: Scanner) -> None:
        self._program = program
        self._scanner = scanner
        self._labels: IntArray = np.full(0, _UNKNOWN, np.int64)
        """Labels by state and class."""

    def labels(self, classes: Classes, offsets: IntArray, timed_out: npt.NDArray[np.bool_]) -> IntArray:
        """Returns the labels of rows.

        Parameters
        ----------
        classes : classes of the matches' rows, one match after the other
        offsets : where each match begins, and the number of rows
        timed_out : whether each match ran out of time; it has not ended then, and its way is the preferred one of the waiting ways
        """
        scanner, automaton = self._scanner, self._scanner.automaton
        found = np.zeros(classes.size, np.int64)
        unclear = np.zeros(offsets.size - 1, np.bool_)
        live = np.flatnonzero(np.diff(offsets) > 0)
        at, stop, state = offsets[live], offsets[live + 1], np.full(live.size, automaton.first, np.int64)
        while live.size >= TOGETHER_MIN:
            told = self.told(state, classes[at])
            found[at] = told
            unclear[live[told == AMBIGUOUS]] = True
            state = (scanner.step(state, classes[at]) >> 1).astype(np.int64)
            at = at + 1
            left = (at < stop) & (told != AMBIGUOUS)
            live, at, stop, state = live[left], at[left], stop[left], state[left]
        for match, begin, end, one in zip(live.tolist(), at.tolist(), stop.tolist(), state.tolist(), strict=True):
            unclear[match] = not self._follow(classes[begin:end], one, found[begin:end])
        masks = scanner.masks
        for match in np.flatnonzero(unclear).tolist():
            begin, end = int(offsets[match]), int(offsets[match + 1])
            places = follow_way(self._program, masks[classes[begin:end]].tolist(), ended=not timed_out[match])
            found[begin:end] = [2 * self._program.variables[place] + self._program.excluded[place] for place in places]
        return found

    def told(self, state: IntArray, codes: Classes) -> IntArray:
        """Returns the labels of rows in states; AMBIGUOUS or NOTHING if there is no label."""
        keys = state << 16 | codes
        if keys.max(initial=0) >= self._labels.size:
            more = np.full(int(keys.max()) + (1 << 16) - self._labels.size, _UNKNOWN, np.int64)
            self._labels = np.concatenate([self._labels, more])
        told = self._labels[keys]
        if (told == _UNKNOWN).any():
            for key in np.unique(keys[told == _UNKNOWN]).tolist():
                self._labels[key] = self._label(key >> 16, key & 0xFFFF)
            told = self._labels[keys]
        return np.asarray(told, np.int64)

    def _follow(self, classes: Classes, state: int, found: IntArray) -> bool:
        """Labels the rest of a match row by row; False if a label is not clear."""
        labels, masks, automaton = [], self._scanner.masks.tolist(), self._scanner.automaton
        known: dict[tuple[int, int], tuple[int, int]] = {}
        for code in classes.tolist():
            step = known.get((state, code))
            if step is None:
                step = known[state, code] = self._label(state, code), automaton.step(state, masks[code])[0]
            label, state = step
            if label < 0:
                return False
            labels.append(label)
        found[:] = labels
        return True

    def _label(self, state: int, code: int) -> int:
        program, mask = self._program, int(self._scanner.masks[code])
        waiting = [place for place in self._scanner.automaton.places(state) if place != END]
        told = {2 * program.variables[place] + program.excluded[place] for place in waiting if mask >> program.variables[place] & 1}
        return told.pop() if len(told) == 1 else AMBIGUOUS if told else NOTHING

    def forget(self) -> None:
        """Forgets the labels by state, because states have new numbers."""
        self._labels = np.full(0, _UNKNOWN, np.int64)
