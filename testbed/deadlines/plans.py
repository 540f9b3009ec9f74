"""The parts `model`, `rules` and `valid`: compare predicted with measured latency, and plans with rules of thumb, in virtual time."""

import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import numpy as np

from sbon.cost.phase_sums import chernoff_quantile_s, distribution
from sbon.cost.stages import Job, Settings, Step, latency
from sbon.search.resources import Found, Wanted, best_of, plan_resources
from sbon_testbed.deadlines.jobs import CLUSTER, NODES, PACE_S, WORKLOADS, Workload, zipf_shares
from sbon_testbed.deadlines.world import Seen, Setting, simulate

Report = Callable[[str, int, int], None]
SLOW_S = 0.005
"""Phases that take longer are compared individually."""
RULES_S = (0.01, 0.1, 1.0)
_HIGHEST_STEPS = 6


def settings_of(setting: Setting) -> Settings:
    """Converts a setting of the simulation to one of the model."""
    return Settings(
        nodes=float(setting.nodes),
        maps=float(setting.maps),
        updates=float(setting.updates),
        pace_s=setting.pace_s,
        exchange_s=setting.exchange_s,
        poll_s=setting.poll_s,
    )


def measured(workload: Workload, setting: Setting, rate: float, seconds: float, seed: int) -> Seen:
    """Simulates a workload for `seconds`, or for at least one window, and returns the latencies."""
    rng = np.random.default_rng([seed, setting.maps, setting.updates, round(1e6 * setting.exchange_s), round(1e6 * setting.poll_s)])
    if setting.window_s:
        windows = max(1, round(seconds / 4))
        length_s = (windows + 1) * setting.window_s + 2 * workload.bound_s
        return simulate(workload.job, CLUSTER, setting, rate, length_s, rng, settling_s=0.0)
    settling_s = 1.0 + 2 * (setting.exchange_s + setting.poll_s)
    return simulate(
        workload.job, CLUSTER, setting, rate, max(seconds, 4 * (setting.exchange_s + setting.poll_s)), rng, settling_s=settling_s
    )


def _setting(
    workload: Workload, maps: int = 2, updates: int = 2, exchange_s: float = 0.2, poll_s: float = 0.2, nodes: int = NODES
) -> Setting:
    return Setting(nodes=nodes, maps=maps, updates=updates, pace_s=PACE_S, exchange_s=exchange_s, poll_s=poll_s, window_s=workload.window_s)


# ------------------------------------------------------------------------------------------------------------------ model


def _varied(name: str) -> list[dict[str, float]]:
    """Returns the settings of figure 6 (a, b, d, e): one of M, R, B_sh, B_ch differs from 2, 2, 0.2 s, 0.2 s. Three workloads have 34."""
    found: list[dict[str, float]] = [{}]
    found += [{"maps": count} for count in (1, 3, 4, 6)]
    found += [{"updates": count} for count in ((3, 4) if name != "windows" else (4,))]
    found += [{"poll_s": seconds} for seconds in ((0.05, 0.1, 0.4) if name != "windows" else (0.05, 0.4))]
    found += [{"exchange_s": seconds} for seconds in (0.05, 0.4)]
    return found


def evaluate_model(names: Iterable[str], seconds: float, seed: int, report: Report) -> dict[str, Any]:
    """Returns the part `model`: for each run, means, phases and 99th percentiles, predicted and measured."""
    found: dict[str, Any] = {}
    runs = [(name, varied) for name in names for varied in _varied(name)]
    for number, (name, varied) in enumerate(runs):
        report("model", number, len(runs))
        workload = WORKLOADS[name]
        setting = _setting(workload, **varied)  # type: ignore[arg-type]
        seen = measured(workload, setting, workload.rate, seconds, seed)
        predicted = latency(workload.job, CLUSTER, settings_of(setting), workload.rate)
        p99_s = distribution(predicted).quantile_s(0.99)
        unseen_s = chernoff_quantile_s(predicted, 0.99)
        one: dict[str, Any] = {
            "setting": {"maps": setting.maps, "updates": setting.updates, "exchange_s": setting.exchange_s, "poll_s": setting.poll_s},
            "load": float(predicted.load),
            "predicted": {"mean_s": float(predicted.mean_s), "p99_s": p99_s, "p99_unseen_s": unseen_s},
            "measured": {"mean_s": seen.mean_s, "p99_s": seen.quantile_s(0.99), "samples": len(seen.latency_s)},
            "error": {"mean": float(predicted.mean_s) / seen.mean_s - 1, "p99": p99_s / seen.quantile_s(0.99) - 1},
            "p99_unseen_over_measured": unseen_s / seen.quantile_s(0.99),
        }
        if not setting.window_s:
            phases = seen.phases_s.mean(axis=0)
            one["phases"] = {"predicted_s": predicted.phase_means_s.tolist(), "measured_s": phases.tolist()}
            slow = phases > SLOW_S
            one["error"]["slow_phases"] = (predicted.phase_means_s[slow] / phases[slow] - 1).tolist()
        found[f"{name}-{'-'.join(f'{key}={value}' for key, value in varied.items()) or 'default'}"] = one
    report("model", len(runs), len(runs))
    return found


