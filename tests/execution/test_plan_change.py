"""A sink's change from one plan to another: which rows of which plan it writes, row by row."""

from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from sbon.connectors.interface import Congested
from sbon.execution import crossing, work
from sbon.execution.crossing import PlanChange, both_passed
from sbon.execution.life import State
from sbon.links.origins import Giving

OLD, NEW = "q.1>q.9:0", "q.5>q.9:0"


class Sink:
    """Collects the rows that a sink writes."""

    def __init__(self, floor_us: int = crossing.WATERMARK_MIN) -> None:
        self.change = PlanChange(frozenset({NEW}), "t", floor_us)
        self.written: list[tuple[int | None, str]] = []

    def give(self, link: str, *times: int | None, passed: bool = False, end: bool = False) -> list[tuple[int | None, str]]:
        """Gives a batch; returns the rows that are written."""
        plan = "new" if link.startswith(NEW) else "old"
        frame: Any = None
        if times:
            frame = pl.DataFrame({"t": pl.Series(times, dtype=pl.Int64).cast(pl.Datetime("us")), "plan": [plan] * len(times)})
        step = self.change.step(link, frame, both_passed=passed, is_end=end)
        found = [] if step.rows is None else list(zip(step.rows["t"].to_physical(), step.rows["plan"], strict=True))
        self.change.commit(step)
        self.written += found
        return found


def test_until_it_is_told_where_to_cross_a_sink_takes_the_present_plan():
    sink = Sink()
    assert sink.give(OLD, 1, 2) == [(1, "old"), (2, "old")]
    assert sink.give(NEW, 1, 2, 3) == []


def test_it_crosses_behind_every_row_that_it_has_written_or_dropped():
    sink = Sink()
    sink.give(OLD, 10, 4)
    sink.give(NEW, 12)
    assert sink.change.cut(7) == 13
    assert sink.change.cut(50) == 13, "the cut is set once"
    assert Sink().change.cut(7) == 8


def test_rows_before_are_the_present_plan_s_and_later_ones_the_other_s_each_once_and_in_order():
    sink = Sink()
    assert sink.change.cut(9) == 10
    assert sink.give(NEW, 8, 9, 10, 11) == [], "early rows are dropped, the others wait"
    assert sink.give(OLD, 8, 10) == [(8, "old")]
    assert sink.give(OLD, 9, 11) == [(9, "old")]
    sink.change.go()
    assert not sink.change.has_crossed, "the sink is not ready"
    assert sink.give(OLD, passed=True) == []
    assert sink.change.told.is_ready
    sink.change.go()
    assert sink.change.has_crossed
    assert not sink.change.told.has_crossed, "the waiting rows are not written yet"
    assert sink.give(OLD, 12) == [(10, "new"), (11, "new")]
    assert sink.change.told.has_crossed
    assert sink.give(NEW, 12, 9) == [(12, "new")]
    assert sink.change.late_rows == 1
    assert sink.written == [(8, "old"), (9, "old"), (10, "new"), (11, "new"), (12, "new")]


def test_a_change_that_is_called_off_leaves_nothing_out_and_writes_nothing_of_the_other_plan():
    sink = Sink()
    sink.change.cut(9)
    sink.give(NEW, 10)
    sink.give(OLD, 10, 9)
    sink.change.call_off()
    assert sink.give(NEW, 11) == [(10, "old")]
    assert sink.give(OLD, 11, passed=True) == [(11, "old")]
    assert not sink.change.has_crossed


def test_a_sink_that_has_heard_of_no_change_takes_note_that_one_is_called_off():
    change = PlanChange(frozenset(), "")
    change.call_off()
    frame = pl.DataFrame({"t": pl.Series([1], dtype=pl.Int64).cast(pl.Datetime("us"))})
    step = change.step(OLD, frame, both_passed=True)
    assert step.rows is not None
    assert step.rows.height == 1


def test_a_sink_with_inputs_of_both_plans_does_not_end_without_one_that_is_lost():
    change = PlanChange(frozenset({NEW}), "t")
    assert change.has_both([OLD, f"{NEW}+3"])
    assert not change.has_both([OLD])
    assert not change.has_both([NEW, f"{NEW}+3"])


def test_after_it_has_crossed_it_cannot_be_called_off():
    sink = Sink()
    sink.change.cut(9)
    sink.give(OLD, passed=True)
    sink.change.go()
    sink.change.call_off()
    assert sink.change.told.has_crossed
    assert not sink.change.told.is_called_off
    assert sink.give(NEW, 10) == [(10, "new")]


def test_a_batch_that_the_sink_refuses_counts_only_once_it_has_taken_it():
    sink = Sink()
    sink.change.cut(9)
    sink.give(NEW, 10)
    sink.give(OLD, passed=True)
    sink.change.go()
    refused = sink.change.step(OLD, None, both_passed=True)
    assert refused.rows is not None
    assert sink.give(OLD, passed=True) == [(10, "new")]
    assert sink.give(OLD, passed=True) == []


