"""Computes figures 10, 11 and 12 of the SBON paper: compares queries whose operators may migrate with queries without migration.

Both runs begin with the same agents, coordinates and first placements (same seed). Without migration, operators stay where they were
placed, so half an hour of measured rates is enough; their usage is computed from these rates on every slice of the network.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any

import numpy as np
import numpy.typing as npt

from sbon.config import Layer
from sbon.types import FloatArray
from sbon_testbed.figures.oracle import Judge, Placed, judge_of
from sbon_testbed.figures.pairs import LOOK_S, Pair, PairRun, Rates, run_pairs
from sbon_testbed.figures.world import SETTLE_S, MeasuredNetwork, Say, merged

STILL_S = 1800.0
"""Virtual seconds for which queries without migration are measured."""
RELAXATION: Layer = {"placement": {"strategy": "relaxation"}}
"""Settings with the paper's own algorithm for first placements; migrations compare measured round trips whatever the strategy."""
HOUR_S = 3600.0


@dataclass(frozen=True)
class Variant:
    """One way to run the comparison."""

    name: str
    network: MeasuredNetwork
    settings: Layer
    weigh_load: bool


@dataclass(frozen=True)
class Times:
    """Durations in virtual seconds: of the measured time, before the first query, and of runs without migration."""

    span_s: float
    settle_s: float = SETTLE_S
    still_s: float = STILL_S


@dataclass(frozen=True)
class Compared:
    """The same queries under four regimes: migrating, not migrating, all-knowing, and the best fixed nodes."""

    run: PairRun
    judge: Judge
    first: npt.NDArray[np.int64]
    """Node of each operator in the run without migration."""
    migrating: Placed
    still: Placed
    all_knowing: Placed
    best_fixed: Placed


def compare(
    variant: Variant, pairs: Sequence[Pair], times: Times, seed: int, loads: Sequence[FloatArray] | None, say: Say, settings: Layer
) -> Compared:
    """Runs the queries twice: with migration for the whole time, and without migration for long enough to measure their rates."""

    def run(span_s: float, migrate: bool) -> PairRun:
        return run_pairs(
            variant.network,
            pairs,
            span_s,
            seed,
            migrate=migrate,
            weigh_load=variant.weigh_load,
            loads=loads,
            say=lambda what, done, total: say(f"{variant.name}: {what}", done, total),
            settings=merged(settings, variant.settings),
            settle_s=times.settle_s,
        )

    moving = run(times.span_s, True)
    still = run(min(times.still_s, times.span_s), False)
    judge = judge_of(variant.network, moving)
    first = still.host[-1]
    # The two runs' rates differ at most by the bytes of a batch; each run is judged by its own rates.
    resting = Judge(variant.network, pairs, still.rates, moving.at_s, moving.span_s)
    return Compared(moving, judge, first, judge.of(moving.host), resting.fixed(first), judge.all_knowing(), judge.best_fixed())


def figure12(
    variant: Variant, pairs: Sequence[Pair], times: Times, seed: int, loads: Sequence[FloatArray] | None, say: Say, settings: Layer
) -> dict[str, Any]:
    """Returns the change of mean network usage by migration, for each query and in total, and the change with an omniscient placement."""
    seen = compare(variant, pairs, times, seed, loads, say, settings)
    moving, still = seen.migrating.usage.mean(axis=0), seen.still.usage.mean(axis=0)
    best, fixed = seen.all_knowing.usage.mean(axis=0), seen.best_fixed.usage.mean(axis=0)
    moves = np.bincount([query for _, query in seen.run.moves], minlength=len(pairs))
    delay = [placed.delay_ms.mean(axis=0) for placed in (seen.migrating, seen.still, seen.all_knowing)]
    possible = float(still.sum() - best.sum())
    change = _ratio(moving, still) - 1
    return {
        "pairs": [
            {
                "producers": [pair.left, pair.right],
                "consumer": pair.consumer,
                "usage_migrating_bytes": float(moving[index]),
                "usage_still_bytes": float(still[index]),
                "usage_all_knowing_bytes": float(best[index]),
                "change": float(change[index]),
                "migrations": int(moves[index]),
                "delay_migrating_ms": float(delay[0][index]),
                "delay_still_ms": float(delay[1][index]),
            }
            for index, pair in enumerate(pairs)
        ],
        "saving": 1 - float(moving.sum() / still.sum()),
        "saving_all_knowing": possible / float(still.sum()),
        "saving_best_fixed": 1 - float(fixed.sum() / still.sum()),
        "share_of_all_knowing": float(still.sum() - moving.sum()) / possible if possible > 1e-9 * still.sum() else None,
        "above_all_knowing": float(moving.sum() / best.sum()) - 1,
        "still_above_all_knowing": float(still.sum() / best.sum()) - 1,
        "better_share": float((change < -1e-3).mean()),
        "worst_change": float(change.max()),
        "delay_change": float(delay[0].sum() / delay[1].sum()) - 1,
        "delay_change_all_knowing": float(delay[2].sum() / delay[1].sum()) - 1,
        "migrations_a_query": float(moves.mean()),
        "load_at_operators": float(seen.run.load_at_host.mean()),
        "load_at_operators_still": _load_still(seen, variant),
        "rates_bytes_per_s": list(seen.run.rates[0]),
    }


