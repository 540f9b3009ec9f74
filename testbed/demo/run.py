"""`make demo`: sixteen real agents, real measurements, and an ocean cable that slows down.

The agents are processes of this machine with the latencies of cities between them. Nothing else is simulated: they measure their
coordinates, read their own system streams, and decide themselves to move an operator.
"""

import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from sbon.errors import SbonError
from sbon_testbed import report
from sbon_testbed.backend import Tail
from sbon_testbed.demo.report import analysed
from sbon_testbed.demo.story import CABLE, FACTOR, NODES, QUESTIONS, READINGS, ROWS_PER_S, SETTINGS, SOURCE_SQL, SOURCES, STREAM_S, Question
from sbon_testbed.demo.summary import counted_readings, delivery, missing, query_of, unpinned, usages
from sbon_testbed.demo.view import View
from sbon_testbed.processes.local import LocalWorld
from sbon_testbed.report import Running
from sbon_testbed.simulator.network import NetworkConfig
from sbon_testbed.telemetry.files import write_tables
from sbon_testbed.topology import CitiesConfig, build

SETTLED_ERROR = 0.12
SETTLE_S_MIN, SETTLE_S_MAX = 6.0, 20.0
BEFORE_EVENT_S = 10.0
"""Seconds between the last query and the event, in which rates are measured."""
AFTER_MIGRATION_S = 5.0
"""Seconds between a migration and the figures taken after it."""
EVENT_WAIT_S = 28.0
ARRIVAL_WAIT_S = 5.0
"""Seconds for sent batches to arrive before they count as waiting."""
END_WAIT_S = 15.0


def run_demo(out: Path, seed: int, plain: bool) -> list[str]:
    """Runs the demo; returns a sentence for each promise that it did not fulfil.

    Raises
    ------
    SbonError
        The agents could not be started, or `out` cannot be written.
    """
    agents = out / "agents"
    try:
        # An earlier demo's files there would start the agents with settled coordinates.
        shutil.rmtree(agents, ignore_errors=True)
        agents.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise SbonError(f"cannot write to {out}: {problem.strerror}; choose another folder with --out") from problem
    world = LocalWorld(build(CitiesConfig(), NODES, seed), agents.absolute(), NetworkConfig(jitter_ms=0.2), [SETTINGS] * NODES)
    try:
        with View(plain) as view:
            demo = _Demo(world, view, seed)
            demo.play()
            summary = demo.summary()
            (out / "summary.json").write_bytes(msgspec.json.format(msgspec.json.encode(summary), indent=2) + b"\n")
            view.page(as_text(summary, out))
    finally:
        world.close()
        write_tables(agents)
    print(analysed(agents, out), flush=True)
    return list(summary["missing"])


