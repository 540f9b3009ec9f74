"""`sbon bench nexmark`: measures the events/s of each query, and checks its answers.

Each query runs in a real agent process with the default settings. First its answers over fewer events are written to a file and compared
with those of `sbon_testbed.nexmark.reference` over the same rows. Then the same statements are timed with more events and a sink that
discards rows, with the same number of events per second of event time, from the same pool. Only events of the kinds that the query reads
are generated and counted. Core seconds are those of the agent's whole process.
"""

import os
import re
import time
from collections.abc import Callable, Sequence
from importlib import resources
from statistics import median
from typing import Any

from sbon.cli.output import count, number, print_note, print_table
from sbon.cli.tables import Column
from sbon.errors import UsageError
from sbon.query.limits import INSTANCES_MAX
from sbon_testbed.answers import equal, written
from sbon_testbed.bench.agent_process import AgentProcess, one_agent
from sbon_testbed.nexmark.catalogue import OFFERED, QUERIES
from sbon_testbed.nexmark.events import CYCLE, KINDS, Events
from sbon_testbed.nexmark.reference import Tables, answer
from sbon_testbed.nexmark.stream import POOL_EVENTS, Stream

SEED = 1
EVENTS = 20_000_000
EVENTS_MIN = 1_000
EVENTS_PER_S = 100_000
"""Events per second of event time: a window of 10 s has a million events."""
CHECKED_EVENTS = 2_500_000
"""Events of the checked run: more than two laps of the pool, and several windows."""
TIMEOUT_S = 1_200.0
_READS = r"(FROM|JOIN|TUMBLE\(|HOP\(|SESSION\()\s*{kind}\b"
"""Matches the places where a query names one of the streams."""

Progress = Callable[[str], None]


def measure(
    queries: Sequence[str] = (),
    events: int = EVENTS,
    runs: int = 1,
    progress: Progress = lambda what: None,
    checked_events: int = CHECKED_EVENTS,
    instances: int = 1,
) -> dict[str, Any]:
    """Returns events/s and whether answers are right, as medians over runs.

    Parameters
    ----------
    queries : names such as `q5`; if empty, all, with the reasons for those that are missing
    events : events in each timed run, all kinds together
    runs : timed runs of each query, in one agent
    checked_events : events in the run whose answers are compared, all kinds together
    instances : instances of each operator with keys

    Raises
    ------
    UsageError
        An argument is out of range.
    SbonError
        An agent does not start, or an operator fails.
    """
    chosen = list(dict.fromkeys(queries)) or list(OFFERED)
    for name in chosen:
        if name not in OFFERED:
            reason = f" has no equal here: {QUERIES[name].missing}" if name in QUERIES else ""
            raise UsageError(f"--query {name}{reason}, expected one of {', '.join(OFFERED)}")
    if events < EVENTS_MIN:
        raise UsageError(f"--events {events}, expected at least {EVENTS_MIN}")
    if runs < 1:
        raise UsageError(f"--runs {runs}, expected at least 1")
    if not 1 <= instances <= INSTANCES_MAX:
        raise UsageError(f"--instances {instances}, expected 1 to {INSTANCES_MAX}")
    more = f", instances = {instances}" if instances > 1 else ""
    found = {}
    tables = {kind: Stream(kind, Events(SEED, EVENTS_PER_S), POOL_EVENTS).all_rows(checked_events).lazy() for kind in KINDS}
    for name in chosen:
        with one_agent() as agent:
            progress(f"{name}: answers over {checked_events:,} events")
            right = _right(agent, name, checked_events, tables, more)
            _timed(agent, name, min(events, POOL_EVENTS), more)  # creates the pool, and loads modules
            timed = []
            for run in range(1, runs + 1):
                progress(f"{name}: {events:,} events, run {run} of {runs}")
                timed.append(_timed(agent, name, events, more))
        found[name] = {key: median(one[key] for one in timed) for key in timed[0]} | {"answers_equal": right}
    missing = {} if queries else {name: query.missing for name, query in QUERIES.items() if query.missing}
    figures = {"events": events, "runs": runs, "instances": instances, "cores": os.cpu_count(), "checked_events": checked_events}
    figures |= {"events_per_second_of_event_time": EVENTS_PER_S, "pool_events": POOL_EVENTS}
    return {**figures, "queries": found, "missing": missing}


