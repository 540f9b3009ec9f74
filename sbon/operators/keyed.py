"""Runs a user's function with a state for each key, or for each key and window: finds the states of a batch, and stores them updated."""

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Self

import numpy as np
import polars as pl

from sbon.errors import RemoteProtocolError, StateError
from sbon.extensions import Extensions
from sbon.functions import STATE, WINDOW_END, FunctionError
from sbon.operators.frames import polars_schema
from sbon.operators.function import checked_output, declared_as
from sbon.operators.operator import Operator
from sbon.operators.snapshots import Head, Parts, opened, parts_of
from sbon.query.params.rowwise import FunctionParams
from sbon.state.ids import grouped, identities
from sbon.state.room import StateRoom
from sbon.state.store import States
from sbon.types import IntArray
from sbon.watermarks import WATERMARK_MIN

_ROW = "row number"


class Keyed(Operator):
    """Calls an installed function with the rows of a batch and the states of their keys.

    Parameters
    ----------
    room : memory and disk for states; None: all are in memory

    Raises
    ------
    FunctionError
        The function is not installed here in this version, is declared differently, or cannot be made with these arguments.
    StateError
        The memory for states is too small for the states of one batch.
    """

    def __init__(self, params: FunctionParams, extensions: Extensions, room: StateRoom | None = None) -> None:
        declared = declared_as(params, extensions)
        self._what = f"function {params.name} {params.version}"
        arguments = dict(declared.bind((), dict(params.arguments)))
        self._params, self._outputs = params, polars_schema(params.outputs)
        inputs = polars_schema(params.inputs)
        self._inputs, self._time = list(inputs), params.time_column
        self._size_us = self._slide_us = 0
        if declared.windows:
            self._size_us = round(1e6 * float(arguments["size_s"]))
            self._slide_us = round(1e6 * float(arguments["slide_s"])) or self._size_us
        self._make = lambda: declared.make(**arguments)
        self._made: Any = self._call(self._make)
        by = {name: inputs[name] for name in params.partition}
        self._by: dict[str, pl.DataType] = {**by, WINDOW_END: pl.Datetime("us")} if declared.windows else by
        self._schema = polars_schema(declared.state_schema)
        self._room = room
        self._states = self._no_states()
        self._ends: set[int] = set()
        """Ends of the windows that have states."""
        self._watermark = WATERMARK_MIN
        self.late_before_us = WATERMARK_MIN
        """Rows of windows that end by then are late, even if these windows have not been closed yet."""

    @property
    def state_rows(self) -> int:
        """Returns the number of states."""
        return len(self._states)

    @property
    def is_stateless(self) -> bool:
        """Returns False: there is always a state."""
        return False

    def process(self, port: int, frame: pl.DataFrame) -> Sequence[pl.DataFrame]:
        """Updates the states of the keys of one batch."""
        rows = pl.DataFrame(frame.select_seq(self._inputs).rechunk().get_columns())
        late_rows = 0
        if self._slide_us:
            rows, late_rows = self._in_windows(rows)
            if rows.is_empty():
                self.late_rows += late_rows
                return ()
        found = grouped(identities([rows[name] for name in self._by]))
        keys = rows.select_seq(list(self._by))[found.first]
        rows = rows.with_columns_seq(pl.Series(STATE, found.key_of, dtype=pl.UInt32))
        # A full disk fails here, before anything changes, so that the batch can be taken again.
        places = self._states.places(keys, found.ids, found.rows)
        self.late_rows += late_rows
        new = np.flatnonzero(places < 0)
        if new.size:
            made = self._of_states(self._call(lambda: self._made.init(keys[new])), new.size, "init")
            places[new] = self._states.add(keys[new], found.ids[new], made)
            self._note_ends(keys)
        before = keys.hstack(self._states.at(places))
        given = self._call(lambda: self._made.update(rows, before))
        if not isinstance(given, tuple) or len(given) != 2:
            raise FunctionError(f"{self._what}: update gave a {type(given).__name__}, expected a pair of states and output")
        self._states.put(places, self._of_states(given[0], keys.height, "update"))
        return () if given[1] is None else checked_output(self._what, given[1], self._outputs)

    def cost_classes(self, frame: pl.DataFrame) -> IntArray:
        """Returns 1 for each row with a state that must be read from disk, 0 for other rows, (rows,)."""
        found = np.zeros(frame.height, np.int64)
        if self._states.uses_disk:
            rows = frame.select_seq(self._inputs).with_row_index(_ROW)
            if self._slide_us:
                rows = self._by_window(rows)
            away = self._states.on_disk(identities([rows[name] for name in self._by]))
            found[rows[_ROW].to_numpy()[away]] = 1
        return found

    def advance_in_steps(self, watermark_us: int) -> Iterable[Sequence[pl.DataFrame]]:
        """Finalises windows that have ended, in the order of their ends and keys."""
        self._watermark = max(self._watermark, watermark_us)
        if not any(end_us <= watermark_us for end_us in self._ends):
            return ()
        closed = self._states.ended(watermark_us).sort([WINDOW_END, *self._params.partition], nulls_last=True)
        self._ends = {end_us for end_us in self._ends if end_us > watermark_us}
        given = self._call(lambda: self._made.finalize(closed))
        return () if given is None else (checked_output(self._what, given, self._outputs),)

    def output_watermark(self, watermark_us: int) -> int:
        """Returns the input's watermark: rows are answered at once, and answers of windows have the windows' ends as event times."""
        return watermark_us

    def parts(self) -> Parts:
        """Returns the states, in the order of a hash of their keys."""
        return parts_of(self._params, self._watermark, self.late_rows, {"states": self._states.all()})

    def pieces(self) -> tuple[Head, Iterator[tuple[str, pl.DataFrame]]]:
        """Returns the states in pieces: those on disk are read a piece at a time."""
        head = parts_of(self._params, self._watermark, self.late_rows, {}).head
        return head, (("states", piece) for piece in self._states.pieces())

    def adopt(self, parts: Parts) -> None:
        """Continues from a snapshot."""
        self._begin_adopting(parts.head)
        if set(parts.frames) != {"states"}:
            raise RemoteProtocolError(f"snapshot of {self._what} with frames {', '.join(parts.frames)}, expected states")
        self._take("states", parts.frames["states"])

    def adopting(self, head: Head) -> Callable[[str, pl.DataFrame], None] | None:
        """Continues from a snapshot that comes in pieces."""
        self._begin_adopting(head)
        return self._take

    def _begin_adopting(self, head: Head) -> None:
        snapshot, _ = opened(Parts(head, {}), self._params)
        self._states, self._ends = self._no_states(), set()
        self._watermark, self.late_rows = snapshot.watermark_us, snapshot.late_rows

    def _take(self, name: str, states: pl.DataFrame) -> None:
        """Adds a piece of a snapshot."""
        expected = {**self._by, **self._schema}
        if name != "states" or dict(states.schema) != expected:
            raise RemoteProtocolError(f"snapshot of {self._what} with states of other columns than {expected}")
        self._of_states(states.select_seq(list(self._schema)), states.height, "snapshot")
        try:
            self._states.take(states)
        except StateError as problem:
            raise RemoteProtocolError(f"snapshot of {self._what}: {problem}") from problem
        self._note_ends(states)

    def _no_states(self) -> States:
        return States(self._by, self._schema, self._room, WINDOW_END if self._slide_us else "")

    def _note_ends(self, keys: pl.DataFrame) -> None:
        if self._slide_us:
            self._ends.update(keys[WINDOW_END].unique().to_physical().to_list())

    def fork(self) -> Self:
        """Returns an operator in the same state, with a function of its own, since a user's objects may not be copyable."""
        forked = copy.copy(self)
        forked._made = self._call(self._make)
        forked._states, forked._ends = self._states.fork(), set(self._ends)
        return forked

    def _in_windows(self, rows: pl.DataFrame) -> tuple[pl.DataFrame, int]:
        """Returns each row once for each window that it is in and that has not ended, and the number of rows without such a window."""
        found = self._by_window(rows.with_row_index(_ROW))
        return found.drop(_ROW), rows.height - found[_ROW].n_unique()

    def _by_window(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Returns each row once for each window that it is in and that has not ended."""
        assert self._time is not None
        time = pl.col(self._time).to_physical()
        copies = math.ceil(self._size_us / self._slide_us)
        first = (time // self._slide_us + 1) * self._slide_us
        ends = pl.concat_list([first + number * self._slide_us for number in range(copies)])
        is_open = (pl.col(WINDOW_END) <= time + self._size_us) & (pl.col(WINDOW_END) > max(self._watermark, self.late_before_us))
        found = rows.with_columns_seq(ends.alias(WINDOW_END)).explode(WINDOW_END).filter(is_open.fill_null(False))
        return found.with_columns_seq(pl.col(WINDOW_END).cast(pl.Datetime("us")))

    def _of_states(self, given: Any, count: int, where: str) -> pl.DataFrame:
        """Checks states that the function gave."""
        if not isinstance(given, pl.DataFrame):
            raise FunctionError(f"{self._what}: {where} gave a {type(given).__name__}, expected a polars DataFrame of states")
        if given.height != count:
            raise FunctionError(f"{self._what}: {where} gave {given.height} states for {count} keys, expected one for each")
        missing = [f"{name} {dtype}" for name, dtype in self._schema.items() if given.schema.get(name) != dtype]
        if missing:
            raise FunctionError(f"{self._what}: {where} gave states without {missing[0]}; declared are {', '.join(self._schema)}")
        empty = [name for name in self._schema if given[name].null_count()]
        if empty:
            raise FunctionError(f"{self._what}: {where} gave a state whose {empty[0]} is NULL; a state has a value in each column")
        return given.select_seq(list(self._schema))

    def _call(self, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except Exception as problem:  # user code: its error ends its operator, not the agent
            raise FunctionError(f"{self._what}: {type(problem).__name__}: {problem}") from problem
