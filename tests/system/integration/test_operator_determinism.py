"""Equal input gives equal bytes in every process, although polars hashes with a random seed and splits work over threads."""

import os
import subprocess
import sys

SCRIPT = """
import hashlib, numpy as np, polars as pl
from sbon.operators.frames import encode
from sbon.operators.registry import build
from sbon.query.expression import Call, Column
from sbon.query.params.aggregate import AGGREGATE_FUNCTIONS, PAIR_FUNCTIONS, Aggregate
from sbon.query.params.joined import JoinParams, WindowJoinParams
from sbon.query.params.ordered import DeduplicateParams, OrderColumn, TopParams
from sbon.query.params.windowed import SessionParams, WindowParams
from sbon.schema import ColumnType
from sbon.watermarks import WATERMARK_END

rng, digest, key = np.random.default_rng(1), hashlib.sha256(), Column("k")
equal = Call("eq", (key, key))
operands = dict.fromkeys(AGGREGATE_FUNCTIONS, Column("x")) | {"bool_and": equal, "bool_or": equal}
operands |= {"string_agg": key, "string_agg_distinct": key}
operands |= dict.fromkeys(("bit_and", "bit_or", "bit_xor"), Column("i"))
second = dict.fromkeys(PAIR_FUNCTIONS, Column("y"))
aggregates = tuple(Aggregate(function, function, operands[function], by=second.get(function)) for function in AGGREGATE_FUNCTIONS)
aggregates += (Aggregate("k_", "max", key), Aggregate("arg_k", "arg_max", key, by=Column("x")))
window = build(WindowParams("t", 10**6, 3 * 10**5, (("k", key),), aggregates))
session = build(SessionParams("t", 2 * 10**4, (("k", key),), aggregates))
join = build(JoinParams("t", "t", (key,), (key,), 10**4, 10**4, (("t", 0, "t"), ("k", 0, "k"), ("x", 1, "x"))))
left = build(JoinParams("t", "t", (key,), (key,), 10, 10, (("t", 0, "t"), ("k", 0, "k"), ("x", 1, "x")), outer=(ColumnType.FLOAT,)))
both = (key, Column("x"))
windows = build(WindowJoinParams("t", "t", both, both, 2 * 10**6, 10**6, (("t", 0, "t"), ("k", 1, "k")), outer=(ColumnType.TEXT,)))
top = build(TopParams("t", (OrderColumn("x", True, False),), ("k",), 3))
first = build(DeduplicateParams("t", ("k",), (OrderColumn("x", True, False),), (), 5 * 10**5))
pause = build(DeduplicateParams("t", ("k", "x"), (), (), 2 * 10**4, session=True))
each = ((window, 0), (session, 0), (join, 0), (join, 1), (left, 0), (left, 1), (windows, 0), (windows, 1), (top, 0), (first, 0), (pause, 0))
for i in range(3):
    times = i * 10**6 + rng.integers(0, 10**6, 1000)
    x = pl.Series(rng.choice([0.0, -0.0, 1.5, float("nan"), 2.5e-8], 1000)).shift(i)
    frame = pl.DataFrame({"t": times, "k": [f"a rather long key {k}" for k in rng.integers(0, 40, 1000)], "x": x})
    frame = frame.with_columns(pl.col("t").cast(pl.Datetime("us")), y=x.shift(1), i=pl.Series(times % 1000))
    for operator, port in each:
        for answer in [*operator.process(port, frame), *operator.advance((i - 1) * 10**6)]:
            digest.update(encode(answer))
        digest.update(operator.snapshot())
for operator in (window, session, left, windows, top, first, pause):
    for answer in operator.advance(WATERMARK_END):
        digest.update(encode(answer))
print(digest.hexdigest())
"""


def digest(seed: str, threads: str) -> str:
    environment = os.environ | {"PYTHONHASHSEED": seed, "POLARS_MAX_THREADS": threads}
    return subprocess.run([sys.executable, "-c", SCRIPT], env=environment, check=True, capture_output=True, text=True, timeout=600).stdout


def test_answers_and_snapshots_are_the_same_bytes_in_every_process():
    assert digest("1", "1") == digest("2", "4") != ""
