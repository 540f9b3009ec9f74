"""Declares users' functions over batches, which a query calls as `SELECT ... FROM my_function(stream, factor => 2)`.

    @batch_function(
        name="smooth", version="1", inputs={"ts": "time", "value": "float"}, outputs={"ts": "time", "level": "float"},
        arguments={"factor": 0.5}, event_time="ts",
    )
    def smooth(frame, factor):
        return frame.select("ts", level=pl.col("value") * factor)

A function takes a polars frame, one batch, and returns a frame that depends on the rows of that batch alone. A function with state is a
class that derives from `StatefulFunction`. A package names its functions in the entry point group `sbon.functions`, each under its own
name, and is installed on every agent that is to run them: no code ever arrives over the wire.
"""

from __future__ import annotations

import abc
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from sbon.errors import SbonError
from sbon.schema import PLAIN_TYPES, ColumnType, Field, Schema

if TYPE_CHECKING:
    import polars as pl

Value: TypeAlias = bool | int | float | str
"""Types of arguments."""

_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_TYPES = tuple(kind.value for kind in PLAIN_TYPES)
_KINDS: dict[type, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


class FunctionError(SbonError):
    """A user's function is declared wrongly, was called wrongly, or has failed; the message names it."""


STATE = "state"
"""Column in the rows that a keyed function gets: number of the row in `states` that has their state."""
WINDOW_END = "window_end"
"""Column of the window in keys and states of a function with windows."""
WINDOWS_MAX = 1000
"""Most windows that a row may be in."""
STATE_TYPES = ("bool", "int", "float", "text", "time", "interval")


class KeyedFunction(abc.ABC):
    """Base of functions with a state for each key, or for each key and window. One object is created for each operator, with the arguments
    as keywords. The object itself must keep nothing: everything known of a key is in the key's state, so that keys may be dealt to several
    operators.
    """

    @abc.abstractmethod
    def init(self, keys: pl.DataFrame) -> pl.DataFrame:
        """Returns the states of keys that are new, a row each in the same order; `keys` has the columns of the key."""

    @abc.abstractmethod
    def update(self, rows: pl.DataFrame, states: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame | None]:
        """Updates states by a batch; returns them, in the same order, and the resulting rows, or None.

        `rows` has the rows in order of arrival, with the columns of the input and `state`, the place of each row's state in `states`.
        `states` has a row for each key of the batch, with the columns of the key and of the state.
        """

    def finalize(self, states: pl.DataFrame) -> pl.DataFrame | None:
        """Returns the resulting rows of windows that have ended. `states` is ordered by end and key, and is dropped after the call."""
        return None


class StatefulFunction(abc.ABC):
    """Base of functions with state. One object is created for each operator, with the arguments as keywords; calls never overlap.

    After a migration it continues from its `snapshot`: equal input after `restore` must give equal output.
    """

    @abc.abstractmethod
    def process(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Processes a batch of at least one row; returns the resulting rows, possibly none."""

    def advance(self, watermark_us: int) -> pl.DataFrame | None:
        """Handles a watermark: no row with an event time below `watermark_us` (microseconds since 1970) will come. Returns rows that
        waited for it."""
        return None

    def output_watermark(self, watermark_us: int) -> int:
        """Returns the output watermark after `advance(watermark_us)`: no later row of this function has an event time below it.

        A function that holds rows back beyond the watermark must return a lower value here, or its rows count as late downstream.
        """
        return watermark_us

    @abc.abstractmethod
    def snapshot(self) -> bytes:
        """Returns the whole state; preferably MessagePack or Arrow, never pickled."""

    @abc.abstractmethod
    def restore(self, state: bytes) -> None:
        """Restores the state that `snapshot` of this version returned. Any exception refuses the state."""


@dataclass(frozen=True, kw_only=True)
class BatchFunction:
    """A package's declaration of a function. Columns have the types `bool`, `int`, `float`, `text`, `time` and `interval`."""

    name: str
    """Name in SQL, in lower case."""
    version: str
    """Version. Agents run the version that a query was planned with, or refuse. Change it with every change of the answers or the state."""
    inputs: Mapping[str, str]
    """Columns that the stream must have: the frame has exactly these, in this order."""
    outputs: Mapping[str, str]
    """Columns of the returned frame, in this order."""
    make: Callable[..., Callable[[pl.DataFrame], pl.DataFrame] | StatefulFunction | KeyedFunction]
    """Called with the arguments as keywords, once for each operator."""
    arguments: Mapping[str, Value | type] = field(default_factory=dict)
    """Constants that a query may pass, in order: a default, or one of the types bool, int, float and str if a value is required."""
    event_time: str | None = None
    """The `time` column, among inputs and outputs, that is the event time of both; None: the output has none."""
    selectivity: float = 1.0
    """Expected output rows per input row, before it is measured."""
    deterministic: bool = True
    """True if equal inputs give equal outputs, so that queries may share the operator."""
    states: Mapping[str, str] = field(default_factory=dict)
    """Columns of the state of a key, for a keyed function."""
    commutes: bool = False
    """True if rows may be taken in any order: for the function's purpose, its final states are the same. Queries may then put off rows that
    would be late (`on_miss = 'defer'`).
    """
    windows: bool = False
    """True if a keyed function has a state for each key and window; windows of `size_s` begin every `slide_s`."""

    def __post_init__(self) -> None:
        what = f"function {self.name!r}"
        if not _NAME.fullmatch(self.name):
            raise FunctionError(f"{what}: expected a name of lower-case letters, digits and _")
        if not self.version or len(self.version) > 64:
            raise FunctionError(f"{what}: version {self.version!r}, expected 1 to 64 characters")
        for columns in (self.inputs, self.outputs):
            wrong = [f"{name} {kind}" for name, kind in columns.items() if kind not in _TYPES]
            if wrong or not columns:
                kinds = ", ".join(_TYPES)
                raise FunctionError(f"{what}: {wrong[0] if wrong else 'no column'}, expected columns of the types {kinds}")
        for name, given in self.arguments.items():
            if (given if isinstance(given, type) else type(given)) not in _KINDS or not name.isidentifier():
                raise FunctionError(f"{what}: argument {name} = {given!r}, expected bool, int, float, str, or a default of one of them")
        time = self.event_time
        if time is not None and not self.inputs.get(time) == self.outputs.get(time) == "time":
            raise FunctionError(f"{what}: event_time {time!r}, expected a column of type time among inputs and outputs")
        taken = (STATE, WINDOW_END, *self.inputs)
        wrong = [f"{name} {kind}" for name, kind in self.states.items() if kind not in STATE_TYPES or name in taken]
        if wrong:
            kinds = ", ".join(STATE_TYPES)
            raise FunctionError(f"{what}: state {wrong[0]}, expected one of the types {kinds}, and none of the names {', '.join(taken)}")
        if self.windows and (time is None or not self.states):
            raise FunctionError(f"{what}: windows need event_time and states")
        if not 0 <= self.selectivity < float("inf"):
            raise FunctionError(f"{what}: selectivity {self.selectivity}, expected 0 or more")

    @property
    def is_keyed(self) -> bool:
        """Tells whether the function has states by key."""
        return bool(self.states)

    @property
    def state_schema(self) -> Schema:
        """Returns the columns of a state."""
        return tuple(Field(name, ColumnType(kind)) for name, kind in self.states.items())

    @property
    def input_schema(self) -> Schema:
        """Returns the input columns."""
        return tuple(Field(name, ColumnType(kind)) for name, kind in self.inputs.items())

    @property
    def output_schema(self) -> Schema:
        """Returns the output columns."""
        return tuple(Field(name, ColumnType(kind)) for name, kind in self.outputs.items())

    def bind(self, positional: tuple[Value, ...], named: Mapping[str, Value]) -> tuple[tuple[str, Value], ...]:
        """Returns all arguments in the order of their declaration, with defaults filled in.

        Raises
        ------
        FunctionError
            There are too many arguments, an unknown or missing one, or one of another type.
        """
        form = f"{self.name}(stream{''.join(f', {name} => ...' for name in self.arguments)})"
        if len(positional) > len(self.arguments):
            raise FunctionError(f"{self.name} takes {len(self.arguments)} arguments after the stream: write {form}")
        given = dict(zip(self.arguments, positional, strict=False))
        for name, value in named.items():
            if name not in self.arguments or name in given:
                problem = "is given twice" if name in given else "is unknown"
                raise FunctionError(f"argument {name} of {self.name} {problem}: write {form}")
            given[name] = value
        return tuple((name, self._checked(name, wanted, given)) for name, wanted in self.arguments.items())

    def _checked(self, name: str, wanted: Value | type, given: Mapping[str, Value]) -> Value:
        kind = wanted if isinstance(wanted, type) else type(wanted)
        if name not in given:
            if isinstance(wanted, type):
                raise FunctionError(f"argument {name} of {self.name} is missing: write {name} => {_KINDS[kind]}")
            return wanted
        value = given[name]
        if kind is float and type(value) is int:
            return float(value)
        if type(value) is not kind:
            raise FunctionError(f"argument {name} of {self.name} is {value!r}, expected {_KINDS[kind]}")
        return value


def _in_windows(made: Callable[..., KeyedFunction], size_s: float, slide_s: float, **arguments: Any) -> KeyedFunction:
    if not 1e-6 <= size_s < 1e9 or not (slide_s == 0 or size_s / WINDOWS_MAX <= slide_s <= size_s):
        form = f"a size above 0, and a slide of 0, or from a {WINDOWS_MAX}th of the size to all of it"
        raise ValueError(f"windows of {size_s} s every {slide_s} s, expected {form}")
    return made(**arguments)


def keyed_function(**declaration: Any) -> Callable[[type[KeyedFunction]], BatchFunction]:
    """Creates a `BatchFunction` with a state for each key from a subclass of `KeyedFunction`.

    Parameters
    ----------
    declaration : fields of `BatchFunction` except `make`; with `windows`, queries also give `size_s` and `slide_s` (0: equal to `size_s`)

    Raises
    ------
    FunctionError
        The declaration is invalid.
    """

    def declared(made: type[KeyedFunction]) -> BatchFunction:
        given = dict(declaration)
        if not given.get("states"):
            raise FunctionError(f"function {given.get('name')!r}: a keyed function needs states, such as states={{'n': 'int'}}")
        if given.get("windows"):
            given["arguments"] = {"size_s": float, "slide_s": 0.0, **given.get("arguments", {})}
            return BatchFunction(make=partial(_in_windows, made), **given)
        return BatchFunction(make=made, **given)

    return declared


def batch_function(**declaration: Any) -> Callable[[Callable[..., Any]], BatchFunction]:
    """Creates a `BatchFunction` from a function, called with a frame and the arguments, or from a subclass of `StatefulFunction`.

    Parameters
    ----------
    declaration : fields of `BatchFunction` except `make`

    Raises
    ------
    FunctionError
        The declaration is invalid.

    Examples
    --------
    >>> @batch_function(name="twice", version="1", inputs={"x": "int"}, outputs={"x": "int"})
    ... def twice(frame):
    ...     return frame * 2
    >>> twice.bind((), {})
    ()
    """

    def declared(made: Callable[..., Any]) -> BatchFunction:
        if isinstance(made, type):
            return BatchFunction(make=made, **declaration)
        return BatchFunction(make=lambda **arguments: partial(made, **arguments), **declaration)

    return declared
