"""Sends a few rows through the operators of a query that never ran, to learn their costs and selectivities.

The operators are made for the sample and dropped afterwards. Sinks, lookup tables and users' functions are left out, because calling them
may have effects outside; so are all operators that they feed. Operators that are left out keep the rules of `sbon.query.estimate`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from sbon.cost.figure import Source, by_rule
from sbon.cost.placed_query import LEAST_FLOW
from sbon.cost.statistics import OperatorFit, OperatorStatistics
from sbon.ports import Meter
from sbon.query.estimate import PASSING
from sbon.query.params.joined import JoinParams, WindowJoinParams
from sbon.query.params.kinds import Params
from sbon.query.params.matched import MatchParams
from sbon.query.params.ordered import DeduplicateParams, OverParams, TopParams
from sbon.query.params.windowed import SessionParams, WindowParams
from sbon.query.plan import LinkSpec, OperatorSpec
from sbon.types import OperatorId
from sbon.watermarks import WATERMARK_END

if TYPE_CHECKING:
    import polars as pl

    from sbon.operators.operator import Operator

ROWS_MAX = 500
ROWS_LEAST = 20
"""Least number of rows for which costs are returned: with fewer, the costs of opening and first calls would count as costs of rows."""
SECONDS_MAX = 0.2
BYTES_MAX = 2**20
"""Most bytes of the rows of one source, and of the output of one operator."""
ROWS_OUT_MAX = 65_536
"""Most output rows of one operator."""
BATCHES = (20, 80, 400)
"""Sizes of the batches: batches of one size could not separate the cost of a batch from that of its rows."""
KEEPING = WindowParams | SessionParams | TopParams | OverParams | MatchParams | DeduplicateParams | JoinParams | WindowJoinParams
"""Operators whose answers depend on rates and on more rows than a sample has: the sample gives their costs only."""


class Given(NamedTuple):
    """The rows of a source."""

    frame: "pl.DataFrame"
    read_ns: int
    """Processor time of reading so many rows."""


def sampled(
    operators: Sequence[OperatorSpec],
    links: Sequence[LinkSpec],
    given: Mapping[OperatorId, Given],
    build: "Callable[[Params], Operator]",
    measure: Callable[[], Meter],
    clock: Callable[[], float],
    speed: float = 1.0,
) -> list[OperatorStatistics]:
    """Returns the sampled statistics of operators; operators that the sample does not reach are left out.

    Parameters
    ----------
    operators : upstream first
    given : rows of sources; sources that are left out give none
    build : makes an operator
    measure : starts a meter of this thread
    clock : seconds; after `SECONDS_MAX` no further batch is begun
    speed : reference ns per ns of this machine
    """
    until = clock() + SECONDS_MAX
    batches: dict[OperatorId, list[pl.DataFrame]] = {}
    found = []
    for spec in operators:
        if spec.id in given:
            frame, read_ns = given[spec.id]
            fit = OperatorFit(spec.signature, 1, speed=speed, source=Source.SAMPLED)
            if frame.height >= ROWS_LEAST:
                fit.ports[0].took(frame.height, frame.height, read_ns, at_s=0.0)
                found.append(fit.statistics(0.0))
            batches[spec.id] = _cut(frame)
            continue
        feeding = [link for link in links if link.target == spec.id]
        if not isinstance(spec.params, PASSING | KEEPING) or not feeding or any(link.source not in batches for link in feeding):
            continue
        inputs = [[frame for link in feeding if link.port == port for frame in batches[link.source]] for port in range(max(1, spec.ports))]
        if not all(inputs):
            continue
        told = _passed(spec, inputs, build, measure, lambda: clock() >= until, speed)
        if told is None:
            break
        statistics, out = told
        if sum(frame.height for port in inputs for frame in port) >= ROWS_LEAST:
            found.append(statistics)
        if out is not None:
            batches[spec.id] = out
    return found


def _cut(frame: "pl.DataFrame") -> "list[pl.DataFrame]":
    """Returns the first rows of a source as batches."""
    size = max(1, frame.estimated_size())
    rows = min(frame.height, ROWS_MAX, max(1, int(frame.height * BYTES_MAX // size)))
    frame, found = frame.head(rows), []
    for count in BATCHES:
        if frame.height:
            found.append(frame.head(count))
            frame = frame.slice(count)
    return found


def _passed(
    spec: OperatorSpec,
    inputs: "Sequence[Sequence[pl.DataFrame]]",
    build: "Callable[[Params], Operator]",
    measure: Callable[[], Meter],
    is_over: Callable[[], bool],
    speed: float,
) -> "tuple[OperatorStatistics, list[pl.DataFrame] | None] | None":
    """Returns the statistics of an operator, and its output or None if that is too large; None for both if the time is over."""
    first = build(spec.params)
    rows_max = max(1, int(ROWS_OUT_MAX // max(1, first.spread)))
    for port, frames in enumerate(inputs):  # the first batch of a kind has costs that no later one has
        first.process(port, frames[0].head(min(BATCHES[0], rows_max)))
    operator = build(spec.params)
    out: list[pl.DataFrame] = []
    steps: list[tuple[int, int, int, int]] = []
    meter = measure()
    try:
        for place in range(max(map(len, inputs))):
            for port, frames in enumerate(inputs):
                if place >= len(frames):
                    continue
                if is_over():
                    return None
                frame = frames[place].head(rows_max)
                made = operator.process(port, frame)
                steps.append((port, frame.height, sum(one.height for one in made), meter.lap(frame.height)))
                out += [one for one in made if one.height]
        for made in operator.advance_in_steps(WATERMARK_END):
            if is_over():
                return None
            out += [one for one in made if one.height]
        closing_ns = meter.lap(0)
    finally:
        meter.end()
    fit = OperatorFit(spec.signature, len(inputs), speed=speed, source=Source.SAMPLED)
    # The cost of the end of all rows is spread over their batches: a running operator pays it bit by bit.
    more = 1 + closing_ns / max(1, sum(ns for *_, ns in steps))
    is_join = isinstance(spec.params, JoinParams)
    for port, rows, rows_out, ns in steps:
        fit.ports[port].took(rows, rows_out, ns * more, at_s=0.0, open_windows=rows_out / rows if is_join else 0.0)
    statistics = fit.statistics(0.0)
    if not isinstance(spec.params, PASSING):
        expected = by_rule(max(LEAST_FLOW, spec.selectivity))
        ports = tuple(msgspec.structs.replace(port, selectivity=expected) for port in statistics.ports)
        statistics = msgspec.structs.replace(statistics, ports=ports)
    is_much = sum(one.height for one in out) > ROWS_OUT_MAX or sum(one.estimated_size() for one in out) > BYTES_MAX
    return statistics, None if is_much else out