def test_a_query_that_ends_before_the_sink_has_crossed_ends_with_the_present_plan():
    sink = Sink()
    sink.change.cut(9)
    sink.give(NEW, 10)
    sink.give(OLD, 9, 10, passed=True)
    assert sink.give(OLD, 11, end=True) == [(10, "old"), (11, "old")]
    sink.change.go()
    assert sink.change.told.is_called_off
    assert not sink.change.told.has_crossed


def test_too_many_rows_that_wait_call_the_change_off(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(crossing, "HELD_ROWS_MAX", 2)
    sink = Sink()
    sink.change.cut(9)
    sink.give(NEW, 10, 11)
    assert sink.give(OLD, 9, 10) == [(9, "old"), (10, "old")]
    assert sink.change.told.is_called_off
    assert sink.give(NEW, 12, passed=True) == []


def test_the_next_change_still_leaves_out_what_came_before_the_last_one():
    sink = Sink(floor_us=20)
    assert sink.give(OLD, 19, 20) == [(20, "old")]
    assert sink.change.cut(3) == 21


def test_a_link_that_has_begun_anew_is_the_same_link():
    sink = Sink()
    assert sink.give(f"{NEW}+4", 1) == []


def test_rows_without_an_event_time_are_the_present_plan_s_until_it_has_crossed():
    sink = Sink()
    sink.change.cut(9)
    assert sink.give(OLD, None) == [(None, "old")]
    assert sink.give(NEW, None) == []


def instance_of(*watermarks: int, watermark_us: int) -> tuple[Any, list[Any]]:
    """Returns an instance of a sink whose inputs have these watermarks, and the inputs."""
    inputs = [SimpleNamespace(watermark_us=one, lost=False) for one in watermarks]
    return SimpleNamespace(inputs=dict(enumerate(inputs)), watermark_us=watermark_us), inputs


def test_both_plans_have_passed_once_every_input_has():
    change = PlanChange(frozenset({NEW}), "t")
    instance, [old, new] = instance_of(90, 120, watermark_us=90)
    assert not both_passed(change, instance, old, 200), "no cut has been set"
    change.cut(99)
    assert not both_passed(change, instance, old, 95)
    assert both_passed(change, instance, old, 100)
    new.watermark_us = 80
    assert not both_passed(change, instance, old, 100)


def test_an_input_whose_source_is_lost_is_waited_for():
    change = PlanChange(frozenset({NEW}), "t")
    change.cut(99)
    instance, [old, new] = instance_of(90, 120, watermark_us=90)
    old.lost = True
    assert not both_passed(change, instance, new, 130)
    old.watermark_us = 120
    assert not both_passed(change, instance, new, 130), "the watermark of a lost source does not hold for its new copy"
    old.lost, old.watermark_us, instance.watermark_us = False, 90, 130  # the source is back, behind its former watermark
    assert not both_passed(change, instance, old, 130)
    old.watermark_us = 100
    assert both_passed(change, instance, old, 130)


def test_what_a_sink_refuses_is_offered_again_whole(monkeypatch: pytest.MonkeyPatch):
    sink = Sink()
    sink.change.cut(9)
    sink.give(NEW, 10, passed=True)
    sink.change.go()
    written: list[Any] = []

    def write(stage: Any, payload: Any, part: Any) -> None:
        if not written:
            written.append(None)
            raise Congested("full", 0.1)
        written.append(part.height)

    monkeypatch.setattr(work, "_write", write)
    incoming = SimpleNamespace(link=SimpleNamespace(id=OLD), written=Giving(), watermark_us=90, lost=False)
    instance = SimpleNamespace(waiting=SimpleNamespace(change=sink.change), inputs={OLD: incoming}, watermark_us=5)
    stage: Any = SimpleNamespace(instance=instance, incoming=incoming)
    with pytest.raises(Congested):
        work._write_of_plan(stage, None, None, 100, 0)
    work._write_of_plan(stage, None, None, 100, 0)
    assert written == [None, 1]


@pytest.mark.parametrize("advanced", [[120], []], ids=["held back", "not held back"])
def test_an_input_that_is_dropped_holds_the_event_time_of_an_operator_back_no_more(advanced: list[int]):
    """The last batch of the other inputs may have come before, so nothing else would advance the operator."""
    told: list[int] = []
    engine: Any = SimpleNamespace(advance=lambda instance, watermark_us: told.append(watermark_us), consider=lambda instance: None)
    links: Any = SimpleNamespace(drop_input=lambda link: None)
    ends = {link: SimpleNamespace(link=SimpleNamespace(id=link), queue=[], watermark_us=us) for link, us in ((OLD, 90), (NEW, 120))}
    instance: Any = SimpleNamespace(state=State.RUNNING, inputs=ends, watermark_us=90 if advanced else 120, watermark_in_us=120)
    crossing.drop_inputs(engine, links, instance, [ends[OLD]])
    assert (list(instance.inputs), told) == ([NEW], advanced)
