"""Compares predicted and measured latency in virtual time: with few training events, over time, with many operators, over a wide area.

Covers sections VIII.1, 2 and 4 of the Mace paper, and a wide area, which the paper does not have. Events come in high and low periods with
exponential gaps. Costs of single events scatter, and rows out are random; in the wide area both are exactly as declared. The prediction
knows averages, measured on the first events, and the number of source events in each interval; when they come within an interval is
estimated.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from sbon.cost.completions import upstreams
from sbon.cost.load import Input, OperatorCost, Polynomial, Source, Upstream, deterministic_load, with_links
from sbon.cost.mace import Prediction, predict
from sbon.cost.node_excess import Nodes
from sbon.cost.ways import by_way
from sbon.cost.within_intervals import refined
from sbon.types import FloatArray, IntArray
from sbon_testbed.mace.information import least_deviation
from sbon_testbed.mace.streams import HIGH_OVER_LOW, HIGH_SHARE
from sbon_testbed.mace.world import Measured, Noise, simulate
from sbon_testbed.topology import CitiesConfig, build

INTERVAL_S = 1.0
PARTS = 8
"""Parts of an interval for which the expected latency is computed."""
PARTS_WIDE = 1
"""The same in the wide area: an interval has few events, and nothing is known about when they come."""
INTERVAL_WIDE_S = 0.05
"""Interval in the wide area, where latencies are of a second, and an answer crosses several nodes and links."""
NOISE = Noise(cost=0.5, drawn=True)
LOAD = 0.6
"""Average share of the capacity that one query takes; the load of high periods is far above the capacity."""
LOAD_OF_MANY = 0.9
"""Average share of the capacity that several queries take, whose high periods rarely coincide."""
LOAD_WIDE = 0.3
"""Average share of the capacity in the wide area, where random placement gives some nodes much more load than others."""
RATE_PER_S = 50.0
"""Average events per second of a source."""
HIGH_S = 4.0
ROW_BYTES = 200.0
CORES = 2
"""Cores of each node in the wide area."""
BANDWIDTH_BYTES_PER_S = 50_000.0
"""Bandwidth of each link in the wide area; low, so that links queue in high periods."""
CHUNKS = 3
COUNTED = 0.1
"""Errors over time count only intervals whose latency is at least this share of the worst; in an idle system it is one event's cost."""

QUERY: tuple[tuple[tuple[int, ...], float, float], ...] = (
    *(((-1,), 1.0, 1.0), ((0,), 1.0, 0.5), ((1,), 0.8, 1.0), ((2,), 1.0, 2.0)),  # input, project, select, URL's part
    *(((3,), 0.5, 0.5), ((3,), 0.5, 0.5), ((4,), 1.0, 1.5), ((5,), 1.0, 1.5)),  # two groups of visitors, their windows
    *(((3,), 1.0, 1.0), ((6, 8), 0.5, 2.0), ((7, 8), 0.5, 2.0)),  # all visitors, joined with each group
    *(((9, 10), 1.0, 1.0), ((11,), 1.0, 3.0), ((12,), 1.0, 0.5)),  # union, user-defined computation, output
)
"""Inputs (-1: the source), selectivity, and cost in relative units, of 14 operators."""


class Case(msgspec.Struct, frozen=True):
    """Queries with their events, on nodes."""

    operators: tuple[OperatorCost, ...]
    node_of: IntArray
    nodes: Nodes
    arrivals_s: tuple[FloatArray, ...]
    interval_s: float = INTERVAL_S
    parts: int = PARTS

    @property
    def counts(self) -> FloatArray:
        """Returns the events of each source in each interval."""
        last_s = max(float(one[-1]) for one in self.arrivals_s)
        edges = self.interval_s * np.arange(int(last_s / self.interval_s) + 2)
        return np.array([np.histogram(one, edges)[0] for one in self.arrivals_s], dtype=float)


