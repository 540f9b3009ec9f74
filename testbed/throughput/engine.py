"""Measures the query of WhiteWater's section 6.4 on two real agents with one core each, as written and as optimised; and another query.

    sigma(D = 0) sigma(A = 0) (AB join on B (BC join on C CD))

As written, filters are above both joins and everything is on one node. Optimised, filters are at their sources and the joins on different
nodes; only the output of the join on C goes between the nodes. The other query (`windowed`) computes a function of the rows of AB and of a
tenth of those of BC, in windows over both. Agents first run a query slowly and predict its highest rate. Then the rates of all sources rise
together until a source cannot give its rows. Finally the query runs a little below and a little above the predicted rate, for a minute
each.
"""

import os
import re
import time
from typing import Any, NamedTuple

from sbon.errors import SbonError
from sbon_testbed.bench.agents import BenchAgent, agents
from sbon_testbed.throughput.search import Report
from sbon_testbed.throughput.sustained import ABOVE, BELOW, FLAT_S, FULL, is_blocked, waiting

NODES = ("a", "b")
VALUES_B, VALUES_C = 1_000, 100_000
"""Number of values of keys B and C: the join on C is a hundred times more selective than the join on B."""
SHARE = 100
"""One row in this many passes a filter."""
SPAN_MS = 500
FIRST_ROWS_PER_S = 20_000
ROUNDS = 10
LEARN_SHARE = 0.8
"""Share of the predicted rate at which costs are measured again, until the prediction changes by at most `SAME`."""
SAME = 0.03
SINK_NODE = "a"
PREDICTED_TIMEOUT_S = 60.0
SETTLE_S, WATCHED_S = 3.0, 5.0
SUSTAINED_S = 60.0
"""Seconds for which queues and latency must stay flat at `BELOW` times the predicted rate."""
HELD_UP = 0.98
"""Share of its rows below which a source counts as held up."""
STEP = 1.25
"""Factor by which rates rise or fall until one sustained and one held-up rate are known."""
NEAR = 1.05
"""The search ends when the least held-up rate is at most this many times the highest sustained rate."""
GONE_TIMEOUT_S = 30.0
SETTINGS = 'optimiser = { enabled = false }\nlog = { level = "warning" }\nhosting = { uplink_bytes_per_s = 1e9 }\n'
"""The uplink is set so high that the network is no limit; without the setting, agents assume 100 Mbit/s."""
SOURCE = """
CREATE SOURCE {name} (ts TIMESTAMP, {one} BIGINT, {other} BIGINT, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = '{node}',
    rows_per_second = {rate}, seed = {seed}, pool_rows = 1048576, fields.{one}.max = {most_one}, fields.{other}.max = {most_other});
"""
QUERY = f"""
SELECT bc.ts AS at, ab.a, bc.b, bc.c, cd.d FROM bc
JOIN cd ON bc.c = cd.c AND cd.ts BETWEEN bc.ts - INTERVAL '{SPAN_MS} ms' AND bc.ts + INTERVAL '{SPAN_MS} ms'
JOIN ab ON ab.b = bc.b AND ab.ts BETWEEN bc.ts - INTERVAL '{SPAN_MS} ms' AND bc.ts + INTERVAL '{SPAN_MS} ms'
WHERE ab.a = 0 AND cd.d = 0
"""
WINDOWED = f"""
SELECT window_end, k, COUNT(*) AS n, SUM(SQRT(v)) AS total FROM TUMBLE((SELECT ts, b AS k, a AS v FROM ab
    UNION ALL SELECT ts, b AS k, c AS v FROM bc WHERE c < {VALUES_C // 10}), ts, INTERVAL '1 second') GROUP BY window_end, k
"""
SINK = f"CREATE SINK found AS {{query}} WITH (connector = 'discard', node = '{SINK_NODE}', latency_column = '{{column}}')"
VALUES = {"a": SHARE, "b": VALUES_B, "c": VALUES_C, "d": SHARE}


