"""Costs learnt by sending a few rows through the operators of a query that never ran, without any effect outside."""

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import polars as pl
import pytest

from sbon.cost.figure import Source
from sbon.cost.placed_query import by_rule_of
from sbon.cost.resources import KERNEL_REFERENCE_NS
from sbon.cost.sampling import BYTES_MAX, ROWS_MAX, ROWS_OUT_MAX, Given, sampled
from sbon.cost.statistics import OperatorStatistics, tellable
from sbon.cost.store import CostStore, as_told
from sbon.execution.sampling import Apart as Machine
from sbon.execution.sampling import Sampling
from sbon.operators.registry import build
from sbon.planning.samples import known_shares, questions
from sbon.query.estimate import estimate
from sbon.query.params.source import SinkParams, SourceParams
from sbon.query.params.windowed import WindowParams
from sbon.query.plan import Plan
from sbon.wire.candidates import SampleAsk, Sampled
from sbon.wire.costs import OperatorCosts
from sbon_agent.connectors import build_source
from tests.connector_world import context
from tests.query_worlds import make_catalog, plan_of, rows_of

FILTER = "SELECT u.ts, k, w * 2 AS twice FROM u WHERE w > 2"
WINDOW = "SELECT window_end, k, count(*) AS n FROM TUMBLE((SELECT * FROM u WHERE w > 2), ts, INTERVAL '10 seconds') GROUP BY window_end, k"
JOIN = "SELECT u.ts AS at, u.w, v.w AS other FROM u JOIN u AS v ON u.k = v.k AND v.ts BETWEEN u.ts - INTERVAL '5 seconds' AND u.ts"


class Lap:
    """A meter of a machine on which a batch takes 40 us, and a row 30 ns."""

    def lap(self, rows: int) -> int:
        return 40_000 + 30 * rows if rows else 0

    def end(self) -> None:
        pass


def told_of(plan: Plan, *, rows: int = ROWS_MAX, seconds: float = 0.0, make: Callable[..., Any] = build) -> dict[str, OperatorStatistics]:
    """Returns the statistics that a sample gives, by signature, where each look at the clock takes `seconds`."""
    now = iter(range(10**6))
    given = {spec.id: Given(rows_of(spec, rows), 90_000) for spec in plan.operators if isinstance(spec.params, SourceParams)}
    found = sampled(plan.operators, plan.links, given, make, Lap, lambda: next(now) * seconds)
    return {one.signature: one for one in found}


def test_costs_and_the_share_that_passes_are_those_of_the_rows():
    plan = plan_of(FILTER)
    source, *others, _ = plan.operators
    told = told_of(plan)

    rows = rows_of(source, ROWS_MAX).head(ROWS_MAX)
    passing = sum(value is not None and value > 2 for value in rows["w"].to_list())
    port = told[others[0].signature].ports[0]
    assert port.selectivity.value == pytest.approx(passing / rows.height)
    assert port.selectivity.low < passing / rows.height < port.selectivity.high
    assert port.law.cost_ns(1000).low <= 40_000 + 30 * 1000 <= port.law.cost_ns(1000).high
    assert {one.source for one in told.values()} == {Source.SAMPLED}


def test_windows_and_joins_tell_their_costs_and_keep_the_share_that_the_rules_say():
    for text in (WINDOW, JOIN):
        plan = plan_of(text)
        told = told_of(plan)
        known = [spec for spec in plan.operators if spec.signature in told and not isinstance(spec.params, SourceParams)]
        keeping = [spec for spec in known if isinstance(spec.params, WindowParams) or spec.ports == 2]
        assert keeping
        for spec in keeping:
            assert told[spec.signature].source is Source.SAMPLED
            assert {port.selectivity.source for port in told[spec.signature].ports} == {Source.RULE}
        assert {spec.signature for spec in plan.operators} - told.keys() == {plan.operators[-1].signature}, "all but the sink"


def test_rates_of_links_follow_from_shares_that_a_sample_told_but_not_from_those_of_rules():
    plan = plan_of(WINDOW.replace("w > 2", "w > 1e9"))
    told = told_of(plan_of(WINDOW)) | told_of(plan)
    source, passing, *_ = plan.operators

    shares = known_shares(plan, lambda spec: told.get(spec.signature))

    assert shares.keys() == {passing.signature}
    rows = rows_of(source, ROWS_MAX).head(ROWS_MAX).height
    assert shares[passing.signature] == pytest.approx(1 / rows, rel=1e-3), "no row passed, so one of all rows is assumed to pass"
    few = estimate(plan, shares=shares)
    assert few.links[1].rate_rows_per_s == pytest.approx(few.links[0].rate_rows_per_s / rows, rel=1e-3)
    assert known_shares(plan, lambda spec: by_rule_of(spec, 0.3)) == {}


