"""Runs stories on a real agent: the stream comes over a socket, the agent's splitter asks its dealer, and eight instances take the rows.

All is 20 times as fast as in the paper; figures are in the paper's seconds. The instances' recogniser waits instead of computing
(`sbon_testbed.cep.waiting_agent`).
"""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from sbon.errors import SbonError
from sbon.telemetry.rows import DealingRow
from sbon_agent.telemetry.spool import spooled
from sbon_testbed.bench.agents import BenchAgent, agents
from sbon_testbed.cep.engine_figures import check_answers, figures_of, predictions_of, virtual
from sbon_testbed.cep.engine_stream import SPEED, Stream, expected, piece_of, sink, source, stream_of
from sbon_testbed.cep.stories import INSTANCES, STORIES
from sbon_testbed.cep.waiting_agent import Done, Recognising, read_done, recognising
from sbon_testbed.leftovers import run_directory
from sbon_testbed.mace.feeding import Sent, collecting, feed_lines
from sbon_testbed.processes.local import free_ports

ENGINE_STORIES = ("traffic", "faces")
SECONDS = 6_000.0
"""Length of the stream, in the paper's seconds."""
NAME = "cep"
MODULE = "sbon_testbed.cep.waiting_agent"
SETTINGS = f"""
optimiser = {{ enabled = false }}
log = {{ level = "error" }}
engine = {{ workers = {INSTANCES + 4} }}
telemetry = {{ flush_interval_s = 1.0 }}
"""
"""A thread for each instance, as they wait at the same time, and some for the other operators."""
PATIENCE_S = 120.0
LATE_FACTOR = 4.0
"""The run is given up if its answers take so many times the stream, and `PATIENCE_S`."""


def evaluate_engine(
    name: str, seed: int, report: Callable[[str, int, int], None], seconds: float | None = None, bounds_s: Sequence[float] = ()
) -> dict[str, Any]:
    """Returns the figures of a story on a real agent for each bound, beside those of the same stream in virtual time.

    Raises
    ------
    SbonError
        Answers are wrong, or do not come.
    """
    story, title = STORIES[name], f"{name} on an agent"
    bounds_s = bounds_s or story.bounds_s
    trace = piece_of(story.make(np.random.default_rng(seed), story.duration_s), seconds or SECONDS)
    stream = stream_of(trace)
    found: dict[str, Any] = {}
    for number, bound_s in enumerate(bounds_s):
        report(title, number, len(bounds_s))
        told = virtual(trace, story, bound_s)
        ran = _run(name, stream, bound_s)
        saved = 1 - ran["events_sent"] / told["round-robin"]["events_sent"]
        found[f"{bound_s:g}"] = {**ran, "saved": saved, "virtual": told}
    report(title, len(bounds_s), len(bounds_s))
    about = {"speed": SPEED, "seconds": seconds or SECONDS, "seed": seed, "rows": len(trace.at_s), "windows": len(stream.openings)}
    return {**about, "recogniser": "waits", "instances": INSTANCES, "bounds": found}


def _run(name: str, stream: Stream, bound_s: float) -> dict[str, Any]:
    """Runs the stream under one bound, in the paper's seconds, and returns its figures."""
    with ExitStack() as stack:
        directory = stack.enter_context(run_directory())
        collector = stack.enter_context(collecting())
        stack.enter_context(recognising(Recognising(name, SPEED, str(directory))))
        agent = stack.enter_context(agents([NAME], SETTINGS, sealed=False, module=MODULE))[NAME]
        (port,) = free_ports(1)
        rate = len(stream.at_us) / max(1.0, float(stream.at_s[-1]))
        agent.client.ask("submit", sql=source(NAME, port, rate))
        agent.client.ask("submit", sql=sink(NAME, collector.port, stream, bound_s / SPEED))
        collector.begin()
        to_monotonic_s = time.monotonic() - time.time()
        load = os.getloadavg()[0]
        sent = feed_lines(port, stream.at_s, stream.lines)
        collector.wait(len(stream.openings), PATIENCE_S + LATE_FACTOR * float(stream.at_s[-1]))
        _check_operators(agent)
        lines = collector.lines()
        answers = check_answers((line for _, line in lines), expected(stream))
        done = read_done(directory)
        _check_rows(done, stream)
        dealings = [
            (line.time_us / 1e6 + to_monotonic_s, line.row)
            for line in spooled(agent.directory / "telemetry")
            if isinstance(line.row, DealingRow)
        ]
        cpu_s = agent.cpu_s()
    return {
        **figures_of(done, stream, sent.start_s, bound_s),
        **predictions_of(dealings, done, stream, sent.start_s),
        "answers": answers,
        **_about(sent, stream, load, cpu_s),
    }


def _about(sent: Sent, stream: Stream, load: float, cpu_s: float) -> dict[str, float]:
    return {
        "sender_late_s": SPEED * float(sent.late_s.max()),
        "real_s": float(stream.at_s[-1]),
        "agent_cpu_s": cpu_s,
        "load_before": load,
        "load_after": os.getloadavg()[0],
    }


def _check_operators(agent: BenchAgent) -> None:
    for one in agent.client.ask("operators"):
        if one["state"] == "failed" or one["late_rows"]:
            raise SbonError(f"operator {one['id']} is {one['state']} with {one['late_rows']} late rows: {one['reason']}")


def _check_rows(done: Done, stream: Stream) -> None:
    """Checks that each row of a window was processed, and no row twice by one instance.

    Raises
    ------
    SbonError
        A row was not, or one was twice.
    """
    copies = len(set(zip(done.rows.tolist(), done.instances.tolist(), strict=True)))
    first, at_us = stream.openings, stream.at_us
    before = np.searchsorted(at_us[first], at_us, side="right") - 1
    in_window = (before >= 0) & (at_us < at_us[first[np.maximum(before, 0)]] + stream.within_us)
    missing = np.setdiff1d(np.flatnonzero(in_window), done.rows)
    if copies != len(done.rows) or missing.size:
        raise SbonError(f"{len(done.rows) - copies} rows were processed twice by an instance, and {missing.size} by none")
