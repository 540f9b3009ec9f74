"""Evaluates dealers under latency bounds: how many rows each sends, and how late rows are."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sbon.dealing.choice import best_by_replay
from sbon.dealing.dealer import OneCopy, Reactive, RoundRobin
from sbon.dealing.model import Model
from sbon.dealing.replay import MakeDealer, Outcome, replay
from sbon_testbed.cep.future import known_future
from sbon_testbed.cep.stories import INSTANCES, STORIES, Story

Report = Callable[[str, int, int], None]


def dealers(story: Story) -> dict[str, MakeDealer]:
    """Returns the dealers by name: those of the paper, sbon's, and one-copy, whose saving no dealer can exceed."""
    return {
        "round-robin": RoundRobin,
        "reactive": lambda setting, records: Reactive(setting, records, story.threshold_s),
        "model": lambda setting, records: Model(setting, records, story.model),
        "ours": best_by_replay,
        "one-copy": OneCopy,
    }


def evaluate_bounds(
    name: str, seeds: Sequence[int], seeds_of_future: int, report: Report, duration_s: float | None = None, bounds_s: Sequence[float] = ()
) -> dict[str, Any]:
    """Returns the figures of a story for each bound and dealer, over all seeds and by seed.

    Parameters
    ----------
    bounds_s : bounds; empty: those of the story
    """
    story = STORIES[name]
    bounds_s = bounds_s or story.bounds_s
    found: dict[str, dict[str, list[Outcome]]] = {f"{bound:g}": {} for bound in bounds_s}
    base: list[int] = []
    for number, seed in enumerate(seeds):
        report(name, number, len(seeds))
        trace = story.make(np.random.default_rng(seed), duration_s or story.duration_s)
        for bound_s in bounds_s:
            setting = story.operator.setting(bound_s, trace.scope_s)
            of_bound = found[f"{bound_s:g}"]
            for title, make in dealers(story).items():
                of_bound.setdefault(title, []).append(replay(trace, setting, story.operator.law, make, clock=time.process_time))
            if number < seeds_of_future:
                of_bound.setdefault("known-future", []).append(known_future(trace, story.operator, bound_s, INSTANCES))
        base.append(found[f"{bounds_s[0]:g}"]["round-robin"][-1].rows_sent)
    report(name, len(seeds), len(seeds))
    return {
        "bounds": {
            bound: {title: _figures(outcomes, base, story.operator.row_bytes) for title, outcomes in of_bound.items()}
            for bound, of_bound in found.items()
        }
    }


def _figures(outcomes: Sequence[Outcome], base: Sequence[int], row_bytes: Sequence[int]) -> dict[str, Any]:
    """Returns the figures of one dealer under one bound: means over seeds, the worst peak, and the late rows of all seeds."""
    saved = [1 - one.rows_sent / of_base for one, of_base in zip(outcomes, base, strict=False)]
    sent = sum(one.rows_sent for one in outcomes)
    sizes = [sum(count * size for count, size in zip(one.sent_by_kind, row_bytes, strict=True)) for one in outcomes]
    decisions = sum(one.decisions for one in outcomes)
    return {
        "events_sent": sent / len(outcomes),
        "bytes_sent": sum(sizes) / len(outcomes),
        "saved": float(np.mean(saved)),
        "peak_s": max(one.peak_s for one in outcomes),
        "over_bound": sum(one.over for one in outcomes) / sent,
        "rows_over_bound": sum(one.over for one in outcomes),
        "decision_us": 1e6 * sum(one.decisions_s for one in outcomes) / max(1, decisions),
        "saved_by_seed": saved,
        "peak_s_by_seed": [one.peak_s for one in outcomes],
    }
