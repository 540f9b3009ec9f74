"""Chooses how many instances get the windows of an operator, and in turns of which length, for steady rates: before the operator runs.

Windows are dealt by turns of event time, as the splitter of a query deals them. With n instances and short turns, each row goes to n
instances and each instance always has 1/n of the open windows. With turns longer than windows are open, a row goes to little more than one
instance, but an instance has all windows of its turn at once: it falls behind, and catches up while others have the turn. Short turns need
the fewest copies while the bound is short; long ones may need fewer where the bound outlasts windows. Both are judged by the same tail
(`sbon.dealing.tail`).

A row costs an instance a fixed part, and a part for each of its open windows.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sbon.dealing.tail import allowed, log_tail
from sbon.types import FloatArray

LONGER = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
"""Long turns that are tried, as multiples of the time for which a window is open."""
CHANCE = 1.0
"""Greatest expected number of late rows in a cycle, by the tail; real numbers are far lower."""
DOUBT = 2.0
"""Standard deviations by which an instance may have more windows than expected."""
_IN_WINDOW = 8
"""Intervals of the time for which a window is open, where load changes."""
_CYCLES = 3
"""Cycles after which the work that waits at the beginning of a cycle no longer grows."""
_EVEN = 1e-9
"""Greatest difference of shares that counts as none."""


class Load(NamedTuple):
    """The work of one operator on windows."""

    rows_per_s: float
    row_s: float
    """Cost of a row at each instance that gets it, apart from windows."""
    windows_s: float
    """Further cost of a row in all windows that are open for it, at all instances together."""
    within_s: float
    """Time for which a window is open."""

    def times(self, factor: float) -> "Load":
        """Returns the load at a multiple of the rate: so many times the rows, each in so many times the windows."""
        return self._replace(rows_per_s=self.rows_per_s * factor, windows_s=self.windows_s * factor)


class Dealt(NamedTuple):
    """A number of instances and the length of their turns."""

    instances: int
    turn_s: float
    """0 for one instance."""

    def copies(self, within_s: float) -> float:
        """Returns the number of instances that get a row, on average.

        Examples
        --------
        >>> [Dealt(*one).copies(10.0) for one in ((1, 0.0), (3, 1.0), (3, 20.0))]
        [1.0, 3.0, 1.5]
        """
        return 1.0 if self.instances == 1 else min(float(self.instances), 1.0 + within_s / self.turn_s)


def open_shares(dealt: Dealt, at_s: FloatArray, within_s: float) -> FloatArray:
    """Returns the share of all open windows that the first instance has at these instants; its turns begin at 0.

    Examples
    --------
    >>> open_shares(Dealt(2, 10.0), np.array([-5.0, 0.0, 5.0, 10.0, 15.0]), 10.0).tolist()
    [0.5, 0.0, 0.5, 1.0, 0.5]
    """
    if dealt.instances == 1:
        return np.ones(len(at_s))
    ends = np.stack([at_s, at_s - within_s])
    cycles, rest = np.divmod(ends, dealt.instances * dealt.turn_s)
    own = cycles * dealt.turn_s + np.minimum(rest, dealt.turn_s)
    found: FloatArray = (own[0] - own[1]) / within_s
    return found


def use(load: Load, dealt: Dealt) -> float:
    """Returns the share of its time for which an instance works, over a cycle."""
    return load.rows_per_s * (load.row_s * dealt.copies(load.within_s) + load.windows_s) / dealt.instances


def keeps(load: Load, dealt: Dealt, bound_s: float | None) -> bool:
    """Tells whether an instance keeps up, and no row spends longer than the bound there.

    Parameters
    ----------
    bound_s : LB; None: there is no bound
    """
    if use(load, dealt) >= 1:
        return False
    if bound_s is None:
        return True
    if bound_s <= 0:
        return False
    cycle_s = max(1, dealt.instances) * dealt.turn_s or load.within_s
    intervals = max(_IN_WINDOW, round(cycle_s / load.within_s * _IN_WINDOW))
    width_s = cycle_s / intervals
    shares = open_shares(dealt, width_s * (np.arange(intervals, dtype=np.float64) + 0.5), load.within_s)
    if shares.max() - shares.min() < _EVEN:
        shares, width_s = shares[:1].repeat(_IN_WINDOW), 10 * bound_s
    shares = np.tile(shares, _CYCLES)
    rates = np.where(shares > _EVEN, load.rows_per_s, 0.0)
    # The number of open windows scatters like that of their rows, at the most.
    windows = load.rows_per_s * load.within_s
    costs = load.row_s + load.windows_s * (shares + DOUBT * np.sqrt(shares / windows))
    limit = allowed(float(rates.sum()) * width_s / _CYCLES, CHANCE)
    return float(log_tail(rates[None], costs[None], width_s, np.array(0.0), bound_s).max()) <= limit


def to_try(instances: int, within_s: float, even_turn_s: float, *, is_bounded: bool) -> list[Dealt]:
    """Returns the turns that are worth a try with so many instances.

    Parameters
    ----------
    even_turn_s : a turn so short that each instance has an equal share of the open windows at any time
    is_bounded : False: long turns are left out, because without a bound any rows may wait for any time
    """
    if instances == 1:
        return [Dealt(1, 0.0)]
    # Turns between both lengths save few copies, and give an instance more work than fewer instances in short turns would have.
    longer = [Dealt(instances, factor * within_s) for factor in LONGER] if is_bounded else []
    return [Dealt(instances, even_turn_s), *longer]


def cheapest(load: Load, options: Sequence[Dealt], bound_s: float | None) -> Dealt | None:
    """Returns the option with the fewest copies of a row that keeps the bound, then with the fewest instances; None if none does."""
    order = sorted(options, key=lambda one: (one.copies(load.within_s), one.instances, one.turn_s))
    return next((one for one in order if keeps(load, one, bound_s)), None)
