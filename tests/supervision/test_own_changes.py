"""Queries change their instances and order by themselves: when a change begins, what delays it, and what is logged."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from sbon.errors import PlacementError, QueryError, SbonError
from sbon.optimiser.config import OptimiserConfig
from sbon.planning.reordering import Reordered
from sbon.queries.adapting import Adapting
from sbon.query.plan import Plan
from sbon.supervision.own_changes import REST_S, OwnChanges


class Query:
    """A query and its owner; `refusal` is the owner's answer to a change at present."""

    def __init__(self, running: int, wanted: int, **options: bool) -> None:
        self.now, self.is_changing = 0.0, False
        self.begun: list[tuple[int, Any]] = []
        self.refusal: SbonError | None = None
        self.resizing = SimpleNamespace(running=[running], wanted=[wanted], why="more rows", outlook="")
        self.ordering = SimpleNamespace(better=None, outlook="")
        self.own = OwnChanges()
        plans = SimpleNamespace(own=self.own)
        forecast = SimpleNamespace(resizing=self.resizing, ordering=self.ordering)
        health = SimpleNamespace(healing=SimpleNamespace(plans=plans))
        self.record: Any = SimpleNamespace(id="q", name="q", forecast=forecast, health=health)
        clock: Any = SimpleNamespace(now=lambda: self.now)
        replans: Any = SimpleNamespace(check=self._check, changes=lambda query: self.is_changing, begin=self._begin)
        self.adapting = Adapting(clock, "a", lambda: OptimiserConfig(**options), replans, self._change)

    def _check(self, record: object) -> None:
        if self.refusal is not None:
            raise self.refusal

    def _change(self, record: object, done: Any, *, why: str) -> None:
        self.begun.append((self.resizing.wanted[0], done))

    def _begin(self, record: object, plan: Any, done: Any, why: str) -> None:
        self.begun.append((plan, done))

    def look(self, after_s: float = 1.0) -> int:
        """Looks once; returns how many changes have begun so far."""
        self.now += after_s
        self.adapting.look(self.record)
        return len(self.begun)

    def has(self, running: int, wanted: int) -> None:
        self.resizing.running, self.resizing.wanted = [running], [wanted]


def test_a_query_gets_the_number_that_it_wants_once() -> None:
    query = Query(1, 2)
    assert query.look() == 1
    assert query.resizing.outlook == "it gets them by itself"
    assert query.look() == 1, "the change has begun already"
    query.has(2, 2)
    assert query.look(2 * REST_S) == 1


@pytest.mark.parametrize("options", [{"replan": False}, {"enabled": False}])
def test_it_is_left_to_a_person_where_it_is_switched_off(options: dict[str, bool]) -> None:
    query = Query(1, 2, **options)
    assert query.look() == 0
    assert query.resizing.outlook == ""


@pytest.mark.parametrize(("running", "wanted", "begins"), [(10, 11, 0), (10, 12, 1), (10, 9, 0), (10, 8, 1), (4, 4, 0)])
def test_a_change_has_to_be_worth_it(running: int, wanted: int, begins: int) -> None:
    assert Query(running, wanted).look() == begins


def test_it_rests_before_it_goes_back_but_follows_a_rate_that_rises_on() -> None:
    query = Query(1, 2)
    query.look()
    query.has(2, 4)
    assert query.look() == 2, "a change in the same direction does not wait"
    query.has(4, 2)
    assert query.look() == 2
    assert query.look(REST_S - 2) == 2
    assert query.look() == 3
    query.has(2, 4)
    assert query.look() == 3, "a change back waits in either direction"


def test_it_rests_after_a_change_that_a_person_has_asked_for() -> None:
    query = Query(4, 2)
    query.is_changing = True
    assert query.look() == 0
    query.is_changing = False
    assert query.look() == 0
    assert query.look(REST_S) == 1


def test_it_waits_until_all_of_the_query_runs() -> None:
    query = Query(1, 2)
    query.refusal = PlacementError("q is recovering")
    assert query.look(REST_S) == 0
    query.refusal = None
    assert query.look() == 1


def told(query: Query, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    said: list[str] = []
    log = SimpleNamespace(warning=lambda event, **given: said.append(given["reason"]))
    monkeypatch.setattr(query.adapting, "_log", log)
    return said


def test_a_refusal_for_good_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    query = Query(1, 2)
    said = told(query, monkeypatch)
    query.refusal = QueryError("its plan cannot change: sessions")
    for _ in range(20):
        assert query.look(REST_S / 4) == 0
    assert said == ["its plan cannot change: sessions"]
    assert query.resizing.outlook == "it does not get them by itself: its plan cannot change: sessions"


def test_a_change_that_fails_is_tried_again_later_and_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    query = Query(1, 2)
    said = told(query, monkeypatch)
    problem: SbonError = PlacementError("there is no room")
    for number in range(1, 4):
        assert query.look(REST_S) == number
        query.begun[-1][1](problem)
        assert query.look() == number
    assert said == ["there is no room"]
    query.look(REST_S)
    query.begun[-1][1]({"instances": [2]})
    query.has(2, 2)
    query.look()
    assert query.own.problem == ""


BETTER = Reordered(cast(Plan, "the other order"), "two joins exchanged")


def test_a_query_gets_another_order_once_it_has_the_instances_that_it_wants_and_has_rested() -> None:
    query = Query(1, 2)
    query.ordering.better = BETTER
    query.look()
    query.has(2, 2)
    assert query.look() == 1, "rests after the last change"
    assert query.ordering.outlook == "it gets another one by itself"
    assert query.look(REST_S) == 2
    assert [wanted for wanted, _ in query.begun] == [2, "the other order"]
    assert query.look() == 2, "the change has begun already"
    query.begun[-1][1](PlacementError("there is no room"))
    assert query.look() == 2
    assert query.ordering.outlook == "it does not get another one by itself: there is no room"
    assert query.look(REST_S) == 3


def test_a_query_keeps_its_order_where_changes_are_switched_off_or_no_other_is_better() -> None:
    assert Query(1, 1).look(REST_S) == 0
    query = Query(1, 1, replan=False)
    query.ordering.better = BETTER
    assert query.look(REST_S) == 0
    assert query.ordering.outlook == ""