class _Demo:
    """One run: its phases in order, and its measurements."""

    def __init__(self, world: LocalWorld, view: View, seed: int) -> None:
        self.world, self.view, self.seed = world, view, seed
        self.queries: dict[str, str] = {}
        self.tails: dict[str, Tail] = {}
        self.migrations: list[dict[str, Any]] = []
        self.errors: dict[str, dict[str, Any]] = {}
        self.states: dict[str, Mapping[str, Any]] = {}
        self.usage: dict[str, float] | None = None
        self.links: dict[str, Any] | None = None
        self.rtt_before_ms = world.latencies.rtt_ms()
        self.event_at_s: float | None = None
        self.ended: list[str] = []
        self._truth = ""

    def play(self) -> None:
        """Runs every phase."""
        self._start()
        self._settle()
        self._ask()
        self._pass(BEFORE_EVENT_S)
        self._event()
        self._await_migration()
        self._measure()
        self._finish()

    # -- phases ---------------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        names = self.world.topology.nodes
        self.view.say(self.world.now, f"starting {len(names)} agents: {', '.join(names)}")
        for name in names:
            self.world.start(name)
        for name in names:
            self.world.wait_started(name)
        self.view.say(self.world.now, "all agents answer; they measure each other to find their places")

    def _settle(self) -> None:
        began = self.world.now
        while (waited := self.world.now - began) < SETTLE_S_MAX:
            self._look()
            error = self.errors["now"]["median_relative_error"]
            if waited >= SETTLE_S_MIN and error is not None and error <= SETTLED_ERROR:
                break
            self.world.run(0.8)
        self.errors["settled"] = self.errors["now"]

    def _ask(self) -> None:
        self.world.ask(SOURCES[0], "submit", sql=SOURCE_SQL)
        for question in QUESTIONS:
            self._ask_one(question)

    def _ask_one(self, question: Question) -> None:
        # The declaration of the generated source spreads by gossip, and may not have reached the agent yet.
        for attempt in range(8):
            try:
                result = self.world.ask(question.agent, "submit", sql=question.sql)[-1]
                break
            except SbonError as problem:
                if attempt == 7:
                    self.view.say(self.world.now, f"{question.agent} refused: {problem}")
                    return
                self._pass(0.7)
        self.queries[question.name] = result["query"]
        self.tails[question.name] = self.world.tail(result["query"], question.agent)
        places = sorted({operator["node"] for operator in result["operators"] if operator["kind"] in ("window", "join")})
        self.view.say(self.world.now, f'{question.agent} asks "{question.name}"; computed on {", ".join(places) or question.agent}')

    def _event(self) -> None:
        self._look()
        self.errors["before_event"] = self.errors["now"]
        self.event_at_s = self.world.now
        self.world.scale(self.world.topology.cables[CABLE], FACTOR)
        self._truth = " of the slower ocean"
        self.view.say(self.world.now, f"EVENT: the latency of the {CABLE} cables is now {FACTOR:g} times as high")

    def _await_migration(self) -> None:
        until = self.world.now + EVENT_WAIT_S
        while self.world.now < until and not self._moved_since_event():
            self._pass(0.8)
        if self._moved_since_event():
            self._pass(AFTER_MIGRATION_S)

    def _measure(self) -> None:
        """Measures usage and deliveries, while everything still runs."""
        since = [one for one in self.migrations if one["after_event"] and one["committed"]]
        first = report.running(self.world)
        self.usage = usages(self.world, first, since, self.rtt_before_ms)
        until = self.world.now + ARRIVAL_WAIT_S
        while True:
            # Waits for sent batches to arrive, which takes longer on a busy machine.
            self._pass(1.0)
            second = report.running(self.world)
            if not delivery(first, second, second)["waiting"] or self.world.now > until:
                break
        self._pass(0.5)
        self.links = delivery(first, second, report.running(self.world))
        self.errors["end"] = self.errors["now"]

    def _finish(self) -> None:
        """Waits for the end of the generated stream, and takes the last figures."""
        tail = self.tails.get(READINGS)
        until = self.world.now + STREAM_S + END_WAIT_S
        if tail is not None:
            self.view.say(self.world.now, "waiting for the last of the generated rows")
            while self.world.now < until and not tail.finished:
                self._pass(0.8)
        for question in QUESTIONS:
            with suppress(SbonError):
                for row in self.world.ask(question.agent, "queries"):
                    if row["id"] == self.queries.get(question.name):
                        self.states[question.name] = row

    # -- looking ----------------------------------------------------------------------------------------------------------

    def _pass(self, seconds: float) -> None:
        """Lets time pass, and updates the display about once a second."""
        until = self.world.now + seconds
        while (left := until - self.world.now) > 0:
            self.world.run(min(left, 0.8))
            self._look()

    def _look(self) -> None:
        now_s = self.world.now
        self.ended += self.world.reap()
        statuses = report.ask_all(self.world, "status")
        self.errors["now"] = report.errors_of(report.coordinates_of(self.world, statuses), self.world.latencies.rtt_ms())
        self.view.error(now_s, self.errors["now"]["median_relative_error"], self._truth)
        self._note_migrations(statuses)
        self.view.agents([_agent_row(name, status) for name, status in statuses.items()])
        if self.queries:
            overlay = report.running(self.world)
            self.view.queries([self._query_row(question, overlay) for question in QUESTIONS if question.name in self.queries])

    def _note_migrations(self, statuses: Mapping[str, Any]) -> None:
        known = {(one["operator"], one["at_wall_s"]) for one in self.migrations}
        names = {query: name for name, query in self.queries.items()}
        for status in statuses.values():
            for record in status.get("migrations", ()):
                if (record["operator"], record["at_wall_s"]) in known:
                    continue
                name = names.get(query_of(record["operator"]), query_of(record["operator"]))
                note = dict(record) | {
                    "query_name": name,
                    "seen_at_s": round(self.world.now, 1),
                    "after_event": self.event_at_s is not None,
                }
                self.migrations.append(note)
                verb = "moved" if record["committed"] else "did not move"
                self.view.say(
                    self.world.now,
                    f'{record["operator"]} of "{name}" {verb} from {record["here"]} to {record["there"]}, '
                    f"paused {record['pause_ms']:.0f} ms: {record['reason']}",
                )

    def _moved_since_event(self) -> bool:
        return any(one["after_event"] and one["committed"] for one in self.migrations)

    def _query_row(self, question: Question, overlay: Running) -> tuple[str, ...]:
        query, tail = self.queries[question.name], self.tails[question.name]
        places = " ".join(f"{operator.kind}={operator.node}" for operator in unpinned(overlay, query))
        state = "ended" if tail.finished else "running"
        return (question.name, question.agent, state, f"{len(tail.rows)}", places or "-")

    # -- the summary ------------------------------------------------------------------------------------------------------

    def summary(self) -> dict[str, Any]:
        """Returns one page of figures."""
        alive = sum(self.world.alive(name) for name in self.world.topology.nodes)
        tail = self.tails.get(READINGS, Tail(""))
        committed = [one for one in self.migrations if one["committed"]]
        result: dict[str, Any] = {
            "seed": self.seed,
            "seconds": round(self.world.now, 1),
            "agents": {"started": NODES, "alive": alive, "ended_by_themselves": self.ended},
            "event": {"cable": CABLE, "factor": FACTOR, "at_s": round(self.event_at_s or 0.0, 1)},
            "coordinates": self.errors.get("settled", {})
            | {"before_event": self.errors.get("before_event"), "end": self.errors.get("end")},
            "queries": [self._query_summary(question) for question in QUESTIONS],
            "migrations": committed,
            "migrations_abandoned": len(self.migrations) - len(committed),
            "network_usage_bytes": None if self.usage is None else {name: round(value) for name, value in self.usage.items()},
            "tuples": {"readings": counted_readings(tail), "rows_per_s": ROWS_PER_S * len(SOURCES), "links": self.links},
        }
        result["missing"] = missing(result)
        return result

    def _query_summary(self, question: Question) -> dict[str, Any]:
        row, tail = self.states.get(question.name, {}), self.tails.get(question.name)
        return {
            "name": question.name,
            "agent": question.agent,
            "query": self.queries.get(question.name),
            "state": row.get("state", "unknown"),
            "reason": row.get("reason", ""),
            "rows": len(tail.rows) if tail else 0,
            "columns": list(tail.columns) if tail else [],
            "last_rows": [list(values) for values in tail.rows[-3:]] if tail else [],
            "late_rows": row.get("late_rows"),
        }