def test_few_rows_tell_no_costs():
    """Opening a file of seven rows and the first call of an operator would distort the cost of a row."""
    assert told_of(plan_of(WINDOW), rows=7) == {}
    few = plan_of(WINDOW.replace("w > 2", "w > 1e9"))
    assert len(told_of(few)) < len(told_of(plan_of(WINDOW))), "operators behind the filter got no rows"


def test_no_batch_begins_after_the_time_is_over():
    plan = plan_of(WINDOW)
    whole, cut = told_of(plan), told_of(plan, seconds=0.05)

    assert 1 < len(cut) < len(whole)
    assert cut.keys() < whole.keys()


class Explosion:
    """An operator that gives many rows for each row."""

    spread = 1

    def process(self, port: int, frame: pl.DataFrame) -> list[pl.DataFrame]:
        return [pl.concat([frame] * (ROWS_OUT_MAX // 100))]

    def advance_in_steps(self, watermark_us: int) -> tuple[()]:
        return ()


def test_an_operator_with_too_many_answers_is_the_last_of_its_kind():
    plan = plan_of(WINDOW)
    first = plan.operators[1]

    told = told_of(plan, make=lambda params: Explosion() if params == first.params else build(params))

    assert told.keys() == {plan.operators[0].signature, first.signature}


def test_rows_of_many_bytes_are_few():
    plan = plan_of(FILTER)
    source = plan.operators[0]
    wide = pl.DataFrame({"k": ["x" * (BYTES_MAX // 10)] * 400})
    wide = rows_of(source, 600).head(400).with_columns(wide["k"])
    seen = []

    def make(params: Any) -> Any:
        operator = build(params)
        inner = operator.process
        operator.process = lambda port, frame: seen.append(frame.height) or inner(port, frame)  # type: ignore[func-returns-value,method-assign]
        return operator

    sampled(plan.operators, plan.links, {source.id: Given(wide, 1)}, make, Lap, lambda: 0.0)

    assert sum(seen) - seen[0] <= 10


def test_each_host_is_asked_about_its_sources_and_what_only_they_feed():
    plan = plan_of(
        "SELECT s.ts AS at, s.k, w FROM s JOIN u ON s.k = u.k AND u.ts BETWEEN s.ts - INTERVAL '5 s' AND s.ts WHERE v > 1 AND w > 1"
    )
    asked = questions(plan, lambda signature: False)

    assert set(asked) == {"a", "b", "c"}
    for node, ask in asked.items():
        assert {spec.pinned for spec in ask.operators if isinstance(spec.params, SourceParams)} == {node}
        assert all(spec.ports < 2 and not isinstance(spec.params, SinkParams) for spec in ask.operators)
        assert {one for link in ask.links for one in (link.source, link.target)} <= {spec.id for spec in ask.operators}
    assert questions(plan, lambda signature: True) == {}


def costs_of(plan: Plan) -> list[OperatorCosts]:
    return [as_told(tellable(one), OperatorCosts) for one in told_of(plan).values()]


def test_answers_that_nobody_asked_for_or_that_cannot_be_are_dropped():
    cost_store = CostStore("n1")
    first, second, *_ = costs_of(plan_of(WINDOW))
    port = second.ports[0]
    measured = msgspec.structs.replace(
        second, ports=(msgspec.structs.replace(port, law=msgspec.structs.replace(port.law, source="measured")),)
    )
    law = msgspec.structs.replace(port.law, coefficients=(1e17,) * len(port.law.coefficients))
    absurd = msgspec.structs.replace(second, ports=(msgspec.structs.replace(port, law=law),))

    cost_store.hear_sample("liar", (first, measured, absurd), {second.signature}, 0.0)

    assert cost_store.statistics.of(first.signature, 0.0) is None
    assert cost_store.statistics.of(second.signature, 0.0) is None
    assert cost_store.refused == 1
    cost_store.hear_sample("n2", (second,), {second.signature}, 0.0)
    known = cost_store.statistics.of(second.signature, 0.0)
    assert known is not None
    assert known.source is Source.SAMPLED
    cost_store.hear_sample("liar", (msgspec.structs.replace(second, row_bytes=first.row_bytes), second), {second.signature}, 1.0)
    assert cost_store.statistics.of(second.signature, 0.0) == known


class Apart:
    """A host whose separate threads run at once, or when the test says so."""

    def __init__(self) -> None:
        self.waits, self.waiting = False, list[Callable[[], None]]()

    def execute_apart(self, work: Callable[[], Any], done: Callable[[Any], None], limit_s: float) -> None:
        self.waiting.append(lambda: done(work()))
        if not self.waits:
            self.waiting.pop()()

    def meter(self, *, brief: bool = False) -> Lap:
        return Lap()

    def stopwatch(self) -> float:
        return 0.0


def sampling_at(folder: Path) -> tuple[Sampling, Apart]:
    host, where, cost_store = Apart(), context(folder), CostStore("n1")
    cost_store.timed([KERNEL_REFERENCE_NS] * 9)
    return Sampling(cast(Machine, host), cost_store, lambda params: build_source(params, where)), host


def ask(plan: Plan) -> SampleAsk:
    return SampleAsk(operators=plan.operators, links=plan.links)


def answer(sampling: Sampling, question: SampleAsk) -> Sampled:
    found: list[Sampled] = []
    sampling.answer(question, found.append)
    (told,) = found
    return told


FILES = """CREATE SOURCE readings (ts TIMESTAMP, v DOUBLE NOT NULL, WATERMARK FOR ts AS ts)
WITH (connector = 'file', path = 'in.csv', nodes = 'b')"""


def test_a_file_is_read_and_closed_and_the_sink_writes_nothing(tmp_path):
    lines = [f"2026-01-01T00:00:{second:02}Z,{second}" for second in range(60)]
    (tmp_path / "in.csv").write_text("\n".join(["ts,v", *lines]) + "\n")
    plan = plan_of(
        "CREATE SINK out AS SELECT ts, v FROM readings WHERE v < 15 WITH (connector = 'file', path = 'out.csv')", make_catalog(FILES)
    )
    before, opened = sorted(tmp_path.iterdir()), set(Path("/proc/self/fd").iterdir())

    told = {one.signature: one for one in answer(sampling_at(tmp_path)[0], ask(plan)).costs}

    source, passing, *_ = plan.operators
    assert told[source.signature].ports[0].law.source == "sampled"
    assert told[passing.signature].ports[0].selectivity.value == pytest.approx(0.25, rel=0.01)
    assert plan.operators[-1].signature not in told
    assert sorted(tmp_path.iterdir()) == before, "no file is made"
    assert set(Path("/proc/self/fd").iterdir()) == opened


@pytest.mark.parametrize("connector", ["mqtt", "tcp", "http"])
def test_no_session_begins_at_a_broker_or_a_server(tmp_path, connector):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        options = {
            "mqtt": f"host = '127.0.0.1', port = {port}, topic = 't'",
            "tcp": f"port = {port}",
            "http": f"url = 'http://127.0.0.1:{port}/x'",
        }[connector]
        columns = "ts TIMESTAMP, v DOUBLE, WATERMARK FOR ts AS ts"
        given = f"CREATE SOURCE far ({columns}) WITH (connector = '{connector}', {options}, nodes = 'b')"
        server.setblocking(False)

        told = answer(sampling_at(tmp_path)[0], ask(plan_of("SELECT ts, v FROM far WHERE v > 1", make_catalog(given))))

        assert told == Sampled()
        with pytest.raises(BlockingIOError):
            server.accept()


def test_one_sample_is_taken_at_a_time_and_one_that_fails_tells_nothing(tmp_path):
    sampling, host = sampling_at(tmp_path)
    host.waits, found = True, list[Sampled]()
    sampling.answer(ask(plan_of(FILTER)), found.append)
    assert answer(sampling, ask(plan_of(FILTER))) == Sampled()
    host.waiting.pop()()
    assert found[0].costs
    host.waits = False
    assert answer(sampling, ask(plan_of(FILTER))).costs, "the next sample gets its turn"
    missing = plan_of("SELECT k, v FROM plain WHERE v > 1")
    assert answer(sampling, ask(missing)) == Sampled(), "there is no such file"
