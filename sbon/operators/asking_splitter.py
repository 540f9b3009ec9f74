"""Deals the windows of a pattern to instances as a dealer decides while the query runs.

Unlike the splitter by turns, it has a state: the owners of turns. It moves with the splitter, so that rows go where they would have gone
without the move. A dealer's decisions depend on reports of instances, which a copy of the splitter does not get. So the dealer is not asked
from the moment when a copy is made until the next report, which comes only when the copy is over.

Instances are told the owners of turns with their rows: an instance knows all that was decided before its last rows. After a crash, the
splitter's next copy learns them from the living instances, and deals all rows that come once more as before. Turns that no living instance
knows have been decided after all rows that living instances have, so they may be decided anew.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Self

import numpy as np
import numpy.typing as npt
import polars as pl

from sbon.dealing.asking import Asking, Figures, dealer_of
from sbon.dealing.measured import InstanceTold
from sbon.dealing.owners import Owners
from sbon.errors import RemoteProtocolError, StateError
from sbon.operators.operator import Operator
from sbon.operators.snapshots import Parts, opened, parts_of
from sbon.query.params.streams import SplitParams, told_column
from sbon.watermarks import WATERMARK_MIN

_OWNERS = {"turn": pl.Int64(), "owner": pl.Int64()}
_NEWEST = {"newest": pl.Int64(), "whole": pl.Boolean()}


class AskingSplitter(Operator):
    """Gives each instance, in the order of instances, the rows of its windows, with a column that tells which rows open windows there, and
    one that tells the owners of turns."""

    deals = True

    def __init__(self, params: SplitParams) -> None:
        self._params = params
        self.noted = told_column(params.opens)
        self._asking = self._made()
        self._watermark = WATERMARK_MIN
        self._schema: pl.Schema | None = None
        self._reports: list[tuple[float, int, InstanceTold]] = []
        """Reports that have come since the last batch. The event loop appends, and the operator's thread takes all at once."""
        self._is_lost = False
        """True if the owners of turns were lost in a crash. Then instances lack rows of open windows, and would give wrong answers."""
        self._skips: Callable[[int], bool] = lambda index: False
        self.figures: Figures | None = None
        """The dealing at the last report; None before the first. Any thread may read it."""

    def _made(self) -> Asking:
        params, turns = self._params, self._params.turns
        owners = Owners(params.instances, turns.turn_us, turns.within_us)
        return Asking(partial(dealer_of, params.dealer), owners, params.bound_s)

    def process(self, port: int, frame: pl.DataFrame) -> Sequence[pl.DataFrame]:
        """Splits one batch; rows stay in their order. A row without an event time goes to the first instance, which counts it as late."""
        self._check()
        name = self._params.turns.time_column
        if frame.schema.get(name) != pl.Datetime("us"):
            raise RemoteProtocolError(f"event time {name!r} is no time column of the input")
        taken = next((added for added in (self._params.opens, self.noted) if added in frame.schema), None)
        if taken is not None:
            raise RemoteProtocolError(f"input column {taken!r} has the name of a column that the splitter adds")
        if frame.schema != (self._schema or frame.schema):
            raise RemoteProtocolError("a batch with other columns than the batch before")
        self._schema = frame.schema
        self._hear()
        there = frame[name].is_not_null().to_numpy()
        times = frame[name].cast(pl.Int64).drop_nulls().to_numpy()
        gets, opens = np.zeros((2, self._params.instances, frame.height), np.bool_)
        gets[0, ~there] = True
        if times.size:
            self._asking.take(times)
            gets[:, there], opens[:, there] = self._asking.owners.of_rows(times)
        self._asking.sent(gets.sum(axis=1))
        dealt = [self._given(frame, index, got, own) for index, (got, own) in enumerate(zip(gets, opens, strict=True))]
        self._asking.owners.forget()
        return dealt

    def _given(self, frame: pl.DataFrame, index: int, got: npt.NDArray[np.bool_], own: npt.NDArray[np.bool_]) -> pl.DataFrame:
        """Returns the rows that an instance gets, with the two further columns."""
        rows, owners = frame.filter(pl.Series(got)), self._asking.owners
        note = owners.note(index) or None
        if rows.height and not self._skips(index):
            owners.told(index)
        told = pl.Series(self.noted, [note][: rows.height], pl.String).extend_constant(None, max(0, rows.height - 1))
        return rows.with_columns_seq(pl.Series(self._params.opens, own[got]), told)

    def advance_in_steps(self, watermark_us: int) -> Iterable[Sequence[pl.DataFrame]]:
        """Keeps the watermark."""
        self._check()
        self._watermark = max(watermark_us, self._watermark)
        return ()

    # ---------------------------------------------------------------------------------------------------------- recovery

    def known(self) -> tuple[dict[int, int], bool]:
        """Returns the turns that are decided, with their owners, and whether these are all; any thread may ask."""
        owners = self._asking.owners
        return dict(owners.of), owners.is_whole

    def begins_again(self) -> None:
        """Fails from now on, because it does not know which instance has which windows, unless `takes_up` follows."""
        self._is_lost = True

    def takes_up(self, turns: Sequence[tuple[int, int]], skips: Callable[[int], bool], *, is_whole: bool) -> None:
        """Goes on after a crash of its former copy.

        Parameters
        ----------
        turns : turns that living instances know, with their owners
        skips : tells whether rows for an instance may be left out, because it has taken them. Notes with these rows do not arrive
        is_whole : whether these are all turns that were decided before others of them
        """
        self._is_lost, self._skips = False, skips
        self._asking.restored(self._checked(turns), max((turn for turn, _ in turns), default=None), is_whole=is_whole)

    def _check(self) -> None:
        if self._is_lost:
            raise StateError(
                "a crash has taken the splitter that knew which instance has which windows, so later answers could be wrong: submit the "
                "query again; without the option dealer, it would go on by itself"
            )

    # ---------------------------------------------------------------------------------------------------------- dealings

    def told(self, clock_s: float, number: int, report: InstanceTold) -> None:
        """Takes a report of an instance; called on the event loop, at no time while a copy of the state is made."""
        self._reports.append((clock_s, number, report))

    def _hear(self) -> None:
        heard, self._reports = self._reports, []
        latest: Mapping[int, InstanceTold] = {number: report for _, number, report in heard if number < self._params.instances}
        if latest:
            self.figures = self._asking.told(heard[-1][0], latest)

    # ------------------------------------------------------------------------------------------------------------- state

    @property
    def state_rows(self) -> int:
        """Returns the number of turns that are remembered."""
        return len(self._asking.owners.of)

    def parts(self) -> Parts:
        """Returns the owners of turns. From now on, until the next report, the dealer is not asked."""
        self._asking.frozen, self._reports = True, []
        owners, frames = self._asking.owners, {}
        if owners.newest is not None:
            frames = {
                "owners": pl.DataFrame(list(owners.of.items()), schema=_OWNERS, orient="row"),
                "newest": pl.DataFrame([(owners.newest, owners.is_whole)], schema=_NEWEST, orient="row"),
            }
        return parts_of(self._params, self._watermark, self.late_rows, frames)

    def adopt(self, parts: Parts) -> None:
        """Continues from a snapshot."""
        head, frames = opened(parts, self._params)
        if set(frames) not in (set(), {"owners", "newest"}):
            raise RemoteProtocolError(f"a splitter's snapshot with {', '.join(frames)}, expected owners and newest")
        asking, newest, is_whole = self._made(), None, True
        turns: Sequence[tuple[int, int]] = ()
        if frames:
            owners, last = frames["owners"], frames["newest"]
            if owners.schema != _OWNERS or last.schema != _NEWEST or last.height != 1 or owners.null_count().sum_horizontal().item():
                raise RemoteProtocolError("a splitter's snapshot with other columns than those of turns and owners")
            if last.null_count().sum_horizontal().item():
                raise RemoteProtocolError("a splitter's snapshot without the newest turn")
            turns, (newest, is_whole) = self._checked(owners.rows()), last.row(0)
        asking.restored(turns, newest, is_whole=is_whole)
        self._asking, self._watermark, self.late_rows = asking, head.watermark_us, head.late_rows
        self._reports = []

    def _checked(self, turns: Sequence[tuple[int, int]]) -> Sequence[tuple[int, int]]:
        if not all(0 <= owner < self._params.instances for _, owner in turns):
            raise RemoteProtocolError(f"a snapshot of turns with owners beyond {self._params.instances} instances")
        return turns

    def fork(self) -> Self:
        """Returns an operator in the same state."""
        other = type(self)(self._params)
        other.adopt(self.parts())
        other._skips = self._skips
        return other
