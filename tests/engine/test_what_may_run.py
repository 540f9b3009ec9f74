"""Operators enter the queue of ready operators, and run on when messages of others give them room."""

from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from sbon.delivery.outgoing import Outgoing
from sbon.engine.execution import Execution
from sbon.execution.life import State


class Ready:
    """The queue, as a set of names."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def push(self, name: str, urgency_s: float) -> None:
        self.names.add(name)

    def remove(self, name: str) -> None:
        self.names.discard(name)


def execution(processed: list[Any]) -> Any:
    flow = SimpleNamespace(processed=lambda incoming, batch: processed.append(batch))
    made = SimpleNamespace(_ready=Ready(), _flow=flow, _config=SimpleNamespace(ahead_rows_max=1))
    made._may_end_its_batch = lambda instance: Execution._may_end_its_batch(made, instance)
    return made


def instance(state: State, *, busy: bool = False, has_credit: bool = True, batches: tuple[str, ...] = ("batch",)) -> Any:
    incoming = SimpleNamespace(queue=deque(batches))
    waiting = SimpleNamespace(
        earliest=lambda begun: incoming, earliest_s=1.0, blocked=False, misses=None, dequeue=lambda one: one.queue.popleft()
    )
    return SimpleNamespace(
        id="q.1", operator=None, source=None, state=state, busy=busy, has_credit=has_credit, task=None, closing=None,
        waiting=waiting, inputs={"a": incoming}, users=SimpleNamespace(urgent_within_s=1.0),
    )  # fmt: skip


@pytest.mark.parametrize("has_credit", [True, False])
@pytest.mark.parametrize("state", [State.RUNNING, State.RESTING])
def test_the_rest_of_a_batch_needs_credit_also_where_the_operator_is_about_to_move(state: State, has_credit: bool) -> None:
    made, one = execution([]), instance(state, busy=True, has_credit=has_credit)
    Execution._look_at(made, one)
    assert made._ready.names == ({"q.1"} if has_credit else set())
    assert one.waiting.blocked is not has_credit


def test_what_a_finished_operator_gets_once_more_is_acknowledged() -> None:
    """The source was made again for another consumer, and would wait for ever for credit of the finished operator."""
    processed: list[Any] = []
    Execution._look_at(execution(processed), instance(State.FINISHED, batches=("first", "second")))
    assert processed == ["first", "second"]


@pytest.mark.parametrize("blocked", [True, False])
def test_an_operator_that_waits_for_room_runs_on_when_what_it_gave_is_safe(blocked: bool) -> None:
    one, output, told = instance(State.RUNNING), object(), list[Any]()
    one.waiting.blocked = blocked
    outgoing: Any = SimpleNamespace(
        _noted=lambda message: (one, output), _events=SimpleNamespace(runnable=told.append), transmit=told.append
    )
    Outgoing.safe_here(outgoing, SimpleNamespace())  # type: ignore[arg-type]
    assert told == ([output, one] if blocked else [])