def _agent_row(name: str, status: Mapping[str, Any]) -> tuple[str, ...]:
    error = status.get("median_relative_error")
    alive = status.get("members", {}).get("alive", 0)
    return (
        name,
        status.get("labels", {}).get("region", ""),
        str(alive),
        "-" if error is None else f"{error:.1%}",
        str(status["operators"]),
    )


def as_text(summary: Mapping[str, Any], out: Path) -> str:
    """Formats the summary for people."""
    coordinates, usage, tuples = summary["coordinates"], summary["network_usage_bytes"], summary["tuples"]
    lines = ["", f"Summary after {summary['seconds']:g} s with {summary['agents']['alive']} agents:"]
    percent: Callable[[Any], str] = lambda value: "unknown" if value is None else f"{value:.1%}"  # noqa: E731
    end = (coordinates.get("end") or {}).get("median_relative_error")
    lines.append(
        f"  coordinates      off by {percent(coordinates.get('median_relative_error'))} when settled, {percent(end)} at the end (median)"
    )
    for query in summary["queries"]:
        lines.append(f'  query            "{query["name"]}": {query["rows"]} rows, {query["state"]}')
        if query["last_rows"]:
            lines.append(f"                   last: {dict(zip(query['columns'], query['last_rows'][-1], strict=False))}")
    for one in summary["migrations"]:
        when = "after the event" if one["after_event"] else "before the event"
        lines.append(f"  migration        {one['operator']} {one['here']} -> {one['there']} {when}, paused {one['pause_ms']:.0f} ms")
    if usage is not None:
        lines.append(f"  network usage    {usage['now']:,} bytes in transit; it would be")
        lines.append(f"                   {usage['unmoved']:,} had nothing moved (it was {usage['before_event']:,} before the event),")
        lines.append(f"                   {usage['producer']:,} with all operators at a producer, {usage['consumer']:,} at the consumer")
    readings, links = tuples["readings"], tuples["links"]
    lines.append(f"  generated rows   {readings['generated']:,} sent, {readings['counted']:,} counted by the answers: ")
    lines[-1] += f"{readings['lost']} lost, {readings['repeated']} twice"
    if links is not None:
        lines.append(f"  links            {links['links']}: {links['sent']:,} rows sent, {links['received']:,} received, rest under way; ")
        lines[-1] += f"{sum(links['lost'].values())} lost, {sum(links['repeated'].values())} twice"
    lines += [f"  MISSING          {gap}" for gap in summary["missing"]]
    lines.append(f"  kept             {out / 'summary.json'}; telemetry and logs of each agent in {out / 'agents'}")
    return "\n".join(lines) + "\n"
