"""The workloads of `sbon bench engine`, as SQL for one agent named `bench`. Rows are (ts, key, value), made in memory by `datagen`.

W1 : filter and project: `value > 0.5 AND key % 4 = 0`, one row of eight leaves
W2 : count, sum and greatest value by key in tumbling windows of one second, 1,000 keys, Zipf-distributed
W3 : equi-join of two streams within windows of one second, keys such that a row has one partner in the mean

A source makes a million rows once and gives them again and again while event time goes on: at full speed a million rows a second; otherwise
rows come by the clock, each with the instant at which it was due as its event time.
"""

from typing import NamedTuple

FULL_SPEED = 0
"""Rows/s that mean: as fast as the engine takes them."""
EVENT_ROWS_PER_S = 1_000_000
POOL_ROWS = 1 << 20


class Workload(NamedTuple):
    """What one of them runs, per copy of it."""

    sources: int
    key_fields: str
    """Options of the sources' column `key`."""
    select: str
    """The query; `{a}` and `{b}` are its sources."""
    latency_column: str
    """Of the answers: what the sink measures their age by."""


WORKLOADS = {
    "W1": Workload(
        1,
        "fields.key.kind = 'random', fields.key.min = 0, fields.key.max = 999",
        "SELECT ts, key, value FROM {a} WHERE value > 0.5 AND key % 4 = 0",
        "ts",
    ),
    "W2": Workload(
        1,
        "fields.key.kind = 'zipf', fields.key.count = 1000",
        "SELECT window_end, key, COUNT(*) AS n, SUM(value) AS total, MAX(value) AS most "
        "FROM TUMBLE({a}, ts, INTERVAL '1 second') GROUP BY window_end, key",
        "window_end",
    ),
    "W3": Workload(
        2,
        f"fields.key.kind = 'random', fields.key.min = 0, fields.key.max = {EVENT_ROWS_PER_S - 1}",
        "SELECT x.window_start, x.key, x.value AS left_value, y.value AS right_value "
        "FROM TUMBLE({a}, ts, INTERVAL '1 second') x JOIN TUMBLE({b}, ts, INTERVAL '1 second') y "
        "ON x.key = y.key AND x.window_start = y.window_start",
        "window_start",
    ),
}


def statements(name: str, *, copy: int = 0, rows_per_s: int = FULL_SPEED, rows: int = 0, measured: bool = False) -> str:
    """Sources, query and sink of a workload.

    Parameters
    ----------
    copy : several run beside each other under different numbers
    rows_per_s : of each source; 0: as fast as they are taken
    rows : of each source, then it ends; 0: no end
    measured : the sink notes the age of its rows
    """
    workload = WORKLOADS[name]
    sources = [f"{name.lower()}_{copy}_{letter}" for letter in "ab"[: workload.sources]]
    texts = [_source(source, seed, workload.key_fields, rows_per_s, rows) for seed, source in enumerate(sources, start=2 * copy)]
    options = f", latency_column = '{workload.latency_column}'" if measured else ""
    select = workload.select.format(**dict(zip("ab", sources, strict=False)))
    texts.append(f"CREATE SINK {name.lower()}_{copy} FROM ({select}) WITH (connector = 'discard'{options});")
    return "\n".join(texts)


def _source(name: str, seed: int, key_fields: str, rows_per_s: int, rows: int) -> str:
    speed = f"rows_per_second = {rows_per_s}" if rows_per_s else f"rows_per_second = 'max', event_rows_per_second = {EVENT_ROWS_PER_S}"
    options = ["connector = 'datagen'", "nodes = 'bench'", speed, f"seed = {seed}", f"pool_rows = {POOL_ROWS}", key_fields]
    if rows:
        options.append(f"rows = {rows}")
    return f"CREATE SOURCE {name} (ts TIMESTAMP, key BIGINT, value DOUBLE, WATERMARK FOR ts AS ts) WITH ({', '.join(options)});"