class Setup(NamedTuple):
    """A configuration of the query."""

    module: str
    """Module that runs as the agent."""
    sources: dict[str, str]
    """Node of each source."""
    joins: dict[str, str]
    """Node of each join, by its key; other unpinned operators are on the sink's node."""
    query: str = QUERY
    column: str = "at"
    """Column of the answers with an event time, from which their latency is computed."""


SETUPS = {
    "initial": Setup("sbon_testbed.throughput.as_written", {"ab": "a", "bc": "a", "cd": "a"}, {"b": "a", "c": "a"}),
    "optimised": Setup("sbon_agent", {"ab": "a", "bc": "b", "cd": "b"}, {"b": "a", "c": "b"}),
    "windowed": Setup("sbon_agent", {"ab": "a", "bc": "b"}, {}, WINDOWED, "window_end"),
}


class _Pair:
    """Two agents that run one configuration at different rates, one after the other."""

    def __init__(self, found: dict[str, BenchAgent], setup: Setup) -> None:
        self._agents, self._setup = found, setup

    def _begin(self, rate: int) -> None:
        for seed, (name, node) in enumerate(self._setup.sources.items()):
            one, other = name[0], name[1]
            sql = SOURCE.format(
                name=name, one=one, other=other, node=node, rate=rate, seed=seed, most_one=VALUES[one] - 1, most_other=VALUES[other] - 1
            )
            self._ask("submit", sql=sql)
        self._ask("submit", sql=SINK.format(query=self._setup.query, column=self._setup.column))
        for operator in list(self._operators().values()):
            join = re.match(r"join on (\w)", operator["text"])
            node = self._setup.joins[join[1]] if join else SINK_NODE
            if node != operator["node"] and not operator["pinned"]:
                self._agents[operator["node"]].client.ask("migrate", operator=operator["id"], node=node)

    def _end(self) -> None:
        self._ask("submit", sql="DROP SINK found")
        deadline = time.monotonic() + GONE_TIMEOUT_S
        while self._operators():
            if time.monotonic() > deadline:
                raise SbonError(f"the query has not ended within {GONE_TIMEOUT_S:g} s")
            time.sleep(0.1)

    def _forget(self) -> None:
        for name in self._setup.sources:
            self._ask("submit", sql=f"DROP SOURCE {name}")

    def learn(self) -> dict[str, Any]:
        """Runs the query repeatedly at `LEARN_SHARE` of the predicted rate; returns the last prediction, in rows/s of each stream."""
        rate, found = FIRST_ROWS_PER_S, dict[str, Any]()
        for _ in range(ROUNDS):
            self._begin(rate)
            predicted = self._predicted()
            self._end()
            self._forget()
            before = found.get("rows_per_s", 0.0)
            found = {"rows_per_s": predicted["multiple"] * rate, "binding": predicted["binding"], "learned_at": rate}
            if abs(found["rows_per_s"] - before) <= SAME * before:
                break
            rate = round(max(FIRST_ROWS_PER_S, LEARN_SHARE * found["rows_per_s"]))
        return found

    def _predicted(self) -> dict[str, Any]:
        """Returns the prediction of the running query's highest rate, once the agents have measured its costs."""
        deadline = time.monotonic() + PREDICTED_TIMEOUT_S
        while True:
            (row,) = (row for row in self._ask("queries") if row["name"] == "found")
            if row["prediction"] is not None:
                return dict(row["prediction"]["highest_rate"])
            if time.monotonic() > deadline:
                raise SbonError(f"the query has no prediction within {PREDICTED_TIMEOUT_S:g} s: {row['state']}")
            time.sleep(0.2)

    def watch(self, rate: int, watched_s: float = WATCHED_S) -> dict[str, Any]:
        """Runs the query at a rate. Returns the share of its rows that the slowest source gave, the cores that the agents used, the growth
        of waiting rows in seconds of the rates, and the growth of latency in seconds."""
        self._begin(rate)
        time.sleep(SETTLE_S)
        began, before, used = time.monotonic(), self._operators(), self._cpu_s()
        time.sleep(watched_s)
        took_s, after, now = time.monotonic() - began, self._operators(), self._cpu_s()
        self._end()
        self._forget()
        rows = [after[one]["rows_out"] - before[one]["rows_out"] for one in before if before[one]["kind"] == "source"]
        return {
            "rows_per_s": rate,
            "given": min(rows) / (rate * took_s),
            "cores": {name: (now[name] - used[name]) / took_s for name in now},
            "grown_s": (sum(map(waiting, after.values())) - sum(map(waiting, before.values()))) / (rate * len(rows)),
            "later_s": _latency_s(after) - _latency_s(before),
        }

    def _ask(self, command: str, **arguments: Any) -> Any:
        return self._agents["a"].client.ask(command, **arguments)

    def _operators(self) -> dict[str, dict[str, Any]]:
        rows = [row for name, agent in self._agents.items() for row in agent.client.ask("operators") if row["node"] == name]
        for row in rows:
            if row["state"] == "failed":
                raise SbonError(f"operator {row['id']} ({row['text']}) failed: {row['reason']}")
        return {row["id"]: row for row in rows}

    def _cpu_s(self) -> dict[str, float]:
        return {name: agent.cpu_s() for name, agent in self._agents.items()}


