"""Runs a user's function as an operator: checks its inputs and outputs against its declaration, and names it in its errors."""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import polars as pl

from sbon.errors import RemoteProtocolError
from sbon.extensions import Extensions
from sbon.functions import BatchFunction, FunctionError, StatefulFunction
from sbon.operators.frames import polars_schema
from sbon.operators.operator import Operator
from sbon.operators.snapshots import fingerprint
from sbon.query.params.rowwise import FunctionParams
from sbon.watermarks import WATERMARK_END


class Function(Operator):
    """Calls an installed function; the operator's state is that of the function.

    Raises
    ------
    FunctionError
        The function is not installed here in this version, is declared differently, or cannot be made with these arguments.
    """

    def __init__(self, params: FunctionParams, extensions: Extensions) -> None:
        declared = declared_as(params, extensions)
        self._what = f"function {params.name} {params.version}"
        arguments = declared.bind((), dict(params.arguments))
        self._params = params
        self._inputs = list(polars_schema(params.inputs))
        self._outputs = polars_schema(params.outputs)
        self._make = lambda: declared.make(**dict(arguments))
        self._made: Any = self._call(self._make)
        if not (self.is_stateless or params.deterministic):
            raise FunctionError(f"{self._what} keeps state, so it must be deterministic: state is copied by taking the same input again")

    @property
    def is_stateless(self) -> bool:
        """Tells whether the function is not a `StatefulFunction`."""
        return not isinstance(self._made, StatefulFunction)

    def process(self, port: int, frame: pl.DataFrame) -> Sequence[pl.DataFrame]:
        """Processes one batch."""
        if frame.columns != self._inputs:
            frame = frame.select_seq(self._inputs)
        # In several chunks, or for columns held as a single value, polars gives different answers for some expressions.
        made, frame = self._made, pl.DataFrame(frame.rechunk().get_columns())
        return self._checked(self._call(lambda: (made if self.is_stateless else made.process)(frame)))

    def advance_in_steps(self, watermark_us: int) -> Sequence[Sequence[pl.DataFrame]]:
        """Passes the new watermark to the function."""
        if self.is_stateless:
            return ()
        given = self._call(lambda: self._made.advance(watermark_us))
        return () if given is None else (self._checked(given),)

    def output_watermark(self, watermark_us: int) -> int:
        """Returns the function's own watermark, at most that of its input."""
        if self.is_stateless or watermark_us >= WATERMARK_END:
            return watermark_us
        given = self._call(lambda: self._made.output_watermark(watermark_us))
        try:
            return min(watermark_us, int(given))
        except (TypeError, ValueError, OverflowError):
            raise FunctionError(f"{self._what}: output_watermark gave {given!r}, expected microseconds since 1970") from None

    def snapshot(self) -> bytes:
        """Returns the function's state after sixteen bytes that identify function, version and arguments; nothing if it is stateless."""
        if self.is_stateless:
            return b""
        state = self._call(self._made.snapshot)
        if not isinstance(state, bytes):
            raise FunctionError(f"{self._what}: snapshot gave a {type(state).__name__}, expected bytes")
        return fingerprint(self._params) + state

    def fork(self) -> Self:
        """Returns an operator in the same state, by way of a snapshot, since a user's objects may not be copyable."""
        forked = copy.copy(self)
        forked._made = self._call(self._make)
        forked.restore(self.snapshot())
        return forked

    def restore(self, state: bytes) -> None:
        """Continues from a snapshot.

        Raises
        ------
        RemoteProtocolError
            The snapshot is not of this function with these arguments.
        FunctionError
            The function refuses the snapshot.
        """
        if self.is_stateless:
            if state:
                raise RemoteProtocolError(f"snapshot of {len(state)} bytes for {self._what}, which has no state")
            return
        mark = fingerprint(self._params)
        if not state.startswith(mark):
            raise RemoteProtocolError(f"snapshot of another function than {self._what}, or with other arguments")
        self._call(lambda: self._made.restore(state[len(mark) :]))

    def _call(self, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except Exception as problem:  # user code: its error ends its operator, not the agent
            raise FunctionError(f"{self._what}: {type(problem).__name__}: {problem}") from problem

    def _checked(self, given: Any) -> Sequence[pl.DataFrame]:
        return checked_output(self._what, given, self._outputs)


def declared_as(params: FunctionParams, extensions: Extensions) -> BatchFunction:
    """Returns the installed function that an operator runs.

    Raises
    ------
    FunctionError
        The function is not installed here in that version, or is declared differently.
    """
    declared = extensions.function(params.name, params.version)
    if (declared.input_schema, declared.output_schema, declared.event_time) != (params.inputs, params.outputs, params.time_column):
        what = f"function {params.name} {params.version}"
        raise FunctionError(f"{what} is declared here with other columns than where the query was planned; give it a new version")
    return declared


def checked_output(what: str, given: Any, outputs: Mapping[str, pl.DataType]) -> Sequence[pl.DataFrame]:
    """Returns a function's output, without empty frames, after checking that it has the declared columns.

    Raises
    ------
    FunctionError
        The output is not a frame, or has other columns.
    """
    if not isinstance(given, pl.DataFrame):
        raise FunctionError(f"{what} gave a {type(given).__name__}, expected a polars DataFrame")
    if list(given.schema.items()) != list(outputs.items()):
        found, wanted = (", ".join(f"{name} {dtype}" for name, dtype in columns.items()) for columns in (given.schema, outputs))
        raise FunctionError(f"{what} gave the columns ({found}), declared are ({wanted})")
    return (given,) if given.height else ()
