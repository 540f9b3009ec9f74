"""The pure parts of `sbon testbed cep --engine`: streams, the waiting recogniser, the check of answers, and figures."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sbon.cli.__main__ import run
from sbon.cost.overlap import OverlapLaw, RowLaw
from sbon.dealing.dealer import RoundRobin
from sbon.dealing.replay import Trace, replay
from sbon.errors import SbonError
from sbon.query.params.matched import MatchParams
from sbon.query.params.streams import SplitParams
from sbon.telemetry.rows import DealingRow
from sbon_testbed.cep import engine
from sbon_testbed.cep.engine_figures import check_answers, figures_of, predictions_of, virtual
from sbon_testbed.cep.engine_stream import SPEED, Stream, expected, piece_of, sink, source, stream_of
from sbon_testbed.cep.recognition import WAIT_S_MIN, Debt, Recognition
from sbon_testbed.cep.stories import INSTANCES, STORIES
from sbon_testbed.cep.waiting_agent import _DONE, Done, read_done
from tests.query_worlds import make_catalog, plan_of

STREAM = Stream(np.array([0, 100_000, 200_000, 1_400_000, 2_000_000]), np.array([0, 1, 0, 1, 2]), 500_000)


def piece(name: str, seconds: float, seed: int = 1) -> Trace:
    story = STORIES[name]
    return piece_of(story.make(np.random.default_rng(seed), story.duration_s), seconds)


@pytest.mark.parametrize(("name", "seconds"), [("faces", 300.0), ("traffic", 620.0)])
def test_a_row_waits_for_as_long_as_it_costs_in_virtual_time(name: str, seconds: float) -> None:
    """The twin is the replay, with windows in turn; the recogniser of each instance gets the copies that the replay sends there."""
    trace, story = piece(name, seconds), STORIES[name]
    stream, copies = stream_of(trace), list[tuple[int, int, float]]()
    setting = story.operator.setting(1e9, trace.scope_s)
    replay(trace, setting, story.operator.law, RoundRobin, seen=lambda row, number, done, cost: copies.append((row, number, cost)))
    owner = {row: number % INSTANCES for number, row in enumerate(stream.openings.tolist())}
    each = [Recognition(story.operator.law, 0, stream.within_us, SPEED) for _ in range(INSTANCES)]
    for row, number, cost_s in copies:
        found = each[number].cost_s(int(stream.at_us[row]), int(stream.kind[row]), may_open=owner.get(row) == number)
        assert found == pytest.approx(cost_s / SPEED, rel=1e-9, abs=1e-15)


def test_windows_of_other_instances_and_rows_of_other_kinds_cost_nothing() -> None:
    law = OverlapLaw((RowLaw(row_s=1.0, opening_s=4.0, window_s=2.0), RowLaw(row_s=8.0)), (False, False))
    one = Recognition(law, 0, 100, 2.0)
    assert one.cost_s(0, 0, may_open=False) == 0.0, "no window is open here"
    assert one.cost_s(1, 0, may_open=True) == 2.5
    assert one.cost_s(2, 1, may_open=True) == 4.0, "rows of this kind open no window"
    assert one.cost_s(50, 0, may_open=True) == 3.5
    assert one.cost_s(60, 2, may_open=True) == 0.0
    assert one.cost_s(100, 0, may_open=False) == 2.5
    assert one.cost_s(101, 0, may_open=False) == 1.5, "a row at the very end of a window is not in it"
    assert one.cost_s(150, 1, may_open=False) == 0.0


class Sleeper:
    """A clock that only sleeping moves, by more than was asked for."""

    def __init__(self, late_s: float) -> None:
        self.now_s, self.late_s, self.slept = 0.0, late_s, list[float]()

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds + self.late_s


@pytest.mark.parametrize("late_s", [0.0, 0.0001, 0.005])
def test_waits_add_up_to_the_costs_although_each_takes_too_long(late_s: float) -> None:
    world, costs_s = Sleeper(late_s), np.random.default_rng(2).exponential(0.002, 2_000)
    debt = Debt(world.sleep, world.clock)
    done_s = [debt.pay(cost_s) for cost_s in costs_s.tolist()]
    behind_s = np.array(done_s) - np.cumsum(costs_s)
    assert behind_s.min() > -WAIT_S_MIN
    assert behind_s.max() <= late_s + 1e-9
    assert min(world.slept) >= WAIT_S_MIN


def test_the_middle_of_a_stream_begins_at_0() -> None:
    trace = Trace(np.arange(10.0), np.array([0, 1] * 5), np.where(np.arange(10) % 2, 0.0, np.arange(10) + 4.0))
    found = piece_of(trace, 4.0)
    assert found.at_s.tolist() == [0.5, 1.5, 2.5, 3.5]
    assert found.kind.tolist() == [1, 0, 1, 0]
    assert found.closes_s.tolist() == [0.0, 5.5, 0.0, 7.5]
    assert piece_of(trace, 100.0).at_s.tolist() == trace.at_s.tolist()


def test_traffic_is_taken_where_it_is_densest() -> None:
    rows = len(piece("traffic", 1_000.0).at_s)
    assert rows > 0.9 * 1_000 * 2 / 0.2


@pytest.mark.parametrize(("name", "seconds"), [("faces", 100.0), ("traffic", 600.0)])
def test_each_window_has_the_rows_of_its_scope(name: str, seconds: float) -> None:
    trace = piece(name, seconds)
    right = expected(stream_of(trace))
    for row in np.flatnonzero(trace.closes_s).tolist():
        rows = np.flatnonzero((np.arange(len(trace.at_s)) >= row) & (trace.at_s <= trace.closes_s[row]))
        assert right[row] == (len(rows), int(rows.sum()))
    assert len(right) == np.count_nonzero(trace.closes_s)


def test_the_last_row_ends_all_windows_and_does_not_wait_for_its_time() -> None:
    stream = stream_of(piece("faces", 60.0))
    assert stream.at_us[-1] - stream.within_us > stream.at_us[-2]
    assert stream.at_s[-1] == stream.at_s[-2] == stream.at_us[-2] / 1e6
    lines = [json.loads(line) for line in stream.lines(1e15)]
    assert [line["id"] for line in lines] == list(range(len(stream.at_us)))
    assert [line["ts"] - 10**15 for line in lines] == stream.at_us.tolist()
    assert [line["kind"] for line in lines] == stream.kind.tolist()


def test_the_query_deals_its_windows_by_a_dealer_that_keeps_the_bound() -> None:
    catalog = make_catalog(source("a", 1, 30.0) + ";")
    operators = [one.params for one in plan_of(sink("a", 7000, STREAM, 1.5), catalog, here="a", nodes={"a": {}}).operators]
    (split,) = [one for one in operators if isinstance(one, SplitParams)]
    assert (split.dealer, split.bound_s, split.turns.within_us, split.instances) == ("auto", 1.5, 500_000, INSTANCES)
    parts = [one for one in operators if isinstance(one, MatchParams)]
    assert [one.dealt.index for one in parts if one.dealt is not None] == list(range(INSTANCES))


def answer(opening: int, n: int, total: int) -> bytes:
    return json.dumps({"opening": opening, "n": n, "total": total}).encode()


def test_answers_that_are_wrong_missing_or_twice_are_found() -> None:
    right = expected(STREAM)
    assert right == {0: (3, 3), 2: (1, 2)}
    good = [answer(0, 3, 3), answer(2, 1, 2)]
    assert check_answers(good, right) == 2
    with pytest.raises(SbonError, match="1 windows with wrong answers, the first of row 2: None, expected"):
        check_answers(good[:1], right)
    with pytest.raises(SbonError, match="first of row 0"):
        check_answers([answer(0, 3, 4), good[1]], right)
    with pytest.raises(SbonError, match="two answers for the window of row 2"):
        check_answers([*good, good[1]], right)
    with pytest.raises(SbonError, match="first of row 3"):
        check_answers([*good, answer(3, 1, 3)], right)


def done(*copies: tuple[int, int, float]) -> Done:
    rows, instances, at_s = zip(*copies, strict=True)
    return Done(np.array(rows), np.array(instances), np.array(at_s))


def test_latencies_count_from_the_rows_instants_in_the_papers_seconds_and_the_last_row_has_none() -> None:
    found = figures_of(done((0, 0, 10.1), (1, 0, 10.2), (1, 3, 10.6), (2, 3, 10.3), (4, 0, 99.0)), STREAM, 10.0, 4.0)
    assert found["events_sent"] == 4
    assert found["copies"] == 1.0
    assert found["peak_s"] == pytest.approx(SPEED * 0.5)
    assert found["median_s"] == pytest.approx(SPEED * 0.1)
    assert (found["over_bound"], found["over_twice_bound"], found["instances_used"]) == (0.25, 0.25, 2)
    with pytest.raises(SbonError, match="no row"):
        figures_of(done((4, 0, 1.0)), STREAM, 0.0, 1.0)


def told(peak_s: float | None) -> DealingRow:
    return DealingRow(
        operator="s", queries=(), instances=8, within_s=1.0, turn_s=1.0, rows_dealt=1, rows_sent=1, copies=1.0, copies_expected=8.0, turn=1,
        peak_predicted_s=peak_s,
    )  # fmt: skip


def test_predictions_are_compared_with_the_rows_that_come_in_the_minute_after_them() -> None:
    stream = Stream(np.arange(0, 100_000_000, 1_000_000), np.zeros(100, np.int64), 500_000)
    late_s = np.select([np.arange(99) < 50, np.arange(99) < 70], [0.1, 0.4], 0.6)
    ran = done(*((row, 0, 7.0 + row + float(late_s[row])) for row in range(99)))
    rows = [(6.0, told(9.0)), (8.0, told(0.2)), (9.0, told(None)), (57.5, told(0.8)), (104.0, told(9.0))]
    found = predictions_of(rows, ran, stream, 7.0)
    assert found["predictions"] == 2
    assert found["predicted_peak_s"] == pytest.approx(SPEED * 0.5)
    assert found["predicted_peak_max_s"] == pytest.approx(SPEED * 0.8)
    assert found["predicted_to_measured"] == pytest.approx((0.5 + 0.8 / 0.6) / 2)
    assert found["predicted_too_low"] == 0.5
    nothing: dict[str, Any] = predictions_of([], ran, stream, 7.0)
    assert nothing["predictions"] == 0
    assert nothing["predicted_peak_s"] is None


def test_virtual_time_has_the_dealer_of_the_query_and_the_least_and_most_copies() -> None:
    found = virtual(piece("faces", 200.0), STORIES["faces"], 30.0)
    assert found["round-robin"]["saved"] == 0.0
    assert found["one-copy"]["events_sent"] < found["auto"]["events_sent"] < found["round-robin"]["events_sent"]
    assert found["auto"]["peak_s"] <= 30.0 < found["one-copy"]["peak_s"]


def test_a_row_that_no_instance_has_processed_is_found() -> None:
    engine._check_rows(done((0, 0, 1.0), (1, 0, 1.0), (2, 1, 1.0), (2, 0, 1.0)), STREAM)
    with pytest.raises(SbonError, match="0 rows were processed twice by an instance, and 1 by none"):
        engine._check_rows(done((0, 0, 1.0), (2, 0, 1.0)), STREAM)
    with pytest.raises(SbonError, match="1 rows were processed twice by an instance, and 0 by none"):
        engine._check_rows(done((0, 0, 1.0), (1, 0, 1.0), (2, 0, 1.0), (2, 0, 1.0)), STREAM)


def test_notes_of_instances_are_read_as_far_as_they_are_whole(tmp_path: Path) -> None:
    (tmp_path / "1-0.done").write_bytes(_DONE.pack(3, 1, 2.5) + _DONE.pack(4, 1, 3.5))
    (tmp_path / "1-1.done").write_bytes(_DONE.pack(3, 2, 2.25) + b"half")
    found = read_done(tmp_path)
    assert (found.rows.tolist(), found.instances.tolist(), found.at_s.tolist()) == ([3, 4, 3], [1, 1, 2], [2.5, 3.5, 2.25])
    assert read_done(tmp_path / "none").rows.size == 0


def test_other_stories_are_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["testbed", "cep", "--engine", "--story", "faces", "--story", "peaks"]) == 2
    assert capsys.readouterr().err == "sbon: --story peaks does not run on agents, expected traffic or faces with --engine\n"


def test_a_bound_for_a_story_without_bounds_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["testbed", "cep", "--story", "faces", "--story", "peaks", "--bound", "3"]) == 2
    told = "sbon: --story peaks has no latency bounds, expected traffic, traffic-fast, traffic-steps, faces, faces-bursts with --bound\n"
    assert capsys.readouterr().err == told