def summary_of_model(runs: dict[str, Any]) -> dict[str, Any]:
    """Returns how many runs have errors below 10, 15 and 20 %, and the worst errors."""
    means = np.array([abs(one["error"]["mean"]) for one in runs.values()])
    tails = np.array([abs(one["error"]["p99"]) for one in runs.values()])
    unseen = np.array([one["p99_unseen_over_measured"] for one in runs.values()])
    phases = np.abs(np.array([error for one in runs.values() for error in one["error"].get("slow_phases", [])]))
    return {
        "runs": len(means),
        "mean_within_10_percent": int((means <= 0.10).sum()),
        "mean_within_15_percent": int((means <= 0.15).sum()),
        "mean_worst": float(means.max()),
        "p99_within_20_percent": int((tails <= 0.20).sum()),
        "p99_worst": float(tails.max()),
        "p99_unseen_least": float(unseen.min()),
        "p99_unseen_greatest": float(unseen.max()),
        "slow_phases": len(phases),
        "slow_phases_within_10_percent": int((phases <= 0.10).sum()),
        "slow_phases_worst": float(phases.max(initial=0.0)),
    }


# ------------------------------------------------------------------------------------------------------------------ rules


def _planned(workload: Workload, rate: float | None, quantile: float | None = None, nodes: int = NODES) -> tuple[Found, float]:
    """Returns the best setting for `nodes` nodes, and the milliseconds that the search took."""
    wanted = Wanted(latency_s=workload.bound_s, quantile=quantile, pace_s=PACE_S, polls=True, instances_max=CLUSTER.cores + 2)
    began = time.perf_counter()
    best = best_of(workload.job, CLUSTER, nodes, wanted)
    took_ms = 1000 * (time.perf_counter() - began)
    assert best is not None, "the bound is far above the intervals"
    return best, took_ms


def _setting_of(workload: Workload, found: Found) -> Setting:
    return _setting(workload, found.maps, found.updates, found.exchange_s, found.poll_s, found.nodes)


def highest_rate(workload: Workload, setting: Setting, seconds: float, seed: int) -> float:
    """Returns the highest rate at which the mean latency in virtual time keeps the bound, within some 2 percent, by bisection."""
    low, high = 0.0, 2.5 * workload.rules_rate
    for step in range(_HIGHEST_STEPS):
        middle = workload.rules_rate if step == 0 else (low + high) / 2
        if measured(workload, setting, middle, seconds, seed).mean_s <= workload.bound_s:
            low = middle
        else:
            high = middle
    return low


def evaluate_rules(names: Iterable[str], seconds: float, seed: int, report: Report) -> dict[str, Any]:
    """Returns the part `rules`: mean latency of rules of thumb and of the plan (table 4), and their highest rates (figure 6 i)."""
    found: dict[str, Any] = {}
    chosen = list(names)
    for number, name in enumerate(chosen):
        report("rules", number, len(chosen))
        workload = WORKLOADS[name]
        table: dict[str, float | None] = {}
        for exchange_s in RULES_S:
            for poll_s in RULES_S:
                setting = _setting(workload, 4, 4, exchange_s, poll_s)
                seen = measured(workload, setting, workload.rules_rate, seconds, seed)
                table[f"{1000 * exchange_s:g}-{1000 * poll_s:g}"] = seen.mean_s if seen.is_bounded else None
        best, took_ms = _planned(workload, None)
        planned = _setting_of(workload, best)
        seen = measured(workload, planned, workload.rules_rate, seconds, seed)
        kept = {key: value for key, value in table.items() if value is not None and value <= workload.bound_s}
        rates = {}
        for key in sorted(kept, key=lambda key: kept[key])[:3]:
            exchange_s, poll_s = (float(one) / 1000 for one in key.split("-"))
            rates[key] = highest_rate(workload, _setting(workload, 4, 4, exchange_s, poll_s), seconds, seed)
        most = highest_rate(workload, planned, seconds, seed)
        found[name] = {
            "bound_s": workload.bound_s,
            "rate": workload.rules_rate,
            "settings": table,
            "rates_max": rates,
            "planned": {**msgspec.to_builtins(best), "mean_s": seen.mean_s, "rate_measured_max": most, "planner_ms": took_ms},
            "gain": most / max(rates.values()) - 1 if rates else None,
        }
    report("rules", len(chosen), len(chosen))
    return found


