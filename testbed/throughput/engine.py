"""Measures the query of WhiteWater's section 6.4 on two real agents with one core each, as written and as optimised; and another query.

    sigma(D = 0) sigma(A = 0) (AB join on B (BC join on C CD))

As written, filters are above both joins and everything is on one node. Optimised, filters are at their sources and the joins on different
nodes; only the output of the join on C goes between the nodes. The other query (`windowed`) computes a function of the rows of AB and of a
tenth of those of BC, in windows over both. Agents first run a query slowly and predict its highest rate. Then the rates of all sources rise
together until a source cannot give its rows. Finally the query runs a little below and a little above the predicted rate, for a minute
each.

Agents predict with the share of a core that they had. Each trial measures what they really could have
(`sbon_testbed.throughput.available`), and a second prediction rests on that.
"""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from sbon.errors import SbonError
from sbon_testbed.bench.agents import BenchAgent, agents
from sbon_testbed.throughput.available import Core, Used, available, cores_of_agents, is_first, look_at, present_multiple, used
from sbon_testbed.throughput.search import Report
from sbon_testbed.throughput.sustained import ABOVE, BELOW, FLAT_S, FULL, HELD_UP, is_blocked, latency_s, waiting

NODES = ("a", "b")
VALUES_B, VALUES_C = 1_000, 100_000
"""Number of values of keys B and C: the join on C is a hundred times more selective than the join on B."""
SHARE = 100
"""One row in this many passes a filter."""
SPAN_MS = 500
FIRST_ROWS_PER_S = 20_000
ROUNDS = 12
GROWTH_MAX = 8.0
"""Largest ratio of the rate of a round to the rate at which the newest prediction was learned: costs of far larger batches are guesses."""
LEARN_SHARE = 0.8
"""Share of the predicted rate at which costs are measured again, until the prediction changes by at most `SAME`; then at
`NEARER` shares."""
SAME = 0.03
NEARER = (0.9, 0.95)
"""Shares of the predicted rate at which costs are measured at last: batches and states are then nearly as large as at the limit."""
SINK_NODE = "a"
PREDICTED_TIMEOUT_S = 60.0
SETTLE_S, WATCHED_S = 3.0, 5.0
SUSTAINED_S = 60.0
"""Seconds for which queues and latency must stay flat at `BELOW` times the predicted rate."""
ERROR_MAX = 0.1
"""Largest relative error of a prediction that counts as near enough."""
CORES_SAME = 0.05
"""Difference in cores between those that a prediction assumes and those that an agent could have that counts as none."""
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


class Pair:
    """Two agents that run one configuration at different rates, one after the other."""

    def __init__(self, found: dict[str, BenchAgent], setup: Setup, cores: dict[str, int]) -> None:
        self._agents, self._setup, self._cores = found, setup, cores

    def _begin(self, rate: int) -> None:
        self._meet()
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

    def _meet(self) -> None:
        """Waits until the agents see each other: one whose core was full may have seemed dead to the other."""
        deadline = time.monotonic() + GONE_TIMEOUT_S
        while not all(agent.client.ask("status")["members"]["alive"] == len(self._agents) for agent in self._agents.values()):
            if time.monotonic() > deadline:
                raise SbonError(f"the agents have not seen each other within {GONE_TIMEOUT_S:g} s")
            time.sleep(0.1)

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

    def learn(self, rate: int) -> dict[str, Any]:
        """Runs the query at a rate. Returns the home's prediction of the highest rate in rows/s of each stream, the share of its rows that
        the slowest source gave meanwhile, and the cores before."""
        looked = self._look()
        self._begin(rate)
        time.sleep(SETTLE_S)
        began, before = time.monotonic(), self._operators()
        found = self._predicted()
        given = _given(before, self._operators(), rate * (time.monotonic() - began))
        self._end()
        self._forget()
        return {
            "learned_at": rate,
            "given": given,
            "rows_per_s": found["multiple"] * rate,
            **{key: found[key] for key in ("binding", "limits", "nodes")},
            "cores": {name: core._asdict() for name, core in looked.items()},
        }

    def _look(self) -> dict[str, Core]:
        return {name: look_at(core) for name, core in self._cores.items()}

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
        """Runs the query at a rate. Returns the share of its rows that the slowest source gave, the cores that the agents used and could
        have used, the growth of waiting rows in seconds of the rates, and the growth of latency in seconds."""
        looked = self._look()
        self._begin(rate)
        time.sleep(SETTLE_S)
        began, before, cores = time.monotonic(), self._operators(), self._used()
        time.sleep(watched_s)
        took_s, after, now = time.monotonic() - began, self._operators(), self._used()
        self._end()
        self._forget()
        sources = sum(row["kind"] == "source" for row in after.values())
        return {
            "rows_per_s": rate,
            "given": _given(before, after, rate * took_s),
            "cores": {name: available(cores[name], now[name], looked[name], first=is_first()) for name in now},
            "grown_s": (sum(map(waiting, after.values())) - sum(map(waiting, before.values()))) / (rate * sources),
            "later_s": latency_s(after) - latency_s(before),
        }

    def _ask(self, command: str, **arguments: Any) -> Any:
        return self._agents["a"].client.ask(command, **arguments)

    def _operators(self) -> dict[str, dict[str, Any]]:
        rows = [row for name, agent in self._agents.items() for row in agent.client.ask("operators") if row["node"] == name]
        for row in rows:
            if row["state"] == "failed":
                raise SbonError(f"operator {row['id']} ({row['text']}) failed: {row['reason']}")
        return {row["id"]: row for row in rows}

    def _used(self) -> dict[str, Used]:
        return {name: used(self._cores[name], agent.cpu_s) for name, agent in self._agents.items()}


