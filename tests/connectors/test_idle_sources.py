"""The watermark of a silent source follows the clock; that of other sources does not."""

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from sbon.connectors.idle import IdleSource
from sbon.connectors.interface import Polled
from sbon.query.params.source import SourceParams
from sbon.watermarks import WATERMARK_END, WATERMARK_MIN
from tests.connector_world import columns, source
from tests.examples import examples

SECOND = 1_000_000
WALL = 1_700_000_000
IDLE_S, DELAY_S = 10, 2
ROW = pl.DataFrame({"x": [1]})


class Scripted:
    """A source that gives what the test has put into `next`."""

    dropped_rows = 7

    def __init__(self) -> None:
        self.next = Polled(None, WATERMARK_MIN, None)

    def start(self, ready) -> None:
        """Does nothing."""

    def poll(self, now: float, wall: float) -> Polled:
        """Gives each frame once."""
        given, self.next = self.next, self.next._replace(frame=None)
        return given

    def stop(self) -> None:
        """Does nothing."""


def make() -> tuple[Scripted, IdleSource]:
    inner = Scripted()
    params = SourceParams("s", "scripted", (), columns(x="int"), "x", DELAY_S * SECOND, IDLE_S * SECOND)
    return inner, IdleSource(inner, params)


def gives(inner: Scripted, event_s: float) -> None:
    """Puts a row with this event time into the source."""
    inner.next = Polled(ROW, round((event_s - DELAY_S) * SECOND), None)


def test_after_a_pause_the_watermark_follows_the_clock():
    inner, idle = make()
    gives(inner, WALL)
    first = idle.poll(0.0, WALL)
    assert (first.watermark_us, first.next_poll) == ((WALL - DELAY_S) * SECOND, 10.0)
    assert idle.poll(9.0, WALL + 9).watermark_us == (WALL - DELAY_S) * SECOND
    assert idle.poll(10.0, WALL + 10).watermark_us == (WALL - DELAY_S) * SECOND
    later = idle.poll(11.0, WALL + 11)
    assert (later.watermark_us, later.next_poll) == ((WALL + 1 - DELAY_S) * SECOND, 12.0)
    assert idle.poll(12.0, WALL + 12).watermark_us == (WALL + 2 - DELAY_S) * SECOND

    gives(inner, WALL + 12.5)
    assert idle.poll(12.5, WALL + 12.5).watermark_us == round((WALL + 12.5 - DELAY_S) * SECOND), "a row in time sets the watermark again"
    assert idle.poll(22.0, WALL + 22).watermark_us == round((WALL + 12.5 - DELAY_S) * SECOND), "the pause begins again"
    assert idle.dropped_rows == 7


def test_a_last_row_from_long_ago_holds_nothing_back():
    inner, idle = make()
    gives(inner, WALL - 3600)
    assert idle.poll(0.0, WALL).watermark_us == (WALL - 3600 - DELAY_S) * SECOND
    assert idle.poll(10.0, WALL + 10).watermark_us == (WALL - DELAY_S) * SECOND


def test_what_has_never_given_a_row_is_idle_too():
    _, idle = make()
    assert idle.poll(100.0, WALL).watermark_us == WATERMARK_MIN
    assert idle.poll(109.9, WALL + 9.9).watermark_us == WATERMARK_MIN
    assert idle.poll(110.0, WALL + 10).watermark_us == (WALL - DELAY_S) * SECOND


def test_what_could_not_be_asked_was_not_idle():
    inner, idle = make()
    gives(inner, WALL)
    idle.poll(0.0, WALL)
    assert idle.poll(60.0, WALL + 60).watermark_us == (WALL - DELAY_S) * SECOND, "without room downstream nobody polled it for 50 s"
    assert idle.poll(69.0, WALL + 69).watermark_us == (WALL - DELAY_S) * SECOND
    assert idle.poll(70.0, WALL + 70).watermark_us == (WALL + 60 - DELAY_S) * SECOND


def test_the_end_is_the_end():
    inner, idle = make()
    inner.next = Polled(None, WATERMARK_END, None, True)
    assert idle.poll(0.0, WALL) == Polled(None, WATERMARK_END, None, True)


@given(st.lists(st.tuples(st.floats(0, 30), st.booleans()), max_size=40))
@examples(50)
def test_the_watermark_never_goes_back_and_live_rows_are_never_late(steps: list[tuple[float, bool]]):
    """Rows whose event time is their time of arrival are never behind the watermark."""
    inner, idle = make()
    now = watermark_us = 0.0
    for pause_s, row in steps:
        now += pause_s
        if row:
            assert (WALL + now) * SECOND >= watermark_us
            gives(inner, WALL + now)
        polled = idle.poll(now, WALL + now)
        assert polled.watermark_us >= watermark_us or watermark_us == 0
        assert polled.next_poll is not None
        assert polled.next_poll > now
        watermark_us = polled.watermark_us


def test_sources_without_the_option_are_as_they_were():
    assert not isinstance(source("datagen", columns(ts="time"), time="ts"), IdleSource)
    slow = source("datagen", columns(ts="time"), time="ts", idle_us=SECOND, rows_per_second=0.01)
    assert isinstance(slow, IdleSource)
    assert slow.threaded
    assert slow.batch_rows > 0
    slow.poll(0.0, WALL)
    assert [slow.due_rows(now) for now in (99.0, 101.0, 1001.0)] == [0, 1, 10]
