"""`sbon bench closing`: how long an operator keeps a thread when a window of many keys closes.

Operators get two seconds of rows with `keys` different keys, then the end watermark. The longest step is the longest that another operator
waits; the sum of steps is the whole cost of closing. Processor time is counted, as in `sbon bench operators`.
"""

from collections.abc import Callable
from time import process_time
from typing import Any

import numpy as np
import polars as pl

from sbon.cli import tables
from sbon.cli.output import count, number, print_table
from sbon.operators.operator import Operator
from sbon.operators.registry import build
from sbon.query.expression import Column
from sbon.query.params.aggregate import Aggregate
from sbon.query.params.joined import WindowJoinParams
from sbon.query.params.kinds import Params
from sbon.query.params.windowed import SessionParams, WindowParams
from sbon.watermarks import WATERMARK_END

SECOND_US = 1_000_000
BATCH_ROWS = 65_536

_KEYS = (("key", Column("key")),)
_VALUE = Column("value")
_COUNT_SUM_MAX = (Aggregate("n", "count", None), Aggregate("total", "sum", _VALUE), Aggregate("most", "max", _VALUE))
_PAIR = (("key", 0, "key"), ("value", 0, "value"), ("other", 1, "value"))

WORKLOADS: dict[str, Params] = {
    "tumbling 2 s": WindowParams("time", 2 * SECOND_US, 2 * SECOND_US, _KEYS, _COUNT_SUM_MAX),
    "hopping 10 s / 2 s": WindowParams("time", 10 * SECOND_US, 2 * SECOND_US, _KEYS, _COUNT_SUM_MAX),
    "session 1 s": SessionParams("time", SECOND_US, _KEYS, _COUNT_SUM_MAX[:1]),
    "window join 2 s": WindowJoinParams("time", "time", (Column("key"),), (Column("key"),), 2 * SECOND_US, 2 * SECOND_US, _PAIR),
}


def measure(keys: int, tell: Callable[[str], None]) -> dict[str, Any]:
    """Returns for each workload the rows of its answer, the number of steps, and the longest and the total time of the steps in ms."""
    frame = _rows(keys)
    result: dict[str, Any] = {"keys": keys, "closing": {}}
    for name, params in WORKLOADS.items():
        tell(name)
        operator = build(params)
        for batch in frame.iter_slices(BATCH_ROWS):
            for port in (0, 1) if isinstance(params, WindowJoinParams) else (0,):
                operator.process(port, batch)
        result["closing"][name] = _close(operator)
    return result


def _rows(keys: int) -> pl.DataFrame:
    """Returns two rows for each key."""
    rng = np.random.default_rng(1)
    at = np.arange(2 * keys) * (2 * SECOND_US) // (2 * keys)
    frame = pl.DataFrame({"time": at, "key": rng.permutation(2 * keys) % keys, "value": rng.random(2 * keys)})
    return frame.with_columns(pl.col("time").cast(pl.Datetime("us")))


def _close(operator: Operator) -> dict[str, float]:
    rows, spent = 0, list[float]()
    began = process_time()
    for frames in operator.advance_in_steps(WATERMARK_END):
        spent.append(process_time() - began)
        rows += sum(frame.height for frame in frames)
        began = process_time()
    spent.append(process_time() - began)
    return {"rows": rows, "steps": len(spent), "longest_ms": round(max(spent) * 1000, 2), "total_ms": round(sum(spent) * 1000, 1)}


def show(result: dict[str, Any]) -> None:
    """Shows a table with a line for each workload."""
    rows = [
        [name, count(one["rows"]), count(one["steps"]), number(one["longest_ms"]), count(one["total_ms"])]
        for name, one in result["closing"].items()
    ]
    columns = (tables.Column("workload"), *(tables.Column(title, right=True) for title in ("rows", "steps", "longest ms", "all ms")))
    print_table(columns, rows, title=f"closing with {result['keys']:,} keys")
