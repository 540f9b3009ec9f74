"""How far a source may go ahead of those that its rows are joined with."""

from types import SimpleNamespace
from typing import Any

import pytest

from sbon.engine.leads import LEAD_S_MAX, ROWS_AHEAD, STEP_S, Leads
from sbon.execution.life import State
from sbon.query.params.source import SourceParams

MANY = 10**6


class Source:
    """A source at a place in event time, whose rows reach some joins."""

    def __init__(self, joins: str, at_s: float = 0.0, *, has_more: bool = True, delay_s: float = 0.0) -> None:
        self.joins, self.state = joins, State.RUNNING
        self.spec = SimpleNamespace(params=SourceParams("s", "file", (), (), "ts", watermark_delay_us=round(delay_s * 1e6)))
        self.polls = SimpleNamespace(has_more=has_more)
        self.figures = SimpleNamespace(rows_out=0)
        self.watermark_out_us = round(at_s * 1e6)

    def gives(self, rows: int, for_s: float) -> None:
        self.figures.rows_out += rows
        self.watermark_out_us += round(for_s * 1e6)


def leads_of(*sources: Source) -> Any:
    made: Any = Leads(lambda source: list(source.joins))  # type: ignore[attr-defined]
    for source in sources:
        made.polled(source)
    return made


def test_a_source_that_is_ahead_gets_its_turn_later_and_few_rows() -> None:
    behind, ahead, far = Source("j", 10.0), Source("j", 10.4), Source("j", 99.0)
    leads = leads_of(behind, ahead, far)
    assert [leads.put_off_s(source) for source in (behind, ahead, far)] == pytest.approx([0.0, 0.4, LEAD_S_MAX])
    assert [leads.rows_max(source, MANY) for source in (behind, ahead, far)] == [MANY, ROWS_AHEAD, ROWS_AHEAD]
    assert leads.rows_max(far, 5) == 5


def test_only_the_one_that_is_furthest_behind_counts() -> None:
    first, second, third = Source("j", 1.0), Source("j", 1.2), Source("j", 1.5)
    assert leads_of(first, second, third).put_off_s(third) == pytest.approx(0.5)
    assert leads_of(second, first, third).put_off_s(third) == pytest.approx(0.5)


def test_a_watermark_that_is_behind_for_good_does_not_count() -> None:
    """Rows of a source may come in disorder: its watermark stays five seconds behind the newest of them."""
    exact, disordered = Source("j", 10.0), Source("j", 5.0, delay_s=5.0)
    leads = leads_of(exact, disordered)
    assert [leads.put_off_s(source) for source in (exact, disordered)] == [0.0, 0.0]
    exact.gives(1, 0.4)
    disordered.gives(1, 0.7)
    assert [leads.put_off_s(source) for source in (exact, disordered)] == pytest.approx([0.0, 0.3])


def test_a_source_goes_ahead_by_a_step() -> None:
    behind, ahead = Source("j", 10.0), Source("j", 9.0)
    leads = leads_of(behind, ahead)
    ahead.gives(1_000_000, 1.0)
    leads.polled(ahead)
    assert leads.rows_max(ahead, MANY) == MANY, "both are level"
    ahead.gives(1, STEP_S / 4)
    leads.polled(ahead)
    assert leads.rows_max(ahead, MANY) == pytest.approx(1e6 * STEP_S * 3 / 4, abs=1), "a million rows lie in a second of event time"


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (Source("k", 1.0), "no join has the rows of both"),
        (Source("", 1.0), "its rows are joined with none"),
        (Source("j", 1.0, has_more=False), "it has given all its rows: it is behind because nothing has happened"),
    ],
)
def test_sources_do_not_wait_for_all_that_are_behind(other: Source, why: str) -> None:
    ahead = Source("j", 5.0)
    leads = leads_of(other, ahead)
    assert (leads.put_off_s(ahead), leads.rows_max(ahead, MANY)) == (0.0, MANY), why


def test_a_source_that_does_not_run_any_more_is_not_waited_for() -> None:
    gone, ahead = Source("j", 1.0), Source("j", 5.0)
    leads = leads_of(gone, ahead)
    assert leads.put_off_s(ahead) == LEAD_S_MAX
    gone.state = State.GONE
    assert leads.put_off_s(ahead) == 0.0


def test_a_source_that_has_caught_up_is_not_waited_for() -> None:
    behind, ahead = Source("j", 1.0), Source("j", 5.0)
    leads = leads_of(behind, ahead)
    behind.polls.has_more = False
    leads.polled(behind)
    assert leads.put_off_s(ahead) == 0.0