def _given(before: Mapping[str, Any], after: Mapping[str, Any], due: float) -> float:
    """Returns the share of its due rows that the slowest source gave."""
    return float(min(after[one]["rows_out"] - before[one]["rows_out"] for one in before if before[one]["kind"] == "source") / due)


def evaluate_engine(
    report: Report, seconds: float = SUSTAINED_S, so_far: Callable[[dict[str, Any]], None] = lambda found: None
) -> dict[str, Any]:
    """Returns, for each configuration, the highest sustained rate of each stream, the predicted rate, and the result of `sustained`; and
    how many configurations behave as predicted.

    Parameters
    ----------
    seconds : time for which each configuration runs a little below and a little above the predicted rate
    so_far : called with the result after each configuration, so that a run that fails leaves one

    Raises
    ------
    SbonError
        There are fewer than two cores, or an agent fails.
    """
    cores = cores_of_agents(len(NODES))
    if len(cores) < len(NODES):
        raise SbonError(f"{len(cores)} core for {len(NODES)} agents, expected one for each")
    found: dict[str, Any] = {}
    for number, (name, setup) in enumerate(SETUPS.items()):
        report("engine", number, len(SETUPS))
        with agents(NODES, SETTINGS, module=setup.module, cores=cores) as running:
            pair = Pair(running, setup, dict(zip(NODES, cores, strict=True)))
            found[name] = measured(pair)
            found[name]["sustained"] = sustained(pair, found[name], seconds)
        so_far(summary(found, seconds))
    report("engine", len(SETUPS), len(SETUPS))
    return summary(found, seconds)


