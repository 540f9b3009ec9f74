"""Periodic rows of a synthetic overlay: the rows that the agents of a `Story` would have recorded in an hour, for all agents at once."""

from collections.abc import Iterator

import numpy as np
import polars as pl

from sbon.digest import bucket_of, middle_ms
from sbon.telemetry.schema import TABLES
from sbon.types import FloatArray
from sbon_testbed.telemetry.story import BEGIN, CABLE_FACTOR, DOWN_S, MAP_BYTES, SOURCE_BYTES, WINDOW_BYTES, Numbers, Story, predicted_ms

SAMPLE_S = 10.0
LATENCY_WINDOW_S = 60.0
REVIEW_S = 60.0
SETTLING_S = 40.0
"""Seconds in which errors of coordinates fall to 1/e after a start."""
OUT_BYTES = {"source": SOURCE_BYTES, "window": WINDOW_BYTES, "map": MAP_BYTES, "sink": 0.0}
DIGEST_STEPS = np.array([0.5, 0.7, 0.85, 1.0, 1.2, 1.6, 2.5])
DIGEST_SHARES = np.array([0.05, 0.15, 0.25, 0.25, 0.15, 0.12, 0.03])


def samples_of_hour(story: Story, begin_s: float, end_s: float, probe_interval_s: float) -> Iterator[tuple[str, pl.DataFrame]]:
    """Yields tables of periodic rows, with `at_s` and `node` instead of the columns common to all kinds."""
    rng = np.random.default_rng([int(begin_s), story.seed, 0])
    yield "probes", _probes(story, begin_s, end_s, probe_interval_s, rng)
    at_s = np.arange(begin_s + SAMPLE_S, end_s + 0.001, SAMPLE_S) - 0.001
    if len(at_s):
        yield "coordinates", _coordinates(story, at_s, rng)
        yield "load", _load(story, at_s, rng)
        hosts = np.array([story.hosts(operator, at_s) for operator in range(len(story.operators.name))])
        yield "links", _links(story, at_s, hosts, rng)
        yield "operators", _operators(story, at_s, hosts, rng)
    yield "reviews", _reviews(story, np.arange(begin_s + REVIEW_S, end_s, REVIEW_S), rng)
    yield "latencies", _latencies(story, np.arange(begin_s + LATENCY_WINDOW_S, end_s + 0.001, LATENCY_WINDOW_S) - 0.001, rng)


def _age_s(story: Story, node: Numbers, at_s: FloatArray) -> FloatArray:
    """Returns the seconds since the agent started."""
    down = np.array([story.down_s.get(number, np.inf) for number in range(len(story.topology.nodes))])[node] + DOWN_S
    return np.where(at_s >= down, at_s - down, at_s)


def _probes(story: Story, begin_s: float, end_s: float, interval_s: float, rng: np.random.Generator) -> pl.DataFrame:
    agents = len(story.topology.nodes)
    per_agent = int((end_s - begin_s) / interval_s)
    at_s = np.sort(rng.uniform(begin_s, end_s, (agents, per_agent)), axis=1).ravel()
    node = np.repeat(np.arange(agents), per_agent)
    peer = (node + rng.integers(1, agents, len(node))) % agents
    slow = (at_s >= story.cable_s[0]) & (at_s < story.cable_s[1])
    true_ms = np.where(slow, story.slower_ms[node, peer], story.quiet_ms[node, peer])
    noise = rng.lognormal(0.0, 0.02, len(node)) + rng.exponential(0.01, len(node))
    rtt_ms = (
        true_ms * noise + rng.exponential(0.3, len(node)) + np.where(rng.random(len(node)) < 0.01, rng.exponential(60.0, len(node)), 0.0)
    )
    wrong = 1.5 * np.exp(-_age_s(story, node, at_s) / SETTLING_S) * rng.normal(0, 1, len(node))
    # The coordinates follow the slower cable, with about half of its effect on prediction.
    lag = np.where(slow, true_ms / story.quiet_ms[node, peer], 1.0) ** 0.7
    predicted = predicted_ms(story.vectors, story.heights, np.arange(agents))[node, peer] * lag * np.abs(1.0 + wrong)
    columns = {"at_s": at_s, "node": node, "peer": peer, "rtt_ms": rtt_ms, "predicted_ms": predicted}
    return pl.DataFrame(columns).with_columns(_named(story, "peer"))


def _named(story: Story, column: str) -> pl.Expr:
    """Converts numbers of nodes to their names."""
    names = pl.Series(story.topology.nodes)
    return pl.col(column).replace_strict(pl.Series(range(len(names))), names, return_dtype=pl.String).alias(column)


