"""`sbon bench operators`: rows a second that each operator takes on one core, by size of batch, outside any engine.

An operator gets prepared batches in order of event time, with a watermark after each, as a source would send them. Processor time is
counted, not wall-clock time, so that other programs disturb only through the caches.

A law of costs (`sbon.cost`) is fitted to every second round of batches, each over two seconds of event time. Its cost of a batch is
compared with the mean of the other rounds, for each size and for a size between each two, which the law has not seen. Predictions of
latency and throughput rest on these laws.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import mean, median
from time import process_time
from typing import Any

import numpy as np
import polars as pl

from sbon.cli import tables
from sbon.cli.output import number, print_note, print_table
from sbon.cost.cost_fit import CostFit
from sbon.operators.operator import Operator
from sbon.operators.registry import build
from sbon.query.expression import Call, Column, Expression, Literal
from sbon.query.params.aggregate import Aggregate
from sbon.query.params.joined import JoinParams, WindowJoinParams
from sbon.query.params.kinds import Params
from sbon.query.params.ordered import DeduplicateParams, OrderColumn, TopParams
from sbon.query.params.rowwise import MapParams
from sbon.query.params.windowed import AssignParams, SessionParams, WindowParams
from sbon.schema import ColumnType

SECOND_US = 1_000_000
KEYS = 1000
EVENT_ROWS_PER_S = 1_000_000
"""Rows in a second of event time: closing a window costs the same whatever its number of rows."""

SIZES = (1_000, 8_192, 65_536)
"""Default sizes of a batch, in rows."""
ROWS_MAX = 10_000_000
SECONDS_MIN = 0.001

_X, _K = Column("value"), Column("key")
_HALF, _FOUR, _NONE = Literal(0.5, ColumnType.FLOAT), Literal(4, ColumnType.INT), Literal(0, ColumnType.INT)
_JOINED = ((Column("one"),), (Column("other"),))
"""A row has about one partner in a second of the other side."""
_PAIR = (("time", 0, "time"), ("one", 0, "one"), ("value", 0, "value"), ("other_value", 1, "value"))
_COUNT_SUM_MAX = (Aggregate("n", "count", None), Aggregate("total", "sum", _X), Aggregate("most", "max", _X))


def _tumbling(keys: Sequence[tuple[str, Expression]], *aggregates: Aggregate) -> WindowParams:
    return WindowParams("time", SECOND_US, SECOND_US, tuple(keys), aggregates)


def _of_each(function: str, operand: Expression = _X) -> WindowParams:
    return _tumbling((("key", _K),), Aggregate("value", function, operand))


WORKLOADS: dict[str, Params] = {
    "filter and project": MapParams(
        Call("and", (Call("gt", (_X, _HALF)), Call("eq", (Call("mod", (_K, _FOUR)), _NONE)))), (("time", Column("time")), ("value", _X))
    ),
    "tumbling count sum max": _tumbling((("key", _K),), *_COUNT_SUM_MAX),
    "tumbling, text keys": _tumbling((("name", Column("name")),), *_COUNT_SUM_MAX),
    "tumbling, no keys": _tumbling((), *_COUNT_SUM_MAX),
    "tumbling avg": _of_each("avg"),
    "tumbling stddev": _of_each("stddev"),
    "tumbling first": _of_each("first"),
    "tumbling count distinct": _of_each("approx_count_distinct", _K),
    "tumbling percentile": _of_each("approx_percentile"),
    "hopping 10 s / 2 s count": WindowParams("time", 10 * SECOND_US, 2 * SECOND_US, (("key", _K),), _COUNT_SUM_MAX[:1]),
    "session 10 s count": SessionParams("time", 10 * SECOND_US, (("key", _K),), _COUNT_SUM_MAX[:1]),
    "session 10 ms count": SessionParams("time", SECOND_US // 100, (("key", _K),), _COUNT_SUM_MAX[:1]),
    "window join": WindowJoinParams("time", "time", *_JOINED, SECOND_US, SECOND_US, _PAIR),
    "window left join": WindowJoinParams("time", "time", *_JOINED, SECOND_US, SECOND_US, _PAIR, outer=(ColumnType.FLOAT,)),
    "join within 100 ms": JoinParams("time", "time", *_JOINED, SECOND_US // 10, SECOND_US // 10, _PAIR),
    "join within 1 s": JoinParams("time", "time", *_JOINED, SECOND_US, SECOND_US, _PAIR),
    "rows of windows 10 s / 2 s": AssignParams("time", 10 * SECOND_US, 2 * SECOND_US),
    "first row of a key, windows": DeduplicateParams("time", ("key",), (), ("value",), SECOND_US),
    "the same, rare keys": DeduplicateParams("time", ("one",), (), ("value",), SECOND_US),
    "first row behind 10 ms": DeduplicateParams("time", ("key",), (), ("value",), SECOND_US // 100, session=True),
    "last row of a key": TopParams("second", (OrderColumn("time", True, False),), ("value",), 1, ("key",)),
    "top 10 a second": TopParams("second", (OrderColumn("value", True, False),), ("key",), 10),
}


def measure(batch_rows: Sequence[int], seconds: float, names: Sequence[str], tell: Callable[[str], None]) -> dict[str, Any]:
    """Measures rows a second of processor time by workload and batch size, and the error of the predicted cost of a batch; each
    figure takes about `seconds`, and at least two rounds."""
    result: dict[str, Any] = {"event_rows_per_s": EVENT_ROWS_PER_S, "keys": KEYS}
    result |= {"rows_per_s_per_core": {}, "prediction_error": {}, "repeat_error": {}}
    for name in names:
        tell(name)
        rates, result["prediction_error"][name], result["repeat_error"][name] = _rates(WORKLOADS[name], batch_rows, seconds)
        result["rows_per_s_per_core"][name] = {str(rows): rate for rows, rate in zip(batch_rows, rates, strict=True)}
    found = [abs(error) for by_size in result["prediction_error"].values() for error in by_size.values()]
    result["prediction_error_p50"], result["prediction_error_max"] = median(found), max(found)
    return result


class _Size:
    """An operator that gets batches of one size.

    Parameters
    ----------
    unseen : if True, the law is not fitted to its batches
    """

    def __init__(self, params: Params, batch_rows: int, *, unseen: bool = False) -> None:
        self.params, self.batch_rows, self.unseen = params, batch_rows, unseen
        self.batches = _batches(batch_rows)
        if isinstance(params, AssignParams | DeduplicateParams):  # they output whole rows, with text keys of other workloads
            self.batches = [batch.drop("name") for batch in self.batches]
        self.time = params.time_column if isinstance(params, TopParams) else "time"
        self.rows = batch_rows * len(_ports(params))
        """Rows of a batch, summed over all ports."""
        self.operator, self.rounds, self.spent = build(params), 0, 0.0
        # The first two seconds of event time fill the state, so that later batches of a join meet a full one.
        _run(self.operator, self.batches, 0, self.time, _ports(params))
        self.seen_s: list[float] = []
        """Processor time of each batch of the rounds that the law has seen."""
        self.tested_s: list[float] = []
        """Processor time of each batch of the rounds that the law has not seen."""

    def round(self, fit: CostFit) -> None:
        """Processes two seconds of event time. The law is fitted to every second round, beginning with the first."""
        costs: list[float] = []
        self.spent += _run(self.operator, self.batches, (self.rounds + 1) * 2 * SECOND_US, self.time, _ports(self.params), costs)
        if self.rounds % 2 or self.unseen:
            self.tested_s += costs
        else:
            self.seen_s += costs
            for batch, cost_s in zip(self.batches, costs, strict=True):
                fit.took(batch.height * len(_ports(self.params)), cost_s * 1e9, at_s=0.0)
        self.rounds += 1


def _rates(params: Params, batch_rows: Sequence[int], seconds: float) -> tuple[list[int], dict[str, float], dict[str, float]]:
    """Returns rows a second for each size; by size the relative error of the predicted cost of a batch; and by size the relative difference
    between the rounds that the law has seen and the others."""
    fit = CostFit(memory=1e9)
    sizes = [_Size(params, rows) for rows in batch_rows]
    between = [_Size(params, round((one * other) ** 0.5), unseen=True) for one, other in pairwise(sorted(set(batch_rows)))]
    while unfinished := [size for size in sizes if size.spent < seconds or size.rounds < 2 or size.rounds % 2]:
        # In turns, so that other programs disturb all sizes and both halves alike.
        for size in (*unfinished, *(size for size in between if size.rounds < 2)):
            size.round(fit)
    law = fit.law(0.0)
    rates = [round(size.rows * len(size.batches) * size.rounds / size.spent) for size in sizes]
    errors = {str(size.batch_rows): round(law.cost_ns(size.rows).value / (1e9 * mean(size.tested_s)) - 1, 4) for size in (*sizes, *between)}
    repeats = {str(size.batch_rows): round(mean(size.seen_s) / mean(size.tested_s) - 1, 4) for size in sizes}
    return rates, errors, repeats


def _ports(params: Params) -> tuple[int, ...]:
    return (0, 1) if isinstance(params, JoinParams | WindowJoinParams) else (0,)


def _run(
    operator: Operator,
    batches: Sequence[pl.DataFrame],
    start_us: int,
    time: str = "time",
    ports: Sequence[int] = (0,),
    costs: list[float] | None = None,
) -> float:
    """Processes batches from event time `start_us` on; returns the processor seconds, and appends those of each batch to `costs`."""
    spent = 0.0
    for batch in batches:
        shifted = batch.with_columns(pl.col("time", "second") + pl.duration(microseconds=start_us))
        watermark_us = start_us + int(batch[time].to_physical()[-1])
        begin = process_time()
        for port in ports:
            operator.process(port, shifted)
        operator.advance(watermark_us)
        cost_s = process_time() - begin
        spent += cost_s
        if costs is not None:
            costs.append(cost_s)
    return spent


def _batches(batch_rows: int) -> list[pl.DataFrame]:
    """Returns two seconds of event time in batches; 1,000 keys, a few of them frequent (Zipf, exponent 1.2)."""
    rows = max(batch_rows, 2 * EVENT_ROWS_PER_S // batch_rows * batch_rows)
    rng = np.random.default_rng(1)
    shares = 1.0 / np.arange(1, KEYS + 1) ** 1.2
    key = rng.choice(KEYS, rows, p=shares / shares.sum())
    at = np.arange(rows) * (SECOND_US // EVENT_ROWS_PER_S)
    rare = {name: rng.integers(0, EVENT_ROWS_PER_S, rows) for name in ("one", "other")}
    frame = pl.DataFrame({"time": at, "second": at // SECOND_US * SECOND_US, "key": key, "value": rng.random(rows), **rare})
    name = (pl.lit("sensor-") + pl.col("key").cast(pl.String)).alias("name")
    frame = frame.with_columns(pl.col("time", "second").cast(pl.Datetime("us")), name)
    return list(frame.iter_slices(batch_rows))


def show(result: dict[str, Any]) -> None:
    """Prints a table with a line for each workload and a column for each batch size, and how well costs were predicted."""
    rates, errors = result["rows_per_s_per_core"], result["prediction_error"]
    sizes = list(next(iter(rates.values())))
    columns = (
        tables.Column("rows a batch"),
        *(tables.Column(f"{int(size):,}", right=True) for size in sizes),
        tables.Column("CPU off by", right=True),
    )
    rows = [
        [name, *(number(by_size[size] / 1e6, 2) for size in sizes), f"{100 * median(map(abs, errors[name].values())):.1f} %"]
        for name, by_size in rates.items()
    ]
    print_table(columns, rows, title="M rows/s/core")
    figures = sum(map(len, errors.values()))
    print_note(
        f"CPU of a batch predicted within {100 * result['prediction_error_p50']:.1f} % (median of {figures} operators and sizes), "
        f"{100 * result['prediction_error_max']:.1f} % at worst."
    )
