"""The life of an operator, step by step: starting, resting, stalling, letting go."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from sbon.connectors.interface import Congested
from sbon.engine.lives import Lives
from sbon.errors import ConnectorError
from sbon.execution.instance import Instance
from sbon.execution.life import Event, State
from sbon.query.params.rowwise import MapParams
from sbon.query.plan import OperatorSpec
from sbon.watermarks import WATERMARK_END


class World:
    """One operator, with the threads and the clock of its host."""

    def __init__(self, state: State = State.RUNNING, source: Any = None, sink: Any = None) -> None:
        self.time = 100.0
        self.soon: list[Callable[[], None]] = []
        self.work: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []
        self.timers: list[Any] = []
        self.polled_at: list[float] = []
        self.ready: list[str] = []
        self.forgotten: list[str] = []
        self.considered = self.failed = self.finished = 0
        self.rests: list[bool] = []
        self.instance = Instance(OperatorSpec("q.1", MapParams(None, None), (), None, None, ""), 0, state)
        self.instance.source, self.instance.sink = source, sink
        polling: Any = SimpleNamespace(at=lambda instance, when: self.polled_at.append(when))
        ready: Any = SimpleNamespace(remove=lambda operator: self.ready.append(operator))
        budget: Any = SimpleNamespace(forget=self.forgotten.append)
        host: Any = self
        self.lives = Lives(host, polling, budget, ready, self.consider, self.fail, self.finish)

    # methods of the host

    def now(self) -> float:
        return self.time

    def call_soon(self, call: Callable[[], None]) -> None:
        self.soon.append(call)

    def call_at(self, when: float, call: Callable[[], None]) -> Any:
        timer = SimpleNamespace(when=when, call=call, cancel=lambda: self.timers.remove(timer))
        self.timers.append(timer)
        return timer

    def execute(self, work: Callable[[], Any], done: Callable[[Any], None], *, rows: int) -> None:
        self.work.append((work, done))

    def turn(self) -> None:
        due, self.soon = self.soon, []
        for call in due:
            call()

    def run(self) -> None:
        """Does the work that waits for a thread."""
        waiting, self.work = self.work, []
        for work, done in waiting:
            try:
                result = work()
            except Exception as problem:
                result = problem
            done(result)

    # methods of its scheduler

    def consider(self, instance: Instance) -> None:
        self.considered += 1

    def fail(self, instance: Instance) -> None:
        self.failed += 1

    def finish(self, instance: Instance) -> None:
        self.finished += 1

    @property
    def state(self) -> State:
        return self.instance.state

    def on(self, event: Event) -> None:
        self.lives.on(self.instance, event)

    def rest(self) -> None:
        self.lives.rest(self.instance, self.rests.append)


class Sink:
    """A sink that records how it is closed."""

    def __init__(self, problem: Exception | None = None) -> None:
        self.problem = problem
        self.calls: list[str] = []

    def close(self) -> None:
        self.calls.append("close")

    def abandon(self) -> None:
        self.calls.append("abandon")


class ResultSink(Sink):
    """A sink that puts its result into place at the end."""

    def finish(self) -> None:
        self.calls.append("finish")
        if self.problem is not None:
            raise self.problem


def source(problem: Exception | None = None) -> Any:
    def start(ready: Callable[[], None]) -> None:
        if problem is not None:
            raise problem

    stopped: list[int] = []
    return SimpleNamespace(start=start, stop=lambda: stopped.append(1), stopped=stopped)


def test_a_source_that_starts_is_polled_and_an_operator_takes_up_work():
    world = World(State.BUILDING, source=source())
    world.on(Event.BUILT)
    assert (world.state, world.polled_at, world.considered) == (State.RUNNING, [100.0], 0)
    world = World(State.BUILDING)
    world.on(Event.BUILT)
    assert (world.state, world.polled_at, world.considered) == (State.RUNNING, [], 1)


def test_a_source_that_cannot_start_has_failed_and_is_closed():
    world = World(State.BUILDING, source=source(OSError("no such thing")))
    world.on(Event.BUILT)
    assert (world.state, world.instance.reason, world.failed) == (State.FAILED, "OSError: no such thing", 1)
    assert world.instance.source.stopped == [1]


def test_an_idle_operator_rests_in_the_next_turn_and_a_busy_one_behind_its_batch():
    world = World()
    world.rest()
    assert world.rests == []
    world.turn()
    assert (world.state, world.rests) == (State.PAUSED, [True])

    world = World()
    world.instance.busy = True
    world.rest()
    world.turn()
    assert (world.state, world.rests, world.considered) == (State.RESTING, [], 1)
    world.instance.busy = False
    world.lives.came_back(world.instance)
    assert (world.state, world.rests) == (State.PAUSED, [True])


def test_what_cannot_rest_says_so_in_the_next_turn():
    world = World(State.STALLED)
    world.rest()
    assert world.rests == []
    world.turn()
    assert (world.state, world.rests) == (State.STALLED, [False])


@pytest.mark.parametrize("event", [Event.GO_ON, Event.DESTROY, Event.FAULT])
def test_whoever_asked_for_rest_is_told_once_that_it_is_called_off(event: Event):
    world = World()
    world.rest()
    world.on(event)
    world.turn()
    world.turn()
    assert world.rests == [False]
    assert world.state is {Event.GO_ON: State.RUNNING, Event.DESTROY: State.GONE, Event.FAULT: State.FAILED}[event]


def test_a_second_rest_after_one_that_was_called_off_is_answered_by_its_own():
    world = World()
    world.rest()
    world.on(Event.GO_ON)
    second: list[bool] = []
    world.lives.rest(world.instance, second.append)
    world.turn()
    assert (world.rests, second) == ([False], [True])


def test_files_are_closed_when_the_thread_that_has_the_operator_is_done():
    sink = Sink()
    world = World(sink=sink)
    world.instance.task = world.instance.closing = task = SimpleNamespace()  # type: ignore[assignment]
    world.on(Event.DESTROY)
    world.run()
    assert (world.state, sink.calls, world.instance.closing) == (State.GONE, [], task)
    world.instance.task = None
    world.lives.came_back(world.instance)
    world.run()
    assert sink.calls == ["close"]


@pytest.mark.parametrize("is_busy", [False, True])
def test_a_sink_that_is_made_again_opens_its_file_when_its_former_copy_has_closed_it(is_busy: bool):
    sink, opened = Sink(), []
    world = World(sink=sink)
    world.instance.task = task = SimpleNamespace() if is_busy else None  # type: ignore[assignment]
    world.lives.when_closed("q.1", lambda: opened.append("while it runs"))
    world.on(Event.DESTROY)
    world.lives.when_closed("q.1", lambda: opened.append("first"))
    assert opened == ["while it runs"]
    world.lives.when_closed("q.1", lambda: opened.append("second"))
    assert opened == ["while it runs", "first"], "the first copy has ended, too, and opens nothing"
    if task is not None:
        world.run()
        assert (sink.calls, opened[2:]) == ([], []), "a thread still writes"
        world.instance.task = None
        world.lives.came_back(world.instance)
    world.run()
    assert (sink.calls, opened[2:]) == (["close"], ["second"])
    world.lives.when_closed("q.1", lambda: opened.append("third"))
    assert opened[3:] == ["third"]


def test_a_fault_abandons_what_is_not_complete_and_frees_the_state_on_a_thread():
    sink = Sink()
    world = World(sink=sink)
    operator: Any = SimpleNamespace(late_rows=3, misfits=None)
    world.instance.operator, world.instance.busy = operator, True
    world.lives.fail(world.instance, "the disk is gone")
    assert (world.state, world.instance.reason, world.failed) == (State.FAILED, "the disk is gone", 1)
    assert (world.instance.operator, world.instance.busy, world.forgotten, world.ready) == (None, False, ["q.1"], ["q.1", "q.1"])
    world.run()
    assert sink.calls == ["abandon"]
    assert world.instance.figures.late_rows == 3


def test_a_fault_says_what_remains_of_a_sink():
    sink: Any = Sink()
    sink.remains = "part of the file is left"
    world = World(sink=sink)
    world.lives.fail(world.instance, "the disk is full")
    assert world.instance.reason == "the disk is full; part of the file is left"


def test_a_sink_whose_far_end_takes_nothing_offers_again_after_its_pause():
    world = World(sink=Sink())
    world.lives.went_wrong(world.instance, Congested("nobody reads", 2.0))
    assert (world.state, world.instance.reason, world.instance.waiting.blocked) == (State.STALLED, "nobody reads", True)
    (timer,) = world.timers
    assert timer.when == 102.0
    timer.call()
    assert (world.state, world.considered) == (State.RUNNING, 1)


def test_a_stall_of_what_has_gone_meanwhile_changes_nothing():
    world = World(sink=Sink())
    world.on(Event.DESTROY)
    world.lives.went_wrong(world.instance, Congested("nobody reads", 2.0))
    assert (world.state, world.timers) == (State.GONE, [])


def test_errors_of_ours_are_told_as_they_are_and_others_by_their_kind():
    world = World()
    world.lives.went_wrong(world.instance, ConnectorError("no such file"))
    assert world.instance.reason == "no such file"
    world = World()
    world.lives.went_wrong(world.instance, ValueError("oh"))
    assert world.instance.reason == "ValueError: oh"


def test_a_result_is_put_in_its_place_before_the_sink_has_finished():
    sink = ResultSink()
    world = World(sink=sink)
    world.instance.watermark_us = WATERMARK_END
    world.lives.ended(world.instance)
    assert (world.state, world.finished) == (State.FINISHING, 0)
    world.run()
    assert (world.state, world.finished, sink.calls) == (State.FINISHED, 1, ["finish"])


def test_a_result_whose_place_is_taken_waits_and_is_put_there_again():
    sink = ResultSink(Congested("the disk is full", 1.0))
    world = World(sink=sink)
    world.instance.watermark_us = WATERMARK_END
    world.lives.ended(world.instance)
    world.run()
    assert world.state is State.STALLED
    sink.problem = None
    world.timers[0].call()
    assert world.state is State.FINISHING
    world.run()
    assert (world.state, world.finished) == (State.FINISHED, 1)


def test_a_sink_that_is_dropped_while_its_result_is_put_in_place_is_closed_after_that():
    sink = ResultSink()
    world = World(sink=sink)
    world.lives.ended(world.instance)
    world.on(Event.DESTROY)
    assert world.state is State.GONE
    world.run()
    world.run()
    assert (sink.calls, world.finished) == (["finish", "close"], 0)


def test_without_a_result_it_has_finished_at_once():
    world = World(sink=Sink())
    world.lives.ended(world.instance)
    assert (world.state, world.finished) == (State.FINISHED, 1)