def queries(count: int) -> tuple[OperatorCost, ...]:
    """Returns the operators of `count` queries, each over its own source; costs are those of `QUERY`."""
    made: list[OperatorCost] = []
    for query in range(count):
        first = len(made)
        for inputs, selectivity, cost in QUERY:
            taken: tuple[Input, ...] = tuple(Source(query) if one < 0 else Upstream(first + one) for one in inputs)
            made.append(OperatorCost(taken, Polynomial((selectivity,) * len(inputs)), Polynomial((cost,) * len(inputs))))
    return tuple(made)


def on_off_events(rng: np.random.Generator, events: int) -> FloatArray:
    """Returns the instants of `events` events: high and low periods of exponential lengths, with exponential gaps within them."""
    low = RATE_PER_S * (1 + HIGH_SHARE) / (1 + HIGH_SHARE * HIGH_OVER_LOW)
    found: list[FloatArray] = []
    at_s, count, is_high = 0.0, 0, False
    while count < events:
        length_s = float(rng.exponential(HIGH_S if is_high else HIGH_S / HIGH_SHARE))
        instants = np.sort(rng.random(rng.poisson(length_s * low * (HIGH_OVER_LOW if is_high else 1.0)))) * length_s
        found.append(at_s + instants)
        at_s, count, is_high = at_s + length_s, count + len(instants), not is_high
    return np.concatenate(found)[:events]


def learnt(case: Case, events: int, rng: np.random.Generator) -> tuple[OperatorCost, ...]:
    """Returns the operators with average cost and selectivity as measured on the first `events` events of each source."""
    arrivals = tuple(one[:events] for one in case.arrivals_s)
    seen = simulate(case.operators, case.node_of, case.nodes, arrivals, rng, NOISE)
    made = []
    for number, operator in enumerate(case.operators):
        rows = max(1, int(seen.events_in[number]))
        speed = float(case.nodes.capacity_per_s[case.node_of[number]])
        cost, selectivity = float(seen.busy_s[number]) * speed / rows, float(seen.events_out[number]) / rows
        if not any(isinstance(one, Upstream) and one.operator == number for other in case.operators for one in other.inputs):
            selectivity = 1.0
        ports = len(operator.inputs)
        made.append(OperatorCost(operator.inputs, Polynomial((selectivity,) * ports), Polynomial((cost,) * ports)))
    return tuple(made)


def _events_behind(operators: Sequence[OperatorCost], counts: FloatArray) -> FloatArray:
    """Returns the source events that may lead to rows of each operator: (operators, intervals). Few events of a sample may all be dropped
    by a select, so learnt selectivities do not say that an operator has no rows.

    Parameters
    ----------
    counts : (sources, intervals)
    """
    found = np.zeros((len(operators), counts.shape[1]))
    for number, operator in enumerate(operators):
        for one in operator.inputs:
            found[number] += counts[one.index] if isinstance(one, Source) else found[one.operator]
    return found


def foretold(case: Case, operators: Sequence[OperatorCost]) -> Prediction:
    """Returns the prediction for the events of a case, with known or learnt operators."""
    counts = case.counts
    work = deterministic_load(operators, counts).work
    ways = by_way(operators, case.node_of)
    counts_of_parts = refined(counts, case.parts)
    sources = np.eye(len(counts))
    grain = sum((deterministic_load(operators, sources[:, [one]]).work[:, 0] for one in range(len(counts))), np.zeros(len(operators)))
    service_s = service(ways.operators, case.node_of[ways.of], case.nodes)
    return predict(
        operators,
        work,
        case.node_of,
        case.nodes,
        case.interval_s,
        grain,
        even=False,
        service_s=service_s,
        work_of_parts=deterministic_load(ways.operators, counts_of_parts).work,
        rows_of_parts=_events_behind(ways.operators, counts_of_parts),
        ways=ways,
    )