def show(result: dict[str, Any]) -> None:
    """Prints the result as a table."""
    titles = ("events read", "events/s", "events/s/core", "cores used", "answers")
    if result.get("instances", 1) != 1:
        print_note(f"instances of each operator with keys: {result['instances']}")
    columns = (Column("query"), *(Column(title, right=True) for title in titles))
    rows = [_row(name, result["queries"].get(name)) for name in QUERIES if name in result["queries"] or name in result["missing"]]
    print_table(columns, rows, title=f"{result['events']:,} events of a pool, median of {result['runs']}")
    for name, reason in result["missing"].items():
        print_note(f"{name} ({QUERIES[name].what}) has no equal here: {reason}")


def _row(name: str, one: dict[str, Any] | None) -> list[str]:
    """Returns the line of a query, measured or not."""
    if one is None:
        return [name, "-", "-", "-", "-", "none"]
    figures = [count(one["events"]), count(one["events_per_s"]), count(one["events_per_s_per_core"]), number(one["cores_used"], 2)]
    return [name, *figures, "right" if one["answers_equal"] else "WRONG"]


def statements(name: str, events: int, sink: str, with_: str) -> str:
    """Returns the statements for the sources that a query reads, and its sink.

    Parameters
    ----------
    events : number of events after which the sources end, all kinds together
    sink : name of the sink
    with_ : options of the sink
    """
    options = f"seed = {SEED}, events = {events}, events_per_second = {EVENTS_PER_S}, pool_events = {POOL_EVENTS}"
    query = _select(name)
    # Every run has its own names, as the previous run may still be ending.
    sources = _text("sources").replace("{options}", options)
    for kind in KINDS:
        sources = sources.replace(f"CREATE SOURCE {kind} ", f"CREATE SOURCE {kind}_of_{sink} ")
        query = re.sub(_READS.format(kind=kind), rf"\g<0>_of_{sink}", query)
    return f"{sources}\nCREATE SINK {sink} AS\n{query}\nWITH ({with_});"


def _select(name: str) -> str:
    """Returns a query without its comments."""
    return re.sub(r"--.*", "", _text(name))


def _text(name: str) -> str:
    return (resources.files("sbon_testbed.nexmark") / "queries" / f"{name}.sql").read_text(encoding="utf-8")


def _right(agent: AgentProcess, name: str, events: int, tables: Tables, more: str) -> bool:
    """Tells whether the answers over the first events equal those of the reference over these rows."""
    sink = f"checked_{name}"
    with_ = f"connector = 'file', path = '{sink}', format = 'parquet'{more}"
    agent.submit(statements(name, events, sink, with_))
    agent.wait_until(lambda: agent.finished(sink), f"{name} over {events:,} events", TIMEOUT_S)
    expected = answer(name, tables)
    return equal(written(agent.data_dir / sink, "parquet", expected.schema), expected)


def _timed(agent: AgentProcess, name: str, events: int, more: str) -> dict[str, float]:
    """Runs a query once over all events."""
    sink = f"timed_{name}"
    used, began = agent.cpu_s(), time.monotonic()
    agent.submit(statements(name, events, sink, f"connector = 'discard'{more}"))
    agent.wait_until(lambda: agent.finished(sink), f"{name} over {events:,} events", TIMEOUT_S)
    used, took_s = agent.cpu_s() - used, time.monotonic() - began
    rows = sum(Stream(kind, Events(), CYCLE).total(events) for kind in KINDS if re.search(_READS.format(kind=kind), _select(name)))
    agent.submit(f"DROP SINK {sink}")
    for kind in KINDS:
        agent.submit(f"DROP SOURCE {kind}_of_{sink}")
    return {
        "events": rows,
        "events_per_s": round(rows / took_s),
        "events_per_s_per_core": round(rows / used),
        "cores_used": round(used / took_s, 3),
    }
