"""A host dies permanently while other faults happen: exactly the rows that each query's owner counts as lost are missing."""

from datetime import datetime, timedelta

import pytest

from sbon.supervision.account import Account
from sbon.supervision.continuation import Continuation
from sbon.supervision.recovery import Recovered
from sbon.watermarks import WATERMARK_END
from sbon_testbed.exactly_once.death import left_out, rows_lost_from, state_until
from sbon_testbed.exactly_once.queries import Row
from sbon_testbed.exactly_once.story import run_seed
from sbon_testbed.simulator.checkers.crashes import unaccounted
from tests.examples import seeds

US = 1_000_000
ROWS: list[Row] = [(datetime(2026, 1, 1, 0, 0, second), key) for second in range(5) for key in (1, 2)]


SHARED = (("windows", "union"), ("union", "windows"))
"""Queries of a story, in the order in which they start."""
LONG = ([4, 7, 11], [19, 32, 46], [65, 74, 100], [106, 107, 144], [158, 160, 164], [177, 181, 202])


@pytest.mark.parametrize(("numbers", "chosen"), seeds([([11], SHARED[0])], [(n, c) for n in LONG for c in SHARED]))
def test_what_is_missing_is_what_the_owner_counts(numbers: list[int], chosen: tuple[str, str]) -> None:
    outcomes = [run_seed(seed, chosen) for seed in numbers]
    assert [outcome.problem for outcome in outcomes if outcome.problem] == []
    assert sum(outcome.deaths for outcome in outcomes) > 0, "no host has died"


@pytest.mark.parametrize("seed", seeds([], [19, 20, 25, 29]))
def test_an_operator_that_was_about_to_move_to_the_dead_host_is_made_again(seed: int) -> None:
    """The owner hears of the move only after the host has been declared failed."""
    outcome = run_seed(seed)
    assert outcome.problem == ""
    assert outcome.deaths == 1


@pytest.mark.parametrize(("seed", "deaths"), seeds([], [(15, 1), (996, 1)]))
def test_rows_that_were_lost_before_a_late_query_has_all_rows_are_not_looked_for_later(seed: int, deaths: int) -> None:
    outcome = run_seed(seed)
    assert (outcome.problem, outcome.deaths) == ("", deaths)


@pytest.mark.soak
def test_an_operator_that_is_made_again_while_a_shared_one_that_feeds_it_cannot_be_asked_can_read_its_rows() -> None:
    """Its home takes the columns of these rows from its own plan."""
    outcome = run_seed(1589)
    assert (outcome.problem, outcome.deaths) == ("", 1)


def account_of(*lost: Continuation) -> Account:
    account = Account()
    for number, go_on in enumerate(lost):
        account.add(Recovered({f"q.{number}": "node"}, number, (), {f"q.{number}": go_on}, 1, 0.1))
    return account


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([*ROWS[:4], *ROWS[6:]], ""),
        (ROWS, "0 windows are missing"),
        ([*ROWS[:2], *ROWS[6:]], "2 windows are missing"),
        ([*ROWS[:5], *ROWS[6:]], "a window lacks some of its rows"),
        ([*ROWS, ROWS[0]], "1 rows that one node does not give"),
    ],
)
def test_windows_that_are_missing_and_not_said_to_be_or_the_reverse_are_found(rows: list[Row], problem: str) -> None:
    found = left_out(rows, ROWS, account_of(Continuation(windows=1)))
    assert problem in found
    assert bool(problem) == bool(found)


@pytest.mark.parametrize(
    ("rows", "problem"),
    [(ROWS[2:], ""), (ROWS, "lacks 0 rows"), (ROWS[3:], "lacks 3 rows"), ([*ROWS[3:], ROWS[3]], "has rows that one node does not give")],
)
def test_rows_that_are_missing_and_not_counted_or_the_reverse_are_found(rows: list[Row], problem: str) -> None:
    found = unaccounted(rows, ROWS, account_of(Continuation(lost_rows={"q.0>q.1:0": 2})))
    assert problem in found
    assert bool(problem) == bool(found)


def test_rows_that_were_lost_before_a_query_has_all_rows_need_not_be_missing_later() -> None:
    lost = Continuation(lost_rows={"q.0>q.1:0": 2}, watermark_out_us=int((ROWS[0][0] - datetime(1970, 1, 1)).total_seconds() * US))
    assert rows_lost_from(account_of(lost, Continuation())) == ROWS[0][0]
    assert rows_lost_from(account_of(lost, Continuation(lost_rows={"q.0>q.1:0": 1}))) == datetime.min
    assert rows_lost_from(account_of(Continuation())) == datetime.max
    assert unaccounted(ROWS[1:], ROWS, account_of(lost), whole=False) == ""
    assert "lacks 3 rows" in unaccounted(ROWS[3:], ROWS, account_of(lost), whole=False)
    assert "does not give" in unaccounted([*ROWS, ROWS[0]], ROWS, account_of(lost), whole=False)


def test_until_when_states_lack_rows_is_known_if_nothing_else_is_lost() -> None:
    one, other = Continuation(state_until_us=5 * US), Continuation(state_until_us=7 * US)
    assert state_until(account_of(one, other)) == datetime(1970, 1, 1) + timedelta(seconds=7)
    assert state_until(account_of()) is None
    assert state_until(account_of(one, Continuation(state_until_us=WATERMARK_END))) is None
    assert state_until(account_of(one, Continuation(lost_rows={"q.1>q.2:0": 3}))) is None
