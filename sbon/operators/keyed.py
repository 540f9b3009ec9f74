"""Runs a user's function with a state for each key, or for each key and window: finds the states of a batch, and keeps what comes back."""

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import polars as pl

from sbon.errors import RemoteProtocolError
from sbon.extensions import Extensions
from sbon.functions import STATE, WINDOW_END, FunctionError
from sbon.operators.frames import polars_schema
from sbon.operators.function import checked_output, declared_as
from sbon.operators.operator import Operator
from sbon.operators.snapshots import Parts, opened, parts_of
from sbon.query.plan import WATERMARK_MIN, FunctionParams

_ROW = "row number"
_ROOM_MIN = 1024
"""Rows for which a table of states has room at first."""
Values = npt.NDArray[Any]


class _States:
    """States of keys, a row each, in the order in which the keys came."""

    def __init__(self, by: Mapping[str, pl.DataType], states: Mapping[str, pl.DataType]) -> None:
        self._by, self._schema = by, states
        self._place: dict[tuple[Any, ...], int] = {}
        self._keys: list[pl.DataFrame] = []
        self._columns: dict[str, Values] = {name: np.empty(_ROOM_MIN, _array_type(dtype)) for name, dtype in states.items()}

    def __len__(self) -> int:
        return len(self._place)

    def places(self, keys: pl.DataFrame) -> Values:
        """Returns the row of each key, -1 where there is none, (keys,)."""
        place = self._place
        return np.fromiter((place.get(key, -1) for key in keys.rows()), dtype=np.int64, count=keys.height)

    def add(self, keys: pl.DataFrame, states: pl.DataFrame) -> Values:
        """Adds keys that are not there yet; returns their rows."""
        first = len(self._place)
        for place, key in enumerate(keys.rows(), first):
            self._place[key] = place
        rows = np.arange(first, first + keys.height)
        self._keys.append(keys)
        room = next((len(column) for column in self._columns.values()), len(self._place))
        if len(self._place) > room:
            longer = max(len(self._place), 2 * room)
            for name, column in self._columns.items():
                self._columns[name] = np.concatenate([column, np.empty(longer - room, column.dtype)])
        self.put(rows, states)
        return rows

    def put(self, rows: Values, states: pl.DataFrame) -> None:
        """Replaces states."""
        for name, column in self._columns.items():
            column[rows] = _as_array(states[name])

    def at(self, rows: Values) -> pl.DataFrame:
        """Returns states, with the columns of their keys."""
        columns = [_as_series(name, self._columns[name][rows], dtype) for name, dtype in self._schema.items()]
        return pl.DataFrame([*self.keys()[rows].get_columns(), *columns])

    def keys(self) -> pl.DataFrame:
        """Returns all keys in order."""
        if len(self._keys) != 1:
            self._keys = [pl.concat(self._keys, rechunk=True) if self._keys else pl.DataFrame(schema=dict(self._by))]
        return self._keys[0]

    def all(self) -> pl.DataFrame:
        """Returns all keys with their states."""
        return self.at(np.arange(len(self)))


