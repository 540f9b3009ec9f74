"""Deals the windows of a pattern to instances as a dealer decides while the query runs.

Unlike the splitter by turns, it has a state: the owners of turns. It moves with the splitter, so that rows go where they would have gone
without the move. A dealer's decisions depend on reports of instances, which a copy of the splitter does not get. So the dealer is not asked
from the moment when a copy is made until the next report, which comes only when the copy is over.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Self

import numpy as np
import polars as pl

from sbon.dealing.asking import Asking, Figures, dealer_of
from sbon.dealing.measured import InstanceTold
from sbon.dealing.owners import Owners
from sbon.errors import RemoteProtocolError, StateError
from sbon.operators.operator import Operator
from sbon.operators.snapshots import Parts, opened, parts_of
from sbon.query.params.streams import SplitParams
from sbon.watermarks import WATERMARK_END, WATERMARK_MIN

_OWNERS = {"turn": pl.Int64(), "owner": pl.Int64()}
_NEWEST = {"newest": pl.Int64()}


class AskingSplitter(Operator):
    """Gives each instance, in the order of instances, the rows of its windows, with a column that tells which rows open windows there."""

    deals = True

    def __init__(self, params: SplitParams) -> None:
        self._params = params
        self._asking = self._made()
        self._watermark = WATERMARK_MIN
        self._schema: pl.Schema | None = None
        self._reports: list[tuple[float, int, InstanceTold]] = []
        """Reports that have come since the last batch. The event loop appends, and the operator's thread takes all at once."""
        self._is_lost = False
        """True if the owners of turns were lost in a crash. Then instances lack rows of open windows, and would give wrong answers."""
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
        if self._params.opens in frame.schema:
            raise RemoteProtocolError(f"input column {self._params.opens!r} has the name of a column that the splitter adds")
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
        flag = self._params.opens
        return [frame.with_columns_seq(pl.Series(flag, own)).filter(pl.Series(got)) for got, own in zip(gets, opens, strict=True)]

    def advance_in_steps(self, watermark_us: int) -> Iterable[Sequence[pl.DataFrame]]:
        """Forgets turns that are over."""
        self._check()
        self._watermark = max(watermark_us, self._watermark)
        if WATERMARK_MIN < self._watermark < WATERMARK_END:
            self._asking.owners.forget(self._watermark)
        return ()

    def begins_again(self) -> None:
        """Fails from now on, because it does not know which instance has which windows."""
        self._is_lost = True

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
                "owners": pl.DataFrame(sorted(owners.of.items()), schema=_OWNERS, orient="row"),
                "newest": pl.DataFrame([(owners.newest,)], schema=_NEWEST, orient="row"),
            }
        return parts_of(self._params, self._watermark, self.late_rows, frames)

    def adopt(self, parts: Parts) -> None:
        """Continues from a snapshot."""
        head, frames = opened(parts, self._params)
        if set(frames) not in (set(), {"owners", "newest"}):
            raise RemoteProtocolError(f"a splitter's snapshot with {', '.join(frames)}, expected owners and newest")
        asking, newest = self._made(), None
        turns: list[tuple[int, int]] = []
        if frames:
            owners, last = frames["owners"], frames["newest"]
            if owners.schema != _OWNERS or last.schema != _NEWEST or last.height != 1 or owners.null_count().sum_horizontal().item():
                raise RemoteProtocolError("a splitter's snapshot with other columns than those of turns and owners")
            if owners.height and not owners["owner"].is_between(0, self._params.instances - 1).all():
                raise RemoteProtocolError(f"a splitter's snapshot with owners beyond {self._params.instances} instances")
            turns, newest = owners.rows(), last.item()
        asking.restored(turns, newest)
        self._asking, self._watermark, self.late_rows = asking, head.watermark_us, head.late_rows
        self._reports = []

    def fork(self) -> Self:
        """Returns an operator in the same state."""
        other = type(self)(self._params)
        other.adopt(self.parts())
        return other