def service(operators: Sequence[OperatorCost], node_of: IntArray, nodes: Nodes) -> FloatArray:
    """Returns the time in s from an event's arrival at each operator's node until the operator has done it, if nothing waits:
    (operators,)."""
    found = np.array([max(one.work.linear) for one in operators]) / nodes.capacity_per_s[node_of]
    for number, operator in enumerate(operators):
        local = [found[one.operator] for one in upstreams(operator) if one.delay_s == 0.0 and node_of[one.operator] == node_of[number]]
        found[number] += max(local, default=0.0)
    return found


def on_one_node(count: int, events: int, rng: np.random.Generator, load: float = LOAD) -> Case:
    """Returns `count` queries on one node of one core, with `events` events each."""
    operators = queries(count)
    arrivals = tuple(on_off_events(rng, events) for _ in range(count))
    return Case(
        operators,
        np.zeros(len(operators), dtype=np.int64),
        Nodes(np.full(1, _speed(operators, count, 1, load)), np.ones(1, dtype=np.int64)),
        arrivals,
    )


def over_cities(count: int, cities: int, events: int, rng: np.random.Generator, seed: int) -> Case:
    """Returns queries whose operators are in random cities; each has two cores, and links have bandwidth and propagation delay."""
    operators = queries(count)
    node_of = rng.integers(0, cities, len(operators))
    one_way_s = build(CitiesConfig(), cities, seed).rtt_ms / 2000
    made = with_links(operators, node_of, cities, [ROW_BYTES] * len(operators), one_way_s)
    capacity = np.concatenate(
        [np.full(cities, _speed(operators, count, cities * CORES, LOAD_WIDE)), np.full(len(made.links), BANDWIDTH_BYTES_PER_S)]
    )
    cores = np.concatenate([np.full(cities, CORES), np.ones(len(made.links))]).astype(np.int64)
    return Case(
        made.operators,
        made.node_of,
        Nodes(capacity, cores),
        tuple(on_off_events(rng, events) for _ in range(count)),
        INTERVAL_WIDE_S,
        PARTS_WIDE,
    )


def _speed(operators: Sequence[OperatorCost], sources: int, cores: int, load: float) -> float:
    """Returns the speed of each core that gives the average load `load`."""
    return float(deterministic_load(operators, np.full((sources, 1), RATE_PER_S)).work.sum()) / load / cores


# ------------------------------------------------------------------------------------------------------------------ parts


