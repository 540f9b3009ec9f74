"""Flink's part of `sbon bench peers`: a script for a Python that has `apache-flink`; it needs no other package.

It reads jobs as lines of JSON from standard input and runs them in one JVM, one after the other. For each job it writes a line of JSON to
the descriptor given as its argument: `{"seconds": S}` or `{"error": TEXT}`. The keys of a job are

work : W1, W2 or W3
paths : a folder of CSV files for each source, times as milliseconds since 1970; empty: rows are computed from their number
rows : rows of each source if there are no paths
sink : folder for the answers as CSV; empty: answers are discarded

Jobs are SQL only, so that all work is done in the JVM: local cluster, parallelism 2, object reuse on, checkpoints off, heap of 4 GB.
"""

import json
import os
import sys
import time
from typing import Any

PARALLELISM = 2
START_MS = 1_700_000_000_000
ROWS_PER_MS = 100
KEYS = {"events": (7_919, 0, 1_000), "left": (48_271, 11, 10_000_019), "right": (69_621, 7, 10_000_019)}
"""Numbers for the keys of computed rows: key = (number * first + second) % third, by source."""
VALUE_FACTOR, VALUES = 104_729, 10_007
"""Numbers for computed values: value = (number * first % second) / second."""
SOURCES = {"W1": ("events",), "W2": ("events",), "W3": ("left", "right")}
ANSWERS = {
    "W1": "`key` BIGINT, doubled DOUBLE",
    "W2": "window_end TIMESTAMP(3), `key` BIGINT, n BIGINT, total DOUBLE, most DOUBLE",
    "W3": "`key` BIGINT, left_value DOUBLE, right_value DOUBLE",
}


def _windows(table: str) -> str:
    return f"TABLE(TUMBLE(TABLE {table}, DESCRIPTOR(ts), INTERVAL '1' SECOND))"


QUERIES = {
    "W1": "SELECT k, v * 2 FROM events_in WHERE v > 0.5 AND MOD(k, 4) = 0",
    "W2": f"SELECT window_end, k, COUNT(*), SUM(v), MAX(v) FROM {_windows('events_in')} GROUP BY window_start, window_end, k",
    "W3": f"SELECT l.k, l.v, r.v FROM (SELECT * FROM {_windows('left_in')}) l JOIN (SELECT * FROM {_windows('right_in')}) r "
    "ON l.k = r.k AND l.window_start = r.window_start AND l.window_end = r.window_end",
}


def run(job: dict[str, Any]) -> float:
    """Runs a job to its end; returns the seconds that it took."""
    from pyflink.common import Configuration
    from pyflink.datastream import StreamExecutionEnvironment
    from pyflink.table import StreamTableEnvironment

    config = Configuration()
    for name, value in {"pipeline.object-reuse": "true", "table.local-time-zone": "UTC", "parallelism.default": str(PARALLELISM)}.items():
        config.set_string(name, value)
    stream = StreamExecutionEnvironment.get_execution_environment(config)
    stream.set_parallelism(PARALLELISM)
    tables = StreamTableEnvironment.create(stream)
    for place, source in enumerate(SOURCES[job["work"]]):
        if job["paths"]:
            _read(tables, source, job["paths"][place])
        else:
            _compute(stream, tables, source, job["rows"])
    into = f"'connector' = 'filesystem', 'path' = 'file://{job['sink']}', 'format' = 'csv'" if job["sink"] else "'connector' = 'blackhole'"
    tables.execute_sql(f"CREATE TEMPORARY TABLE answers ({ANSWERS[job['work']]}) WITH ({into})")
    began = time.monotonic()
    tables.execute_sql(f"INSERT INTO answers {QUERIES[job['work']]}").wait()
    return time.monotonic() - began


def _read(tables: Any, source: str, path: str) -> None:
    # With a watermark equal to the newest time, Flink would drop later rows of the same millisecond.
    tables.execute_sql(
        f"CREATE TEMPORARY TABLE {source}_in (ms BIGINT, k BIGINT, v DOUBLE, ts AS TO_TIMESTAMP_LTZ(ms, 3), "
        "WATERMARK FOR ts AS ts - INTERVAL '0.001' SECOND) "
        f"WITH ('connector' = 'filesystem', 'path' = 'file://{path}', 'format' = 'csv')"
    )


def _compute(stream: Any, tables: Any, source: str, rows: int) -> None:
    """Computes rows from their number; interleaves the numbers of the two readers, so that both advance together in event time."""
    from pyflink.common import Types, WatermarkStrategy
    from pyflink.datastream.connectors.number_seq import NumberSequenceSource
    from pyflink.table import Schema

    numbers = stream.from_source(
        NumberSequenceSource(0, rows - 1), WatermarkStrategy.no_watermarks(), f"numbers-{source}", type_info=Types.LONG()
    )
    half = rows // 2
    number = f"(2 * MOD(f0, {half}) + f0 / {half})"
    factor, added, modulo = KEYS[source]
    schema = (
        Schema.new_builder()
        .column("f0", "BIGINT")
        .column_by_expression("k", f"({number} * {factor} + {added}) % {modulo}")
        .column_by_expression("v", f"(({number} * {VALUE_FACTOR}) % {VALUES}) / CAST({VALUES} AS DOUBLE)")
        .column_by_expression("ts", f"TO_TIMESTAMP_LTZ({START_MS} + {number} / {ROWS_PER_MS}, 3)")
        .watermark("ts", "ts - INTERVAL '0.001' SECOND")
        .build()
    )
    tables.create_temporary_view(f"{source}_in", tables.from_data_stream(numbers, schema))


def main() -> None:
    """Runs jobs until standard input ends."""
    os.environ.setdefault("JVM_ARGS", "-Xmx4g")
    with os.fdopen(int(sys.argv[1]), "w", encoding="utf-8") as results:
        import pyflink.version

        print(json.dumps({"version": pyflink.version.__version__}), file=results, flush=True)
        for line in sys.stdin:
            try:
                told: dict[str, Any] = {"seconds": run(json.loads(line))}
            except Exception as problem:
                told = {"error": f"{type(problem).__name__}: {' '.join(str(problem).split())[:2000]}"}
            print(json.dumps(told), file=results, flush=True)


if __name__ == "__main__":
    main()
