"""Tries the starts among new rows together, if conditions depend on the match so far: all starts step together, one row each.

A start is *settled* if only one way through the pattern is possible at each of its rows. Then its bindings follow from the rows alone, and
the conditions on them are computed in columns, for all starts at once. Other starts are processed row by row
(`sbon.operators.match.attempts`): those with several ways, those that take many rows, and those that reach the end of the rows or of their
time.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from sbon.operators.frames import computed
from sbon.operators.match.conditions import Conditions
from sbon.operators.match.found import Matches
from sbon.operators.match.labels import AMBIGUOUS, Labeller
from sbon.operators.match.log import Log
from sbon.operators.match.partitions import Text
from sbon.operators.match.readings import Readings, Rows
from sbon.operators.match.scan import Classes, Scanner
from sbon.operators.match.turns import OPENS_BIT, opens_at
from sbon.query.params.matched import MatchNumber, Operand
from sbon.query.params.streams import WindowPart
from sbon.types import IntArray

ROWS_MAX = 32
"""Rows after which a start is left to an attempt."""
STARTS_MAX = 8_192
"""Starts that are tried at once; this bounds the memory that their rows take."""


class Outcomes(NamedTuple):
    """The outcomes of starts, in order; one entry each."""

    ranks: IntArray
    """Rank of the partition in the text."""
    starts: IntArray
    """Place of the start in the text."""
    taken: IntArray
    """Place after the last row that was examined; 0 if the start is not settled."""
    lengths: IntArray
    """Rows of the match; 0 if there is none."""
    waits: npt.NDArray[np.bool_]
    """True if the start has taken all rows and waits for more, unless it is settled."""


class _Steps(NamedTuple):
    """Rows that starts have taken; rows of one start are adjacent and in order."""

    owners: IntArray
    at: IntArray
    """Place of the row in the text."""
    labels: IntArray
    ended: npt.NDArray[np.bool_]
    """True if a match ends with the row."""


class Trials:
    """Tries starts.

    Parameters
    ----------
    first_mask : bits of the variables that a match can begin with; 0 if every row is a start
    within_us : time of WITHIN; None: no limit
    part : the starts that this instance has; None: all
    """

    def __init__(
        self,
        log: Log,
        scanner: Scanner,
        labeller: Labeller,
        conditions: Conditions,
        readings: Readings,
        operands: Sequence[Operand],
        *,
        first_mask: int,
        within_us: int | None,
        part: WindowPart | None,
    ) -> None:
        self._log = log
        self._scanner = scanner
        self._labeller = labeller
        self._late = conditions.late_columns
        self._readings = readings
        self._operands = {one.name: one for one in operands}
        self._first = first_mask
        self._within = within_us
        self._part = part
        read = [self._operands[name] for _, names in self._late.values() for name in names]
        self._possible = not any(isinstance(one, MatchNumber) for one in read)  # a match's number depends on earlier matches

    @property
    def takes_nothing(self) -> bool:
        """Tells whether there is a match without rows, if no better match is found."""
        return self._scanner.automaton.takes_nothing

    def masks(self, positions: IntArray) -> list[int]:
        """Returns the conditions that rows meet, as bits; and in bit `OPENS_BIT` whether a row may open a window of this instance, if a
        column tells that."""
        if not positions.size:
            return []
        masks = self._scanner.masks[self._log.codes.values[positions]]
        if self._part is not None and self._part.opens is not None:
            masks = masks | self._log.opens.values[positions].astype(np.int64) << OPENS_BIT
        found: list[int] = masks.tolist()
        return found

    def outcomes(self, text: Text) -> Outcomes:
        """Tries all starts among rows."""
        codes = self._log.codes.values[text.positions]
        starts = np.flatnonzero(self._scanner.begins(codes, self._first)) if self._first else np.arange(codes.size)
        if self._part is not None:
            starts = starts[opens_at(self._log, text.positions[starts], self._part)]
        if self._scanner.automaton.is_full:
            self._scanner.renumber([])
            self._labeller.forget()
        parts = [self._try(text, codes, starts[begin : begin + STARTS_MAX]) for begin in range(0, max(1, starts.size), STARTS_MAX)]
        return Outcomes(*map(np.concatenate, zip(*parts, strict=True)))

    def _try(self, text: Text, codes: Classes, starts: IntArray) -> Outcomes:
        """Tries some starts."""
        ranks = np.searchsorted(text.ends, starts, side="right")
        steps, taken, waits = self._steps(text, codes, starts, text.ends[ranks])
        lengths = np.zeros(starts.size, np.int64)
        if steps.owners.size:
            offsets = np.append(0, np.cumsum(np.bincount(steps.owners, minlength=starts.size)))
            there, place = np.flatnonzero(np.diff(offsets)), np.arange(steps.owners.size)
            holds = self._holds(text, steps, offsets)
            wrong = np.minimum.reduceat(np.where(holds, place.size, place), offsets[there])
            fails = wrong < place.size
            taken[there[fails]] = steps.at[wrong[fails]] + 1
            good = steps.ended & (place < np.repeat(wrong, np.diff(offsets)[there]))
            lengths[there] = np.maximum.reduceat(np.where(good, place + 1, 0), offsets[there])
            lengths[there] = np.maximum(0, lengths[there] - offsets[there])
        return Outcomes(ranks, starts, taken, lengths, waits)

    def _steps(self, text: Text, codes: Classes, starts: IntArray, stops: IntArray) -> tuple[_Steps, IntArray, npt.NDArray[np.bool_]]:
        """Lets starts take rows as if all conditions on the match held.

        Returns
        -------
        the rows that they take; for each start the place after the last row if it is settled then, 0 otherwise; whether it waits for more
        """
        scanner, times = self._scanner, self._log.times.values[text.positions]
        taken, waits = np.zeros(starts.size, np.int64), np.zeros(starts.size, np.bool_)
        live, at, stop = np.arange(starts.size), starts, stops
        until = times[starts] + (self._within or 0)
        state = np.full(starts.size, scanner.automaton.first, np.int64)
        parts = [_Steps(live[:0], at[:0], state[:0], waits[:0])]
        for _ in range(ROWS_MAX if self._possible else 0):
            if not live.size:
                break
            told = self._labeller.told(state, codes[at])
            found = scanner.step(state, codes[at])
            state = (found >> 1).astype(np.int64)
            takes = told >= 0
            parts.append(_Steps(live[takes], at[takes], told[takes], (found[takes] & 1).astype(np.bool_)))
            over = (state == 0) & (told != AMBIGUOUS)
            taken[live[over]] = at[over] + 1
            at = at + 1
            goes_on = (state != 0) & takes
            waits[live[goes_on & (at >= stop)]] = True
            left = np.flatnonzero(goes_on & (at < stop))
            if self._within is not None:
                left = left[times[at[left]] < until[left]]
            live, at, stop, state, until = live[left], at[left], stop[left], state[left], until[left]
        owners, rows, labels, ended = map(np.concatenate, zip(*parts, strict=True))
        order = np.argsort(owners, kind="stable")
        return _Steps(owners[order], rows[order], labels[order], ended[order].astype(np.bool_)), taken, waits

    def _holds(self, text: Text, steps: _Steps, offsets: IntArray) -> npt.NDArray[np.bool_]:
        """Tells for each row whether the condition on the match so far holds."""
        holds = np.ones(steps.owners.size, np.bool_)
        variables, nothing = steps.labels >> 1, np.zeros(0, np.int64)
        matches = Matches(nothing, nothing, nothing, nothing, nothing != 0, offsets, text.positions[steps.at], variables, nothing != 0)
        for variable, (condition, names) in self._late.items():
            at = np.flatnonzero(variables == variable)
            if at.size:
                rows = Rows(matches, steps.owners[at], at)
                values = pl.DataFrame([self._readings.of(self._operands[name], rows) for name in names])
                holds[at] = computed(values, [condition]).to_series().to_numpy()
        return holds
