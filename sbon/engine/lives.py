"""Carries out the actions of operators' lives: starts, pauses and stops operators, and closes their files and sockets.

`sbon.execution.life` decides; `sbon.engine.execution` owns this, and runs the operators.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from sbon.connectors.interface import Congested
from sbon.engine.polling import Polling
from sbon.errors import SbonError, StateFullError
from sbon.execution.instance import Instance
from sbon.execution.life import Do, Event, State
from sbon.ports import Executor
from sbon.scheduling import EarliestStimulusFirst
from sbon.state_budget import StateBudget
from sbon.types import OperatorId


class Lives:
    """Lives of the operators of this host.

    Parameters
    ----------
    ready : operators that are ready to run
    consider : reconsiders whether an operator can run
    failed, finished : called when an operator has failed or finished
    """

    def __init__(
        self,
        host: Executor,
        polling: Polling,
        budget: StateBudget,
        ready: EarliestStimulusFirst[OperatorId],
        consider: Callable[[Instance], None],
        failed: Callable[[Instance], None],
        finished: Callable[[Instance], None],
    ) -> None:
        self._host = host
        self._polling = polling
        self._budget = budget
        self._ready = ready
        self._consider = consider
        self._failed = failed
        self._finished = finished
        self._resting: dict[OperatorId, Callable[[bool], None]] = {}
        """Callbacks to call when an operator rests."""
        self._afterwards: dict[Instance, list[Do]] = {}
        """Actions to carry out when the thread that runs an operator is done."""
        self._closing: dict[OperatorId, Instance] = {}
        """The latest copy of a sink that has ended and may still be writing or closing its file."""
        self._openings: dict[OperatorId, Callable[[], None]] = {}
        """Calls to make when that copy has closed its file."""

    def on(self, instance: Instance, event: Event, reason: str = "") -> None:
        """Reports an event to the life of an operator, and carries out the resulting actions.

        Raises
        ------
        LocalProtocolError
            The operator's state does not allow the event.
        """
        for what in instance.on(event, ended=instance.ended, reason=reason):
            self._carry_out(instance, what)

    def rest(self, instance: Instance, done: Callable[[bool], None]) -> None:
        """Lets an operator finish its present batch and begin no other. Calls `done(True)` when it rests, or `done(False)` if it cannot."""
        if instance.allows(Event.REST):
            self._resting[instance.id] = done
            self.on(instance, Event.REST)
        else:
            self._host.call_soon(lambda: done(False))

    def when_closed(self, operator: OperatorId, then: Callable[[], None]) -> None:
        """Calls `then` once the earlier copy of a sink has closed its file; at once if there is none. If another call waits already for
        that, it is made now: its copy has ended, too."""
        if operator not in self._closing:
            then()
            return
        earlier = self._openings.pop(operator, None)
        self._openings[operator] = then
        if earlier is not None:
            earlier()

    def _closed(self, instance: Instance) -> None:
        if self._closing.get(instance.id) is instance:
            del self._closing[instance.id]
            if (then := self._openings.pop(instance.id, None)) is not None:
                then()

    def fail(self, instance: Instance, reason: str) -> None:
        """Fails an operator; its input stays unacknowledged."""
        remains = getattr(instance.sink, "remains", "")
        self.on(instance, Event.FAULT, f"{reason}; {remains}" if remains else reason)

    def _carry_out(self, instance: Instance, what: Do) -> None:
        match what:
            case Do.START:
                self._start(instance)
            case Do.TAKE_UP:
                self._consider(instance)
            case Do.FINISH_BATCH:
                self._finish_batch(instance)
            case Do.TELL_RESTS:
                self._resting.pop(instance.id)(True)
            case Do.TELL_CALLED_OFF:
                self._host.call_soon(partial(self._resting.pop(instance.id), False))
            case Do.PUT_IN_PLACE:
                self._put_in_place(instance)
            case Do.LET_GO | Do.ABANDON | Do.FREE:
                self._stop(instance)
                if instance.sink is not None and what is not Do.FREE:
                    self._closing[instance.id] = instance
                if instance.task is not None:
                    self._afterwards.setdefault(instance, []).append(what)
                elif what is Do.FREE:
                    self._free_state(instance)
                else:
                    self.let_go(instance, abandon=what is Do.ABANDON)
            case Do.LET_GO_LATER:
                self._stop(instance)  # `_put_in_place` lets go
                self._closing[instance.id] = instance
            case Do.TELL_FINISHED:
                self._finished(instance)
            case Do.TELL_FAILED:
                self._failed(instance)

    def _start(self, instance: Instance) -> None:
        if instance.source is None:
            self._consider(instance)
            return
        try:
            instance.source.start(lambda: self._polling.at(instance, self._host.now()))
        except Exception as problem:  # a connector may raise anything: report it
            self.went_wrong(instance, problem)
            return
        self._polling.at(instance, self._host.now())

    def _finish_batch(self, instance: Instance) -> None:
        """Processes the rest of a batch, if there is one; the operator rests at the earliest in the next turn of the event loop."""
        done = self._resting[instance.id]

        def idle() -> None:
            if self._resting.get(instance.id) is done and not instance.busy:
                self.on(instance, Event.IDLE)

        self._ready.remove(instance.id)
        if instance.busy:
            self._consider(instance)
        else:
            self._host.call_soon(idle)

    def _stop(self, instance: Instance) -> None:
        """Cancels the timer of an operator, and drops its promised batches and the rest of a batch in slices."""
        self._ready.remove(instance.id)
        instance.polls.fetches.clear()
        if instance.timer is not None:
            instance.timer.cancel()
            instance.timer = None
        if instance.task is None:
            instance.busy, instance.closing = False, None  # drops the rest of a batch in slices

    def came_back(self, instance: Instance) -> None:
        """Carries out the actions that had to wait until a thread was done with an operator."""
        for what in self._afterwards.pop(instance, ()):
            self._carry_out(instance, what)
        if instance.state is State.RESTING:
            self.on(instance, Event.IDLE)

    def let_go(self, instance: Instance, *, abandon: bool = False) -> None:
        """Closes the files and sockets of an operator, and frees its state. With `abandon`, a sink removes incomplete output."""
        if instance.operator is not None and not abandon:
            self._free_state(instance)
        if instance.source is not None:
            instance.source.stop()
        if instance.sink is not None:
            close = getattr(instance.sink, "abandon", instance.sink.close) if abandon else instance.sink.close
            self._host.execute(close, lambda result: self._closed(instance), rows=0)

    def _free_state(self, instance: Instance) -> None:
        """Frees an operator's state on an executor thread, because a large state takes long."""
        self._budget.forget(instance.id)
        gone = [instance.drop_operator()]
        self._host.execute(gone.clear, _ignored, rows=0)

    def went_wrong(self, instance: Instance, problem: BaseException) -> None:
        """Handles an exception: stalls a sink whose receiver takes nothing or an operator whose disk is full, and fails any other."""
        if isinstance(problem, Congested | StateFullError):
            self._stall(instance, problem)
            return
        self.fail(instance, str(problem) if isinstance(problem, SbonError) else f"{type(problem).__name__}: {problem}")

    def _stall(self, instance: Instance, problem: Congested | StateFullError) -> None:
        """Stalls an operator whose receiver or disk is full, for the pause that the problem names. No row is dropped."""
        if not instance.allows(Event.NOT_TAKEN):
            return
        self.on(instance, Event.NOT_TAKEN, str(problem))
        instance.waiting.blocked = True

        def again() -> None:
            if instance.allows(Event.OFFER):
                self.on(instance, Event.OFFER)

        instance.timer = self._host.call_at(self._host.now() + problem.retry_after_s, again)

    def ended(self, instance: Instance) -> None:
        """Finishes an operator that has processed all its input. A sink with a `finish` method runs that first."""
        self.on(instance, Event.ENDED if getattr(instance.sink, "finish", None) is None else Event.RESULT_DUE)

    def _put_in_place(self, instance: Instance) -> None:
        finish: Any = getattr(instance.sink, "finish", None)

        def done(result: object) -> None:
            if instance.state is State.GONE:
                self.let_go(instance)
            elif isinstance(result, BaseException):
                self.went_wrong(instance, result)
            elif instance.allows(Event.IN_PLACE):
                self.on(instance, Event.IN_PLACE)

        self._host.execute(finish, done, rows=0)


def _ignored(result: object) -> None:
    """Ignores the result: a sink that could not be closed has been reported as failed already."""