def _latency_s(operators: dict[str, dict[str, Any]]) -> float:
    """Returns the median latency of the latest answers."""
    (found,) = (row["latency"] for row in operators.values() if row["kind"] == "sink")
    return float(found["p50_ms"]) / 1e3


def evaluate_engine(report: Report) -> dict[str, Any]:
    """Returns, for each configuration, the highest sustained rate of each stream, the predicted rate, and the result of `sustained`.

    Raises
    ------
    SbonError
        There are fewer than two cores, or an agent fails.
    """
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < len(NODES):
        raise SbonError(f"{len(cores)} core for {len(NODES)} agents, expected one for each")
    found: dict[str, Any] = {}
    for number, (name, setup) in enumerate(SETUPS.items()):
        report("engine", number, len(SETUPS))
        with agents(NODES, SETTINGS, module=setup.module, cores=cores[: len(NODES)]) as running:
            pair = _Pair(running, setup)
            found[name] = measured(pair)
            found[name]["sustained"] = sustained(pair, found[name]["predicted"], found[name]["binding"])
    report("engine", len(SETUPS), len(SETUPS))
    return {**found, "ratio": found["optimised"]["rows_per_s_per_stream"] / found["initial"]["rows_per_s_per_stream"]}


def measured(pair: _Pair) -> dict[str, Any]:
    """Searches for the highest rate that a configuration sustains, in rows/s of each stream, starting at 0.8 of the predicted rate.

    Returns that rate, the predicted rate with its bottleneck, and every trial.
    """
    learned = pair.learn()
    predicted = learned["rows_per_s"]
    tried: list[dict[str, Any]] = []

    def is_sustained(rows_per_s: float) -> bool:
        # Other programs may use the cores: a rate that is held up once is tried again.
        for _ in range(2):
            tried.append(pair.watch(round(rows_per_s)))
            if tried[-1]["given"] >= HELD_UP:
                return True
        return False

    low, high = 0.0, 0.0
    at = 0.8 * predicted
    while not (low and high and high / low <= NEAR):
        if is_sustained(at):
            low = at
        else:
            high = at
        at = (low * high) ** 0.5 if low and high else low * STEP if low else high / STEP
    return {
        "rows_per_s_per_stream": round(low),
        "predicted": round(predicted),
        "binding": learned["binding"],
        "learned_at": learned["learned_at"],
        "error": predicted / low - 1,
        "tried": tried,
    }


def sustained(pair: _Pair, predicted: float, binding: str) -> dict[str, Any]:
    """Tells whether a query behaves as predicted: `flat` below the predicted rate, `blocked` above it, and `binding_full` if the node of
    the predicted bottleneck is then full."""
    below, above = (pair.watch(round(times * predicted), SUSTAINED_S) for times in (BELOW, ABOVE))
    return {
        "flat": below["given"] >= HELD_UP and max(below["grown_s"], below["later_s"]) < FLAT_S,
        "blocked": is_blocked(above["given"], above["grown_s"], SUSTAINED_S),
        "binding_full": above["cores"].get(binding.rpartition(" on node ")[2], 0.0) >= FULL,
        "below": below,
        "above": above,
    }