def evaluate_training(events: int, seed: int, report: Callable[[str, int, int], None]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the parts `training` and `series`: one query on one node, with statistics from growing numbers of its events."""
    case = on_one_node(1, events, np.random.default_rng(seed))
    measured = simulate(case.operators, case.node_of, case.nodes, case.arrivals_s, np.random.default_rng([seed, 1]), NOISE)
    worst_s = float(measured.latency_s.max())
    samples = [*(size for size in (100, 500, 1500, 6000, 20_000) if size < events), events]
    training = {}
    for number, size in enumerate(samples):
        report("training", number, len(samples))
        found = foretold(case, learnt(case, size, np.random.default_rng([seed, 2])))
        training[str(size)] = _worst(found, worst_s) | {"least_deviation": least_deviation(case.operators, size, NOISE.cost)}
    report("training", len(samples), len(samples))
    return training, over_time(found, measured, INTERVAL_S)


def evaluate_chunks(events: int, seed: int, report: Callable[[str, int, int], None]) -> dict[str, Any]:
    """Returns the part `chunks`: one query on one node, and three chunks of `events` events, each with its own pattern of arrivals.

    Statistics come from the first chunk alone; the number of events in each interval of every chunk is known.
    """
    first = on_one_node(1, events, np.random.default_rng([seed, 1]))
    known = learnt(first, events, np.random.default_rng([seed, 2]))
    result = {}
    for number in range(1, CHUNKS + 1):
        report("chunks", number - 1, CHUNKS)
        arrivals = first.arrivals_s if number == 1 else (on_off_events(np.random.default_rng([seed, number]), events),)
        case = msgspec.structs.replace(first, arrivals_s=arrivals)
        measured = simulate(case.operators, case.node_of, case.nodes, case.arrivals_s, np.random.default_rng([seed, number, 3]), NOISE)
        found = foretold(case, known)
        over = over_time(found, measured, INTERVAL_S)
        result[str(number)] = _worst(found, float(measured.latency_s.max())) | {"error_p50": over["error_p50"]}
    report("chunks", CHUNKS, CHUNKS)
    return result


def evaluate_operators(events: int, seed: int, report: Callable[[str, int, int], None]) -> dict[str, Any]:
    """Returns the part `operators`: one to five queries of 14 operators on one node, statistics from the first half of their events."""
    result = {}
    for count in range(1, 6):
        report("operators", count - 1, 5)
        case = on_one_node(count, max(2, events // 2), np.random.default_rng([seed, count]), LOAD if count == 1 else LOAD_OF_MANY)
        measured = simulate(case.operators, case.node_of, case.nodes, case.arrivals_s, np.random.default_rng([seed, count, 1]), NOISE)
        found = foretold(case, learnt(case, max(1, events // 4), np.random.default_rng([seed, count, 2])))
        result[str(len(case.operators))] = _worst(found, float(measured.latency_s.max()))
    report("operators", 5, 5)
    return result


def evaluate_wide(events: int, seed: int, runs: int, report: Callable[[str, int, int], None]) -> dict[str, Any]:
    """Returns the part `wide`: three queries over six cities, placed at random; statistics are exact, so bounds must hold."""
    each, seen = [], []
    for run in range(runs):
        report("wide", run, runs)
        case = over_cities(3, 6, max(1, events // 6), np.random.default_rng([seed, run]), seed)
        measured = simulate(case.operators, case.node_of, case.nodes, case.arrivals_s, np.random.default_rng([seed, run, 1]))
        found = foretold(case, case.operators)
        each.append(_worst(found, float(measured.latency_s.max())))
        seen.append(over_time(found, measured, INTERVAL_WIDE_S))
    report("wide", runs, runs)
    return {
        "error": float(np.median([one["error"] for one in each])),
        "mace_error": float(np.median([one["mace_error"] for one in each])),
        "outside_bounds": sum(one["outside_bounds"] for one in seen),
        "intervals": sum(one["intervals"] for one in seen),
        "interval_s": INTERVAL_WIDE_S,
        "runs": each,
    }


def over_time(found: Prediction, measured: Measured, interval_s: float) -> dict[str, Any]:
    """Returns prediction errors over intervals: of the latest answer of each, and of the mean and 99th percentile of these."""
    intervals = len(found.likely_s)
    latest_s = measured.worst_by_interval(interval_s, intervals)
    has = np.isin(np.arange(intervals), (measured.stimulus_s / interval_s).astype(np.int64))
    counted = has & (latest_s >= COUNTED * latest_s.max())
    error = np.abs(found.likely_s - latest_s)[counted] / latest_s[counted]
    mean_s, p99_s = float(latest_s[has].mean()), float(np.quantile(latest_s[has], 0.99))
    return {
        "error_p50": float(np.median(error)),
        "error_p90": float(np.quantile(error, 0.9)),
        "mean_error": abs(float(found.likely_s[has].mean()) - mean_s) / mean_s,
        "p99_error": abs(float(np.quantile(found.likely_s[has], 0.99)) - p99_s) / p99_s,
        "outside_bounds": int(np.count_nonzero((latest_s > found.upper_s + 1e-9) & has)) + int(found.mace_s.max() > latest_s.max() + 1e-9),
        "intervals": int(has.sum()),
    }


def _worst(found: Prediction, measured_s: float) -> dict[str, float]:
    """Returns predicted and measured worst case. Events end, so that even a load above capacity has a finite worst case."""
    likely_s, mace_s = float(found.likely_s.max()), float(found.mace_s.max())
    return {
        "predicted_s": likely_s,
        "mace_s": mace_s,
        "upper_s": float(found.upper_s.max()),
        "measured_s": measured_s,
        "error": abs(likely_s - measured_s) / measured_s,
        "mace_error": abs(mace_s - measured_s) / measured_s,
    }