def summary(found: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """Returns the results of configurations with how many of them behave as predicted, and what the optimised one gains."""
    rates = {name: one["rows_per_s_per_stream"] for name, one in found.items()}
    return {
        **found,
        "ratio": rates["optimised"] / rates["initial"] if {"initial", "optimised"} <= set(rates) else None,
        "plans": len(found),
        "seconds": seconds,
        **{
            key: sum(one["sustained"][key] for one in found.values())
            for key in ("flat", "blocked", "binding_full", "holds", "had_its_cores")
        },
        "predicted_within": sum(abs(one["error"]) <= ERROR_MAX for one in found.values()),
        "predicted_then_within": sum(abs(one["error_then"]) <= ERROR_MAX for one in found.values()),
    }


def learned(pair: Pair) -> list[dict[str, Any]]:
    """Returns the predictions of a query that runs repeatedly at `LEARN_SHARE` of the predicted rate, and then at `NEARER` shares of it.

    A round has at most `GROWTH_MAX` times the rate of the newest one that was not held up. If the round before was held up, it has a rate
    between both.
    """
    found = [pair.learn(FIRST_ROWS_PER_S)]
    while len(found) < ROUNDS:
        known, latest = newest(found), found[-1]
        before, most = known["rows_per_s"], GROWTH_MAX * known["learned_at"]
        if latest["given"] < HELD_UP:
            most = min(most, (known["learned_at"] * latest["learned_at"]) ** 0.5)
        found.append(pair.learn(round(max(FIRST_ROWS_PER_S, min(LEARN_SHARE * before, most)))))
        is_near = LEARN_SHARE * before <= most
        if is_near and found[-1]["given"] >= HELD_UP and abs(found[-1]["rows_per_s"] - before) <= SAME * before:
            break
    for share in NEARER:
        found.append(pair.learn(round(share * newest(found)["rows_per_s"])))
    return found


def newest(learned: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Returns the last prediction of a query that was not held up: rows that wait, and that joins keep, make costs of an overload. The last
    one if all were held up."""
    return next((one for one in reversed(learned) if one["given"] >= HELD_UP), learned[-1])


def measured(pair: Pair) -> dict[str, Any]:
    """Searches for the highest rate that a configuration sustains, in rows/s of each stream, starting at 0.8 of the predicted rate.

    Returns that rate, the predicted rate with its bottleneck, the rate predicted from the processor time that the agents could have in the
    trial of that rate (`predicted_then`), all predictions, and every trial.
    """
    rounds = learned(pair)
    last = newest(rounds)
    predicted = last["rows_per_s"]
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
    best = next(one for one in reversed(tried) if one["rows_per_s"] == round(low))
    then = predicted_with(last, best["cores"], rounds[0])
    return {
        "rows_per_s_per_stream": round(low),
        "predicted": round(predicted),
        "binding": last["binding"],
        "learned_at": last["learned_at"],
        "error": predicted / low - 1,
        "predicted_then": round(then["rows_per_s"]),
        "binding_then": then["binding"],
        "error_then": then["rows_per_s"] / low - 1,
        "cores_then": best["cores"],
        "learned": rounds,
        "tried": tried,
    }


def predicted_with(learned: Mapping[str, Any], cores: Mapping[str, Mapping[str, float]], first: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the rate that a prediction gives for the cores of a trial, and the limit that is full then.

    Parameters
    ----------
    learned : the prediction
    cores : of the trial
    first : the first prediction of these agents: they timed their cores then
    """
    multiple, binding = present_multiple(learned, cores, {name: core["speed"] for name, core in first["cores"].items()})
    return {"rows_per_s": multiple * learned["learned_at"], "binding": binding}


def sustained(pair: Pair, found: Mapping[str, Any], seconds: float = SUSTAINED_S) -> dict[str, Any]:
    """Tells whether a query behaves as its home predicts it just before.

    Parameters
    ----------
    found : result of `measured`
    seconds : length of each of both trials

    Returns
    -------
    `flat` below the predicted rate, `blocked` above it, `binding_full` if the node of the predicted bottleneck has nothing left then;
    `holds` if all three are true. `had_its_cores` is false if the agents could have less processor time below, or more above, than the
    prediction assumes: then the trials say little about the prediction. Each trial has its rate relative to that predicted for its cores
    (`of_predicted_then`).
    """
    again = pair.learn(round(BELOW * found["predicted"]))
    last = newest([*found["learned"], again])
    below, above = (pair.watch(round(times * last["rows_per_s"]), seconds) for times in (BELOW, ABOVE))
    for trial in (below, above):
        then = predicted_with(last, trial["cores"], found["learned"][0])["rows_per_s"]
        trial["of_predicted_then"] = trial["rows_per_s"] / then if then else None
    named = above["cores"].get(last["binding"].rpartition(" on node ")[2], {"used": 0.0, "available": 1.0})
    assumed = {name: min(1.0, one["operators_cores"] + one["agent_cores"]) for name, one in last["nodes"].items()}
    told = {
        "flat": below["given"] >= HELD_UP and max(below["grown_s"], below["later_s"]) < FLAT_S,
        "blocked": is_blocked(above["given"], above["grown_s"], seconds),
        "binding_full": named["used"] >= FULL * named["available"],
    }
    return {
        **told,
        "holds": all(told.values()),
        "had_its_cores": all(below["cores"][name]["available"] >= cores - CORES_SAME for name, cores in assumed.items())
        and all(above["cores"][name]["available"] <= cores + CORES_SAME for name, cores in assumed.items()),
        "predicted": round(last["rows_per_s"]),
        "binding": last["binding"],
        "learned": again,
        "below": below,
        "above": above,
    }
