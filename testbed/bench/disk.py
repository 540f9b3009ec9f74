"""`sbon bench disk`: how many rows a second an operator processes when most of its state is on disk, and how much memory the process takes.

First each key comes once, in random order; then come rows whose keys follow Zipf's law with exponent 1; then the stream ends. Rows are one
microsecond apart. The operators are a tumbling window over all rows, hopping windows of half of the rows, which move by an eighth, sessions
with a gap of all rows, and of a fifth of the rows (`short sessions`), all with a count, a sum and a maximum by key, and a deduplication.
Each run has its own process. Rates are by the processor time of all its threads; memory is the growth since before the first row, at its
highest after any batch or step. Files are in the page cache, so the time of disk reads and writes is not included.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from time import process_time
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from sbon.cli import tables
from sbon.cli.output import count, number, print_table
from sbon.operators.operator import Operator
from sbon.operators.registry import build
from sbon.query.expression import Column
from sbon.query.params.aggregate import Aggregate
from sbon.query.params.kinds import Params
from sbon.query.params.ordered import DeduplicateParams
from sbon.query.params.windowed import SessionParams, WindowParams
from sbon.state.room import StateRoom
from sbon.watermarks import WATERMARK_END
from sbon_agent.disk import FolderDisk
from sbon_testbed.bench.state import give_back, key_column, memory_mb
from sbon_testbed.leftovers import run_directory

OPERATORS = ("tumbling", "hopping", "sessions", "short sessions", "deduplication")
AIM_ROWS_PER_S = 500_000.0
AIM_OF_BUDGET = 1.1

_KEYS = (("key", Column("key")),)
_VALUE = Column("value")
_COUNT_SUM_MAX = (Aggregate("n", "count", None), Aggregate("total", "sum", _VALUE), Aggregate("most", "max", _VALUE))


def measure(
    keys: int,
    rows: int,
    batch: int,
    kind: str,
    operators: list[str],
    budgets_mb: list[float],
    tell: Callable[[str], None],
    folder: str,
) -> dict[str, Any]:
    """Returns the figures of each operator with each budget.

    Parameters
    ----------
    batch : rows of a batch
    kind : type of the keys: int or text

    Raises
    ------
    StateError
        A budget cannot hold the states of one batch.
    """
    aims = {"aim_rows_per_s": AIM_ROWS_PER_S, "aim_of_budget": AIM_OF_BUDGET}
    result: dict[str, Any] = {"keys": keys, "rows": rows, "batch_rows": batch, "key": kind, **aims, "runs": []}
    for operator in operators:
        for budget_mb in budgets_mb:
            tell(f"{operator}: {keys:,} keys, {rows:,} rows, {budget_mb:g} MB")
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                found = pool.submit(_timed, operator, keys, rows, batch, kind, round(1e6 * budget_mb), folder).result()
            result["runs"].append({"operator": operator, "budget_mb": budget_mb, **found})
    return result


def show(result: dict[str, Any]) -> None:
    """Shows a line for each operator and budget."""
    lines = [
        [
            one["operator"],
            number(one["budget_mb"]),
            number(one["memory_mb"]),
            count(one["new_keys_per_s"]),
            count(one["rows_per_s"]),
            count(one["rows_per_s_with_end"]),
            number(one["longest_step_ms"]),
        ]
        for one in result["runs"]
    ]
    titles = ("budget MB", "MB", "new keys/s", "rows/s", "with end/s", "step ms")
    columns = (tables.Column("operator"), *(tables.Column(title, right=True) for title in titles))
    print_table(columns, lines, title=f"{result['keys']:,} keys, {result['rows']:,} rows; per core second; longest step")


def _params(operator: str, rows: int) -> Params:
    if operator == "deduplication":
        return DeduplicateParams("time", ("key",), (), (), rows, session=False)
    if operator.endswith("sessions"):
        return SessionParams("time", rows if operator == "sessions" else rows // 5, _KEYS, _COUNT_SUM_MAX)
    size, slide = (rows, rows) if operator == "tumbling" else (rows // 2, rows // 8)
    return WindowParams("time", size, slide, _KEYS, _COUNT_SUM_MAX)


def _timed(operator: str, keys: int, rows: int, batch_rows: int, kind: str, budget: int, folder: str) -> dict[str, float]:
    """Measures one operator."""
    rng = np.random.default_rng(1)
    order = rng.permutation(keys)
    weights = np.cumsum(1 / np.arange(1, keys + 1))
    drawn = order[np.searchsorted(weights, weights[-1] * rng.random(rows))].astype(np.int32)
    order = rng.permutation(order).astype(np.int32)
    del weights
    with run_directory(folder) as place:
        run = _Run(build(_params(operator, keys + rows), room=StateRoom(FolderDisk(place), budget, budget, 2**50, batch_rows)))
        loading_s = run.feed(_frames(order, 0, batch_rows, kind))
        rows_s = run.feed(_frames(drawn, keys, batch_rows, kind))
        disk_mb = sum(path.stat().st_size for path in place.rglob("*") if path.is_file()) / 1e6
        end_s = run.advance(WATERMARK_END)
    return {
        "new_keys_per_s": round(keys / loading_s),
        "rows_per_s": round(rows / rows_s),
        "rows_per_s_with_end": round((keys + rows) / (loading_s + rows_s + end_s)),
        "answers": run.answers,
        "memory_mb": round(run.peak_mb - run.before_mb, 1),
        "disk_mb": round(disk_mb, 1),
        "longest_step_ms": round(1e3 * run.longest_s, 1),
    }


def _frames(values: npt.NDArray[np.integer[Any]], start: int, rows: int, kind: str) -> Iterator[pl.DataFrame]:
    for at in range(0, len(values), rows):
        keys = key_column(values[at : at + rows], kind)
        times = pl.Series("time", np.arange(start + at, start + at + len(keys))).cast(pl.Datetime("us"))
        yield pl.DataFrame([times, keys, pl.Series("value", times.to_physical() * 7919 % 1000)])


class _Run:
    """One run of an operator, with its times and the process's memory."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self.answers = 0
        self.longest_s = 0.0
        give_back()
        self.before_mb = self.peak_mb = memory_mb()

    def feed(self, frames: Iterator[pl.DataFrame]) -> float:
        """Processes rows; returns the processor time in s, without that for making the rows."""
        spent_s = 0.0
        for frame in frames:
            began = process_time()
            self._operator.process(0, frame)
            spent_s += self._step(began)
            latest = frame["time"].to_physical()[-1]
            spent_s += self.advance(int(latest))
        return spent_s

    def advance(self, watermark_us: int) -> float:
        """Advances the watermark; returns the processor time in s."""
        spent_s, began = 0.0, process_time()
        for answers in self._operator.advance_in_steps(watermark_us):
            self.answers += sum(frame.height for frame in answers)
            spent_s += self._step(began)
            began = process_time()
        return spent_s + self._step(began)

    def _step(self, began: float) -> float:
        took_s = process_time() - began
        self.longest_s = max(self.longest_s, took_s)
        self.peak_mb = max(self.peak_mb, memory_mb())
        return took_s