# ------------------------------------------------------------------------------------------------------------------ valid


def _holds(workload: Workload, setting: Setting, rate: float, quantile: float | None, seconds: float, seeds: Iterable[int]) -> bool:
    """Tells whether the bound is kept in every run."""
    for seed in seeds:
        seen = measured(workload, setting, rate, seconds, seed)
        if not (seen.mean_s if quantile is None else seen.quantile_s(quantile)) <= workload.bound_s:
            return False
    return True


def evaluate_valid(seconds: float, seed: int, report: Report, runs: int = 3, jobs: int = 50) -> dict[str, Any]:
    """Returns the part `valid`: which settings hold at the planned rate (figure 6 f to h), and how many plans of random jobs hold."""
    workload = WORKLOADS["words"]
    found: dict[str, Any] = {}
    for metric, quantile in (("mean", None), ("p99", 0.99)):
        best, _ = _planned(workload, None, quantile)
        rate = best.rate_max
        planned = _setting_of(workload, best)
        grid = {f"M={m},R={r}": msgspec.structs.replace(planned, maps=m, updates=r) for m in (1, 2, 3, 4, 6) for r in (1, 2, 3, 4, 6)}
        grid |= {
            f"B_sh={sh:g},B_ch={ch:g}": msgspec.structs.replace(planned, exchange_s=sh, poll_s=ch)
            for sh in (0.02, 0.1, 0.4, 1.5)
            for ch in (0.02, 0.1, 0.4, 1.5)
        }
        valid, believed = [], []
        for number, (name, setting) in enumerate(grid.items()):
            report(f"valid {metric}", number, len(grid))
            predicted = latency(workload.job, CLUSTER, settings_of(setting), rate)
            value = float(predicted.mean_s if quantile is None else predicted.quantile_s(quantile))
            if value <= workload.bound_s:
                believed.append(name)
            # A setting that the model predicts to be far too late needs no run of minutes.
            if value <= 2 * workload.bound_s and _holds(workload, setting, rate, quantile, seconds, [seed]):
                valid.append(name)
        found[metric] = {
            "rate": rate,
            "planned": msgspec.to_builtins(best),
            "planned_holds": _holds(workload, planned, rate, quantile, seconds, range(seed, seed + runs)),
            "settings": len(grid),
            "valid": valid,
            "false_valid": [name for name in believed if name not in valid],
            "false_invalid": [name for name in valid if name not in believed],
        }
    rng, holds, refused, times_ms = np.random.default_rng(seed), 0, 0, []
    for number in range(jobs):
        report("valid jobs", number, jobs)
        drawn, nodes = _random_workload(rng)
        quantile = None if rng.random() < 0.5 else 0.99
        wanted = Wanted(latency_s=drawn.bound_s, quantile=quantile, pace_s=PACE_S, polls=bool(rng.random() < 0.5))
        best_of_nodes = best_of(drawn.job, CLUSTER, nodes, wanted)
        if best_of_nodes is None:
            refused += 1
            continue
        holds += _holds(drawn, _setting_of(drawn, best_of_nodes), best_of_nodes.rate_max, quantile, min(seconds, 2.0), [seed])
        began = time.perf_counter()
        plan_resources(drawn.job, CLUSTER, msgspec.structs.replace(wanted, rate=0.9 * best_of_nodes.rate_max, polls=False))
        times_ms.append(1000 * (time.perf_counter() - began))
    report("valid jobs", jobs, jobs)
    found["jobs"] = {"jobs": jobs - refused, "hold": holds, "refused": refused}
    found["planner_ms"] = {"median": float(np.median(times_ms)), "most": float(np.max(times_ms))} if times_ms else None
    return found


def _random_workload(rng: np.random.Generator) -> tuple[Workload, int]:
    """Draws a job and a number of nodes."""
    job = Job(
        map=Step(per_batch_ns=float(rng.uniform(2e4, 2e5)), per_row_ns=float(np.exp(rng.uniform(np.log(300), np.log(2e4)))), scatter=0.2),
        update=Step(
            per_batch_ns=float(rng.uniform(2e4, 2e5)), per_row_ns=float(np.exp(rng.uniform(np.log(300), np.log(5e3)))), scatter=0.2
        ),
        rows_out=float(rng.choice([0.3, 1.0, 4.0])),
        row_bytes=float(rng.uniform(30, 200)),
        sent_bytes=float(rng.uniform(10, 60)),
        hot_shares=zipf_shares(float(rng.uniform(0.0, 0.8)), 1_000_000),
    )
    return Workload(job=job, bound_s=float(np.exp(rng.uniform(np.log(0.05), np.log(2)))), rate=0.0, rules_rate=0.0), int(rng.integers(1, 5))
