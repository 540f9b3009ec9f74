"""Batches that sources have promised: how many, which thread makes them, and in which order they are handed on."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from sbon.connectors.interface import Polled
from sbon.engine.prefetching import BATCHES_MAX, MAKING_S_MIN, Fetch, Prefetching
from sbon.execution.figures import Figures
from sbon.execution.life import State
from sbon.execution.polls import Polls
from sbon.ports import ProcessorUse


class Host:
    """Threads whose work the test runs."""

    def __init__(self, workers: int = 2) -> None:
        self.workers = workers
        self.free = 2.0
        self.waiting: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []

    def now(self) -> float:
        return 100.0

    def wall(self) -> float:
        return 1000.0

    def processors(self) -> ProcessorUse:
        return ProcessorUse(1.0, 1.0, self.free)

    def stopwatch(self) -> float:
        return 0.0

    def meter(self) -> Any:
        return SimpleNamespace(lap=lambda rows: 7, end=lambda: None)

    def execute(self, work: Callable[[], Any], done: Callable[[Any], None], *, rows: int, spare: bool = False) -> None:
        assert spare, "prefetching takes spare threads only"
        self.waiting.append((work, done))

    def run(self, number: int) -> None:
        """Runs one piece of the waiting work."""
        work, done = self.waiting[number]
        try:
            outcome = work()
        except Exception as problem:
            outcome = problem
        done(outcome)


class Source:
    """Promises numbered batches, the fourth of which cannot be made."""

    threaded = True

    def __init__(self, batches: int = 100) -> None:
        self.promised, self.batches = 0, batches

    def prefetch(self, now: float, wall: float) -> Callable[[], Polled] | None:
        if self.promised == self.batches:
            return None
        self.promised += 1
        return lambda number=self.promised: self.make(number)

    def make(self, number: int) -> Polled:
        if number == 4:
            raise OSError("no row 4")
        return Polled(None, number, 100.0)


@pytest.fixture
def due() -> list[Any]:
    return []


def worlds(
    due: list[Any], *, workers: int = 2, cost_s: float = 0.01, has_more: bool = True, **attributes: Any
) -> tuple[Host, Any, Prefetching]:
    host = Host(workers)
    figures, polls = Figures(), Polls[Any]()
    figures.step_cost.took(1000, cost_s)
    polls.has_more = has_more
    instance = SimpleNamespace(
        source=Source(), spec=SimpleNamespace(schema=()), state=State.RUNNING, task=None, figures=figures, polls=polls, asked=[]
    )
    vars(instance).update(attributes)
    polling: Any = SimpleNamespace(allow=lambda instance, now, *, ahead: instance.asked.append(ahead))
    prefetching = Prefetching(host, polling, due.append, lambda source: ())  # type: ignore[arg-type]
    prefetching.look(instance)  # type: ignore[arg-type]
    return host, instance, prefetching


@pytest.mark.parametrize(("workers", "batches"), [(1, 0), (2, 3), (3, 4), (64, BATCHES_MAX + 1)])
def test_no_more_is_promised_than_threads_can_make_and_one(due: list[Any], workers: int, batches: int):
    host, instance, prefetching = worlds(due, workers=workers)
    prefetching.look(instance)
    assert len(instance.polls.fetches) == len(host.waiting) == batches
    assert all(instance.asked)


@pytest.mark.parametrize(
    "other",
    [
        {"has_more": False},
        {"state": State.PAUSED},
        {"task": object()},
        {"cost_s": MAKING_S_MIN / 2},
        {"source": SimpleNamespace(threaded=True)},
        {"source": Source(batches=0)},
    ],
    ids=["waits for rows", "is paused", "is being asked", "is cheap", "promises nothing", "has nothing to promise"],
)
def test_nothing_is_promised_by_a_source_that(due: list[Any], other: dict[str, Any]):
    host, instance, _ = worlds(due, **other)
    assert not instance.polls.fetches
    assert not host.waiting


def test_nothing_is_promised_on_a_machine_whose_cores_others_use(due: list[Any]):
    host, instance, prefetching = worlds(due)
    instance.polls.fetches.clear()
    host.free = 1.4
    prefetching.look(instance)
    assert not instance.polls.fetches
    host.free = 1.6
    prefetching.look(instance)
    assert len(instance.polls.fetches) == 3


def test_the_engine_is_told_when_the_batch_whose_turn_it_is_has_been_made(due: list[Any]):
    host, instance, _ = worlds(due)
    host.run(1)
    assert due == []
    assert [fetch.is_made for fetch in instance.polls.fetches] == [False, True, False]
    host.run(0)
    assert due == [instance]
    assert [fetch.polled.watermark_us for fetch in list(instance.polls.fetches)[:2]] == [1, 2]
    assert instance.polls.fetches[0].cpu_ns == 7


def test_a_batch_is_made_once_by_whoever_begins_first(due: list[Any]):
    host, instance, _ = worlds(due)
    fetch: Fetch = instance.polls.fetches.popleft()
    assert fetch.begin(), "no thread was free, so the task makes the batch"
    host.run(0)
    assert not fetch.is_made
    assert due == []
    host.run(1)
    assert not instance.polls.fetches[0].begin()
    assert due == [instance]


def test_what_goes_wrong_is_told_in_its_turn(due: list[Any]):
    host, instance, prefetching = worlds(due, workers=3)
    host.run(3)
    assert due == []
    assert str(instance.polls.fetches[3].problem) == "no row 4"
    for _ in range(3):
        instance.polls.fetches.popleft()
    prefetching.look(instance)
    assert len(instance.polls.fetches) == 4
    assert instance.polls.fetches[0].is_made


def test_what_was_promised_by_a_source_that_has_been_stopped_is_nobodys(due: list[Any]):
    host, instance, _ = worlds(due)
    instance.polls.fetches.clear()
    for number in range(3):
        host.run(number)
    assert due == []