class Keyed(Operator):
    """Calls an installed function with the rows of a batch and the states of their keys.

    Raises
    ------
    FunctionError
        It is not installed here in the version asked for, is declared differently, or cannot be made with these arguments.
    """

    def __init__(self, params: FunctionParams, extensions: Extensions) -> None:
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
        self._states = _States(self._by, self._schema)
        self._watermark = WATERMARK_MIN
        self.late_before_us = WATERMARK_MIN
        """Rows of windows that end by then are late, even if these windows have not been closed yet."""

    @property
    def state_rows(self) -> int:
        """Returns the number of states."""
        return len(self._states)

    @property
    def is_stateless(self) -> bool:
        """Tells that there is a state."""
        return False

    def process(self, port: int, frame: pl.DataFrame) -> Sequence[pl.DataFrame]:
        """Updates the states of the keys of one batch."""
        rows = pl.DataFrame(frame.select_seq(self._inputs).rechunk().get_columns())
        if self._slide_us:
            rows = self._in_windows(rows)
            if rows.is_empty():
                return ()
        by = list(self._by)
        keys = rows.select_seq(by).unique(maintain_order=True, keep="first")
        numbered = keys.with_row_index(STATE)
        rows = rows.join(numbered, on=by, how="left", nulls_equal=True, maintain_order="left")
        places = self._states.places(keys)
        new = np.flatnonzero(places < 0)
        if new.size:
            made = self._of_states(self._call(lambda: self._made.init(keys[new])), new.size, "init")
            places[new] = self._states.add(keys[new], made)
        before = self._states.at(places)
        given = self._call(lambda: self._made.update(rows, before))
        if not isinstance(given, tuple) or len(given) != 2:
            raise FunctionError(f"{self._what}: update gave a {type(given).__name__}, expected a pair of states and output")
        self._states.put(places, self._of_states(given[0], keys.height, "update"))
        return () if given[1] is None else checked_output(self._what, given[1], self._outputs)

    def advance_in_steps(self, watermark_us: int) -> Iterable[Sequence[pl.DataFrame]]:
        """Finalises windows that have ended, in the order of their ends and keys."""
        self._watermark = max(self._watermark, watermark_us)
        if not self._slide_us or not len(self._states):
            return ()
        everything = self._states.all()
        ended = everything[WINDOW_END].to_physical() <= watermark_us
        if not ended.any():
            return ()
        closed = everything.filter(ended).sort([WINDOW_END, *self._params.partition], nulls_last=True)
        kept = everything.filter(~ended)
        self._states = _States(self._by, self._schema)
        if kept.height:
            self._states.add(kept.select_seq(list(self._by)), kept)
        given = self._call(lambda: self._made.finalize(closed))
        return () if given is None else (checked_output(self._what, given, self._outputs),)

    def output_watermark(self, watermark_us: int) -> int:
        """Returns the input's: rows come at once, answers of windows have the times of their ends."""
        return watermark_us

    def parts(self) -> Parts:
        """Returns the states, in the order of their keys' arrival."""
        return parts_of(self._params, self._watermark, self.late_rows, {"states": self._states.all()})

    def adopt(self, parts: Parts) -> None:
        """Continues from a snapshot."""
        snapshot, frames = opened(parts, self._params)
        expected = {**self._by, **self._schema}
        if set(frames) != {"states"} or dict(frames["states"].schema) != expected:
            raise RemoteProtocolError(f"snapshot of {self._what} with other states than {expected}")
        states = frames["states"]
        keys = states.select_seq(list(self._by))
        if keys.is_duplicated().any():
            raise RemoteProtocolError(f"snapshot of {self._what} with a key that is there twice")
        self._states = _States(self._by, self._schema)
        if states.height:
            self._states.add(keys, self._of_states(states.select_seq(list(self._schema)), states.height, "snapshot"))
        self._watermark, self.late_rows = snapshot.watermark_us, snapshot.late_rows

    def fork(self) -> Self:
        """Returns an operator in the same state, by way of its parts, since a user's objects may not be copyable."""
        forked = copy.copy(self)
        forked._made = self._call(self._make)
        forked.adopt(self.parts())
        return forked

    def _in_windows(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Returns each row once for each window that it is in and that has not ended; counts rows that have none."""
        assert self._time is not None
        time = pl.col(self._time).to_physical()
        copies = math.ceil(self._size_us / self._slide_us)
        first = (time // self._slide_us + 1) * self._slide_us
        ends = pl.concat_list([first + number * self._slide_us for number in range(copies)])
        is_open = (pl.col(WINDOW_END) <= time + self._size_us) & (pl.col(WINDOW_END) > max(self._watermark, self.late_before_us))
        found = rows.with_row_index(_ROW).with_columns_seq(ends.alias(WINDOW_END)).explode(WINDOW_END).filter(is_open.fill_null(False))
        self.late_rows += rows.height - found[_ROW].n_unique()
        return found.drop(_ROW).with_columns_seq(pl.col(WINDOW_END).cast(pl.Datetime("us")))

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


def _array_type(dtype: pl.DataType) -> npt.DTypeLike:
    if dtype == pl.Float64:
        return np.float64
    if dtype == pl.Boolean:
        return np.bool_
    return object if dtype == pl.String else np.int64


def _as_array(column: pl.Series) -> Values:
    if column.dtype == pl.String:
        return np.array(column.to_list(), dtype=object)
    return column.to_physical().to_numpy() if column.dtype.is_temporal() else column.to_numpy()


def _as_series(name: str, values: Values, dtype: pl.DataType) -> pl.Series:
    if dtype == pl.String:
        return pl.Series(name, values.tolist(), dtype=pl.String)
    made = pl.Series(name, values)
    return made if made.dtype == dtype else made.cast(dtype)