def _load_still(seen: Compared, variant: Variant) -> float:
    """Returns the mean load of the operators' nodes over the whole time without migration; load traces do not depend on the operators."""
    return float(np.mean(seen.run.load_of_all[:, seen.first]))


def figure10(
    variant: Variant, pair: Pair, times: Times, seed: int, loads: Sequence[FloatArray] | None, say: Say, settings: Layer
) -> dict[str, Any]:
    """Returns the network usage of one query over time (figure 10), and each of its placements A, B, C... (figure 11)."""
    seen = compare(variant, [pair], times, seed, loads, say, settings)
    run, network = seen.run, variant.network
    moving, still = seen.migrating.usage[:, 0], seen.still.usage[:, 0]
    rates = _settled(run.rates_at[:, 0], run.rates[0])
    latency = np.stack(
        [network.one_way_ms(at_s / run.span_s)[_numbers(network, pair)][:, run.host[:, 0]][:, i] for i, at_s in enumerate(run.at_s)]
    )
    return {
        "producers": [pair.left, pair.right],
        "consumer": pair.consumer,
        "hours": [round(float(at_s) / HOUR_S, 4) for at_s in run.at_s],
        "usage_migrating_bytes": (rates * latency).sum(axis=1).tolist(),
        "usage_still_bytes": still.tolist(),
        "usage_all_knowing_bytes": seen.all_knowing.usage[:, 0].tolist(),
        "migrations_at_hours": [round(at_s / HOUR_S, 4) for at_s, _ in run.moves],
        "saving": 1 - float(moving.mean() / still.mean()),
        "saving_all_knowing": 1 - float(seen.all_knowing.usage.mean() / still.mean()),
        "delay_change": float(seen.migrating.delay_ms.mean() / seen.still.delay_ms.mean()) - 1,
        "placements": _placements(seen, latency, still),
    }


def _placements(seen: Compared, latency_ms: FloatArray, still: FloatArray) -> list[dict[str, Any]]:
    """Returns each stay of the operator on a node: the usage of its links, and the usage without migration in the same time."""
    host = seen.run.host[:, 0]
    begins = [0, *(np.flatnonzero(np.diff(host)) + 1).tolist()]
    result = []
    for number, (begin, end) in enumerate(zip(begins, [*begins[1:], len(host)], strict=True)):
        carried = np.array(seen.run.rates[0]) * latency_ms[begin:end].mean(axis=0) / 1000
        beside = float(still[begin:end].mean())
        result.append(
            {
                "label": label(number),
                "node": seen.judge.nodes[int(host[begin])],
                "hours": round((end - begin) * LOOK_S / HOUR_S, 4),
                "usage_by_link_bytes": dict(zip(("left", "right", "out"), carried.tolist(), strict=True)),
                "normalised": float(carried.sum()) / beside,
                "latency_ms": dict(zip(("left", "right", "out"), latency_ms[begin:end].mean(axis=0).tolist(), strict=True)),
                "delay_ms": float(seen.migrating.delay_ms[begin:end, 0].mean()),
                "delay_still_ms": float(seen.still.delay_ms[begin:end, 0].mean()),
            }
        )
    return result


def label(number: int) -> str:
    """Returns A to Z, then AA, AB and so on."""
    text = ""
    number += 1
    while number:
        number, last = divmod(number - 1, len(ascii_uppercase))
        text = ascii_uppercase[last] + text
    return text


def draw_far_pair(network: MeasuredNetwork, seed: int) -> Pair:
    """Draws two near producers and a consumer far from both, like the paper's in California and Spain: of 2,000 random triples, the one
    with producers at most 30 ms apart whose round trips to the consumer are nearest to the 80th percentile of all round trips."""
    rng = np.random.default_rng([seed, 0x0F16])
    rtt = network.rtt_ms[0]
    aim_ms = float(np.quantile(rtt[np.triu_indices(len(rtt), 1)], 0.8))
    best, best_off = Pair("", "", ""), np.inf
    for _ in range(2000):
        a, b, c = (int(i) for i in rng.choice(len(rtt), 3, replace=False))
        off = abs(rtt[a, c] - aim_ms) + abs(rtt[b, c] - aim_ms) + (1e6 if rtt[a, b] > 30.0 else 0.0)
        if off < best_off:
            best, best_off = Pair(network.nodes[a], network.nodes[b], network.nodes[c]), off
    return best


def _numbers(network: MeasuredNetwork, pair: Pair) -> list[int]:
    number = {node: index for index, node in enumerate(network.nodes)}
    return [number[node] for node in pair]


def _settled(rates_at: FloatArray, median: Rates) -> FloatArray:
    """Returns the rates measured at each observation, kB/s; a sender that has just arrived has no rate yet and gets the run's median."""
    result: FloatArray = np.where(rates_at > 0, rates_at, np.array(median)) / 1000
    return result


def _ratio(a: FloatArray, b: FloatArray) -> FloatArray:
    """Returns a / b; 1 where b is 0, because the ends and the operator share a node."""
    result: FloatArray = np.where(b > 0, a / np.where(b > 0, b, 1.0), 1.0)
    return result
