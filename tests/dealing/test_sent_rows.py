"""Rows that an instance has not reported as taken, with their open turns, compared with a plain list of rows."""

from hypothesis import given
from hypothesis import strategies as st

from sbon.dealing.sent_rows import PIECES_MAX, SentRows

STEPS = st.lists(
    st.tuples(
        st.lists(st.tuples(st.integers(1, 5), st.integers(1, 9)), max_size=4),
        st.integers(0, 12),
        st.booleans(),
    ),
    max_size=12,
)


@given(STEPS)
def test_reports_take_the_oldest_rows(steps: list[tuple[list[tuple[int, int]], int, bool]]) -> None:
    """An instance takes rows in their order; those sent since the report before may still be on their way."""
    sent, out, since, taken = SentRows(), list[int](), list[int](), 0
    sent.report(0, 0)
    for batches, takes, asks in steps:
        for rows, turns in batches:
            sent.add(rows, turns)
            out += [turns] * rows
        count = min(takes, len(out))
        since, out, taken = since + out[:count], out[count:], taken + count
        sent.report(taken, len(out))
        assert (sent.rows, sent.turns) == (len(out), sum(out))
        if asks:
            assert sent.mean_turns() == (sum(since) / len(since) if since else None)
            since = []


def test_rows_that_wait_and_rows_on_their_way_stay() -> None:
    sent = SentRows()
    sent.report(100, 0)  # of a former copy
    sent.add(10, 2)
    sent.report(100, 4)  # the other six are on their way
    assert (sent.rows, sent.turns) == (10, 20)
    sent.add(5, 8)
    sent.report(103, 4)
    assert (sent.rows, sent.turns) == (9, 2 * 4 + 8 * 5), "three were taken, and of the rest at most four and the five new ones are there"
    assert sent.mean_turns() == 2


def test_at_the_first_report_only_rows_that_wait_are_left() -> None:
    sent = SentRows()
    sent.add(10, 2)
    sent.add(5, 6)
    sent.report(400, 4)
    assert (sent.rows, sent.turns) == (4, 24)
    sent.add(3, 1)
    sent.report(404, 3)
    assert (sent.rows, sent.turns) == (3, 3)


def test_an_instance_that_was_made_again_has_no_rows() -> None:
    sent = SentRows()
    sent.report(50, 0)
    sent.add(10, 2)
    sent.report(0, 0)
    assert (sent.rows, sent.turns, sent.mean_turns()) == (0, 0, None)


def test_rows_of_an_instance_that_never_reports_are_forgotten() -> None:
    sent = SentRows()
    for _ in range(PIECES_MAX + 10):
        sent.add(2, 3)
    assert (sent.rows, sent.turns) == (2 * PIECES_MAX, 6 * PIECES_MAX)