def _grid(at_s: FloatArray, columns: int) -> tuple[FloatArray, Numbers]:
    """Returns every pair of a moment and a number below `columns`, sorted by number."""
    return np.tile(at_s, columns), np.repeat(np.arange(columns), len(at_s))


def _coordinates(story: Story, at_s: FloatArray, rng: np.random.Generator) -> pl.DataFrame:
    agents = len(story.topology.nodes)
    moments, node = _grid(at_s, agents)
    settling = np.exp(-_age_s(story, node, moments) / SETTLING_S)[:, None]
    drift = np.stack([np.sin(moments / 3000 + node), np.cos(moments / 3000 + node), np.sin(moments / 1000)], axis=1)
    slow = np.where((moments >= story.cable_s[0]) & (moments < story.cable_s[1]), CABLE_FACTOR**0.5, 1.0)[:, None]
    vectors = story.vectors[node] * slow + 2.0 * drift + (0.15 + 30 * settling) * rng.normal(0, 1, (len(node), 3))
    error = 0.06 + 0.9 * settling[:, 0] + 0.02 * rng.random(len(node))
    return pl.DataFrame(
        {
            "at_s": moments,
            "node": node,
            "vector_ms": pl.Series(vectors.round(3)).arr.to_list(),
            "height_ms": story.heights[node] + 0.05 * rng.random(len(node)),
            "error": error,
            "load_ms": 100 * _cpu(story, node, moments) ** 3,
            "median_relative_error": error * 0.9,
        }
    )


def _cpu(story: Story, node: Numbers, at_s: FloatArray) -> FloatArray:
    busy = 0.15 + 0.5 * ((node * 7919) % 97) / 97
    cpu: FloatArray = np.clip(busy * story.tide(at_s) + 0.05 * np.sin(at_s / 37 + node), 0.0, 1.0)
    return cpu


