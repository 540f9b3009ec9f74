"""Figures of a story that ran on a real agent, in the paper's seconds, and of its virtual replay; the check of the answers."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sbon.dealing.asking import dealer_of
from sbon.dealing.dealer import RoundRobin
from sbon.dealing.replay import MakeDealer, Outcome, Trace, replay
from sbon.errors import SbonError
from sbon.telemetry.rows import DealingRow
from sbon_testbed.cep.bounds import dealers
from sbon_testbed.cep.engine_stream import SPEED, Stream
from sbon_testbed.cep.stories import Story
from sbon_testbed.cep.waiting_agent import Done

AHEAD_S = 60.0
"""Time for which a peak is predicted, in seconds of the agent."""
LEFT_S = 5.0
"""Least time of a prediction that must be left in the stream to compare it, in seconds of the agent."""


def check_answers(lines: Iterable[bytes], right: Mapping[int, tuple[int, int]]) -> int:
    """Checks that each window has one answer, which counts its rows and sums their numbers; returns the number of answers.

    Raises
    ------
    SbonError
        An answer is wrong, missing, or comes twice.
    """
    found: dict[int, tuple[int, int]] = {}
    for line in lines:
        told = json.loads(line)
        opening = told["opening"]
        if opening in found:
            raise SbonError(f"two answers for the window of row {opening}, expected one: the agent's answers are wrong")
        found[opening] = told["n"], told["total"]
    wrong = [opening for opening in right.keys() | found.keys() if right.get(opening) != found.get(opening)]
    if wrong:
        first = min(wrong)
        both = f"{found.get(first)}, expected {right.get(first)} (rows, sum)"
        raise SbonError(f"{len(wrong)} windows with wrong answers, the first of row {first}: {both}")
    return len(found)


def latencies_s(done: Done, stream: Stream, start_s: float) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """Returns for each copy of a row the paper's seconds from the row's instant until its instance has processed it; (copies,).

    The last row of the stream has none.
    """
    real = done.rows < len(stream.at_us) - 1
    found: np.ndarray[tuple[int], np.dtype[np.float64]] = (done.at_s[real] - start_s - stream.at_s[done.rows[real]]) * SPEED
    return found


def figures_of(done: Done, stream: Stream, start_s: float, bound_s: float) -> dict[str, Any]:
    """Returns the copies of rows that instances processed, and how late these were.

    Parameters
    ----------
    start_s : beginning of the stream, on the monotonic clock
    bound_s : the paper's seconds
    """
    late_s = latencies_s(done, stream, start_s)
    if not late_s.size:
        raise SbonError("instances have processed no row, expected all")
    return {
        "events_sent": len(late_s),
        "copies": len(late_s) / (len(stream.at_us) - 1),
        "peak_s": float(late_s.max()),
        "p99_s": float(np.quantile(late_s, 0.99)),
        "median_s": float(np.median(late_s)),
        "over_bound": float((late_s > bound_s).mean()),
        "over_twice_bound": float((late_s > 2 * bound_s).mean()),
        "instances_used": len(set(done.instances.tolist())),
    }


def predictions_of(told: Sequence[tuple[float, DealingRow]], done: Done, stream: Stream, start_s: float) -> dict[str, Any]:
    """Returns the peaks that the splitter predicted, compared with those of rows that came in the minute after each prediction.

    Parameters
    ----------
    told : telemetry of the splitter, with instants on the monotonic clock
    """
    late_s = latencies_s(done, stream, start_s)
    due_s = stream.at_s[done.rows[done.rows < len(stream.at_us) - 1]]
    predicted, ratios = list[float](), list[float]()
    for instant_s, row in told:
        at_s = instant_s - start_s
        if row.peak_predicted_s is None or not 0 <= at_s <= stream.at_s[-1] - LEFT_S:
            continue
        predicted.append(SPEED * row.peak_predicted_s)
        then = late_s[(due_s >= at_s) & (due_s < at_s + AHEAD_S)]
        ratios.append(predicted[-1] / max(1e-9, float(then.max(initial=0.0))))
    return {
        "predictions": len(predicted),
        "predicted_peak_s": float(np.median(predicted)) if predicted else None,
        "predicted_peak_max_s": max(predicted, default=None),
        "predicted_to_measured": float(np.median(ratios)) if ratios else None,
        "predicted_too_low": float(np.mean(np.array(ratios) < 1)) if ratios else None,
    }


def virtual(trace: Trace, story: Story, bound_s: float) -> dict[str, dict[str, float]]:
    """Returns what the replay of the same stream in virtual time says: for round robin, for our dealer with replays of the past (`ours`),
    for the dealer that a query has (`auto`), and for one copy of each row."""
    setting = story.operator.setting(bound_s, trace.scope_s)
    known = dealers(story)
    makes: dict[str, MakeDealer] = {
        "round-robin": RoundRobin,
        "ours": known["ours"],
        "auto": lambda setting, records: dealer_of("auto", setting, records),
        "one-copy": known["one-copy"],
    }
    found = {name: replay(trace, setting, story.operator.law, make) for name, make in makes.items()}
    return {name: _of_outcome(one, found["round-robin"].rows_sent) for name, one in found.items()}


def _of_outcome(one: Outcome, in_turn: int) -> dict[str, float]:
    over = one.over / one.rows_sent
    return {"events_sent": one.rows_sent, "saved": 1 - one.rows_sent / in_turn, "peak_s": one.peak_s, "over_bound": over}