def _load(story: Story, at_s: FloatArray, rng: np.random.Generator) -> pl.DataFrame:
    moments, node = _grid(at_s, len(story.topology.nodes))
    cpu = _cpu(story, node, moments)
    hosted = np.bincount([moves[-1][1] for moves in story.operators.moves], minlength=len(story.topology.nodes))[node]
    return pl.DataFrame(
        {
            "at_s": moments,
            "node": node,
            "cpu": cpu,
            "memory": 0.3 + 0.1 * rng.random(len(node)),
            "load_ms": 100 * cpu**3,
            "operators": hosted,
            "free_slots": np.maximum(0, 64 - hosted),
            "records_dropped": np.where(node == 1, (moments // 7200).astype(np.int64), 0),
            "loop_lag_p50_ms": 0.2 + 0.5 * cpu,
            "loop_lag_p99_ms": 1.0 + 4.0 * cpu,
            "cpu_waiting": 0.5 * cpu**2,
        }
    )


def _rate(story: Story, planned: FloatArray, bias: FloatArray, at_s: FloatArray, rng: np.random.Generator) -> FloatArray:
    measured: FloatArray = planned * bias * story.tide(at_s) * rng.lognormal(0.0, 0.05, len(at_s))
    return measured


def _texts(values: list[list[str]]) -> pl.Series:
    return pl.Series(values, dtype=pl.List(pl.String))


def _users(story: Story, operators: list[int]) -> pl.Series:
    """Returns the queries that use each of these operators."""
    return _texts([[story.queries[user].name for user in sorted(story.operators.users[operator])] for operator in operators])


def _links(story: Story, at_s: FloatArray, hosts: Numbers, rng: np.random.Generator) -> pl.DataFrame:
    all_operators = story.operators
    moments, link = _grid(at_s, len(story.links))
    source, target = (np.array([one[end] for one in story.links])[link] for end in (0, 1))
    sample = np.tile(np.arange(len(at_s)), len(story.links))
    node, target_node = hosts[source, sample], hosts[target, sample]
    slow = (moments >= story.cable_s[0]) & (moments < story.cable_s[1])
    latency = np.where(slow, story.slower_ms[node, target_node], story.quiet_ms[node, target_node]) / 2
    per_row = np.array([OUT_BYTES[all_operators.kind[one[0]]] for one in story.links])[link]
    bias = np.array(all_operators.bias)[source]
    rows_per_s = _rate(story, np.array([one[2] for one in story.links])[link] / per_row, bias, moments, rng)
    congested = (link % 41 == 7) & (np.sin(moments / 500) > 0.8)
    # The queries that use a link are those that use its target.
    described = pl.DataFrame(
        {
            "link": [f"{all_operators.name[one[0]]}>{all_operators.name[one[1]]}" for one in story.links],
            "source": [all_operators.name[one[0]] for one in story.links],
            "target": [all_operators.name[one[1]] for one in story.links],
            "queries": _users(story, [one[1] for one in story.links]),
        }
    )
    return pl.DataFrame(
        {
            "at_s": moments,
            "node": node,
            **described[link].to_dict(as_series=True),
            "target_node": target_node,
            "rows_per_s": rows_per_s,
            "bytes_per_s": rows_per_s * per_row,
            "rows": (rows_per_s * moments).astype(np.int64),
            "bytes": (rows_per_s * per_row * moments).astype(np.int64),
            "latency_ms": np.where(node == target_node, 0.0, latency * rng.lognormal(0.0, 0.01, len(node))),
            "latency_measured": rng.random(len(node)) < 0.97,
            "batches_held": rng.poisson(2, len(node)),
            "batches_resent": np.where(link % 13 == 0, (moments // 900).astype(np.int64), 0),
            "stalled": congested | (rng.random(len(node)) < 0.001),
            "bandwidth_bytes_per_s": pl.Series([None] * len(node), dtype=pl.Float64),
        }
    ).with_columns(_named(story, "target_node"))


def _operators(story: Story, at_s: FloatArray, hosts: Numbers, rng: np.random.Generator) -> pl.DataFrame:
    all_operators = story.operators
    count = len(all_operators.name)
    moments, operator = _grid(at_s, count)
    kinds = np.array(all_operators.kind)[operator]
    rate_in, rate_out, bias = (np.array(column)[operator] for column in (all_operators.rate_in, all_operators.rate_out, all_operators.bias))
    measured_in, measured_out = (_rate(story, planned, bias, moments, rng) for planned in (rate_in, rate_out))
    selectivity = np.divide(measured_out, measured_in, out=np.zeros_like(measured_in), where=measured_in > 0)
    planned = np.divide(rate_out, rate_in, out=np.ones_like(rate_in), where=rate_in > 0)
    per_row = np.array([OUT_BYTES[kind] for kind in all_operators.kind])[operator]
    described = pl.DataFrame(
        {"operator": all_operators.name, "operator_kind": all_operators.kind, "queries": _users(story, list(range(count)))}
    )
    late = (kinds == "window") & (operator % 5 == 0)
    moved = np.array([np.searchsorted([at for at, _ in moves], at_s, side="right") - 1 for moves in all_operators.moves]).ravel()
    frame = pl.DataFrame(
        {
            "at_s": moments,
            "node": hosts.ravel(),
            **described[operator].to_dict(as_series=True),
            "state": np.where(rng.random(len(operator)) < 0.002, "blocked", "running"),
            "reason": np.full(len(operator), ""),
            "epoch": moved,
            "rows_in": (measured_in * moments).astype(np.int64),
            "rows_out": (measured_out * moments).astype(np.int64),
            "rows_per_s_in": measured_in,
            "rows_per_s_out": measured_out,
            "bytes_per_s_in": measured_in * SOURCE_BYTES,
            "bytes_per_s_out": measured_out * per_row,
            "selectivity": selectivity,
            "selectivity_estimated": planned,
            "estimated_rows_per_s_in": rate_in,
            "estimated_rows_per_s_out": rate_out,
            "late_rows": np.where(late, (moments * 0.01 * (operator % 7)).astype(np.int64), 0),
            "dropped_rows": np.zeros(len(operator), dtype=np.int64),
            "misfits": pl.Series([[]] * len(operator), dtype=TABLES["operators"].polars_schema()["misfits"]),
            "costs": pl.Series([[]] * len(operator), dtype=TABLES["operators"].polars_schema()["costs"]),
            "shed_rows": pl.Series([[]] * len(operator), dtype=TABLES["operators"].polars_schema()["shed_rows"]),
            "deferred_rows": pl.Series([[]] * len(operator), dtype=TABLES["operators"].polars_schema()["deferred_rows"]),
            "deferred_waiting": np.zeros(len(operator), dtype=np.int64),
            "queue_batches": rng.poisson(0.3, len(operator)),
            "state_rows": np.where(kinds == "window", (rate_in * 5).astype(np.int64), 0),
            "queue_rows": rng.poisson(20.0, len(operator)),
            "quanta": (moments * 20).astype(np.int64),
            "cpu_ns": (measured_in * moments * 25.0).astype(np.int64),
            "cpu_ns_per_row": np.full(len(operator), 25.0),
            "longest_quantum_ms": rng.uniform(0.2, 5.0, len(operator)),
            "state_bytes": np.where(kinds == "window", (rate_in * 5 * WINDOW_BYTES).astype(np.int64), 0),
        }
    )
    source, sink = pl.col("operator_kind") == "source", pl.col("operator_kind") == "sink"
    null = pl.lit(None, dtype=pl.Float64)
    return frame.with_columns(
        pl.when(source).then(null).otherwise("selectivity").alias("selectivity"),
        pl.when(source).then(null).otherwise("estimated_rows_per_s_in").alias("estimated_rows_per_s_in"),
        pl.when(sink).then(null).otherwise("estimated_rows_per_s_out").alias("estimated_rows_per_s_out"),
    )


def _reviews(story: Story, at_s: FloatArray, rng: np.random.Generator) -> pl.DataFrame:
    windows = [number for number, kind in enumerate(story.operators.kind) if kind == "window"]
    if not len(at_s) or not windows:
        return pl.DataFrame()
    moments, which = _grid(at_s, len(windows))
    node = np.array([story.hosts(operator, at_s) for operator in windows]).ravel()
    names = np.array([story.operators.name[operator] for operator in windows])[which]
    saving = rng.uniform(-0.3, 0.12, len(which))
    return pl.DataFrame(
        {"at_s": moments, "node": node, "operator": names, "other": (node + 1) % len(story.topology.nodes), "saving": saving}
    ).select(
        "at_s",
        "node",
        "operator",
        pl.concat_list("operator").alias("operators"),
        pl.when(pl.col("saving") > 0.1).then(pl.lit("wait")).otherwise(pl.lit("stay")).alias("verdict"),
        pl.lit("no other node saves enough").alias("reason"),
        pl.concat_list(
            pl.struct(
                _named(story, "other").alias("node"),
                (1000 * (1 - pl.col("saving"))).alias("usage_bytes"),
                pl.lit(1000.0).alias("usage_here_bytes"),
                "saving",
                pl.lit(0.1).alias("required"),
                pl.lit(True).alias("measured"),
            )
        ).alias("alternatives"),
    )


def _latencies(story: Story, at_s: FloatArray, rng: np.random.Generator) -> pl.DataFrame:
    if not len(at_s):
        return pl.DataFrame()
    moments, query = _grid(at_s, len(story.queries))
    sinks = [one.operators[-1] for one in story.queries]
    typical = np.array([40.0 + 25 * (number % 17) for number in range(len(sinks))])[query] * rng.lognormal(0.0, 0.1, len(query))
    typical *= np.where((moments >= story.cable_s[0]) & (moments < story.cable_s[1]), 1.25, 1.0)
    rows = np.array([story.operators.rate_in[sink] for sink in sinks])[query] * LATENCY_WINDOW_S * story.tide(moments)
    counts = np.maximum(np.round(rows[:, None] * DIGEST_SHARES), 1).astype(np.int64)
    durations = typical[:, None] * DIGEST_STEPS
    numbers = np.vectorize(bucket_of, otypes=[np.int64])(durations)
    reached = counts.cumsum(axis=1) / counts.sum(axis=1, keepdims=True)
    quantiles = {}
    for name, share in (("p50_ms", 0.5), ("p90_ms", 0.9), ("p99_ms", 0.99)):
        place = (reached >= share).argmax(axis=1)
        quantiles[name] = np.vectorize(middle_ms)(numbers[np.arange(len(query)), place])
    buckets = pl.DataFrame({"row": np.repeat(np.arange(len(query)), len(DIGEST_STEPS)), "number": numbers.ravel(), "rows": counts.ravel()})
    lists = buckets.group_by("row", maintain_order=True).agg(pl.struct("number", "rows").alias("buckets"))
    return pl.DataFrame(
        {
            "at_s": moments,
            "node": np.array([one.consumer for one in story.queries])[query],
            "query": np.array([one.name for one in story.queries])[query],
            "operator": np.array([story.operators.name[sink] for sink in sinks])[query],
            "window_s": np.full(len(query), LATENCY_WINDOW_S),
            "rows": counts.sum(axis=1),
            "batches": counts.sum(axis=1) // 10 + 1,
            **quantiles,
            "max_ms": durations.max(axis=1) * 1.005,
            "buckets": lists["buckets"],
        }
    ).with_columns(_instant(pl.col("at_s") - LATENCY_WINDOW_S).alias("begun_at"))


def _instant(at_s: pl.Expr) -> pl.Expr:
    return (pl.lit(BEGIN) + pl.duration(microseconds=(at_s * 1e6).cast(pl.Int64))).cast(pl.Datetime("us", "UTC"))
