"""Stand-ins for the collaborators of a protocol role: they record its calls, and the test answers when and how it likes."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from sbon.cost_space.coordinate import Coordinate
from sbon.membership.members import Member, MemberStatus
from sbon.ports import ProcessorUse


class Call(NamedTuple):
    """A call that the role has made."""

    name: str
    given: tuple[Any, ...]
    named: dict[str, Any]

    @property
    def done(self) -> Callable[..., None]:
        """Returns the callback of the call: the last argument that can be called."""
        return next(one for one in reversed([*self.given, *self.named.values()]) if callable(one))


class Recorder:
    """Stands for any narrow interface: attributes that the test gives by name, and methods that record their calls and return None."""

    def __init__(self, **known: Any) -> None:
        self.calls: list[Call] = []
        self.__dict__.update(known)

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("__"):
            raise AttributeError(name)
        return partial(self._note, name)

    def _note(self, name: str, *given: Any, **named: Any) -> None:
        self.calls.append(Call(name, given, named))

    def pop(self, name: str, *first: Any) -> Call:
        """Removes and returns the oldest call of a method with these first arguments."""
        found = next((call for call in self.calls if call.name == name and call.given[: len(first)] == first), None)
        assert found is not None, f"{name}{first} is not among {[(call.name, *call.given[:1]) for call in self.calls]}"
        self.calls.remove(found)
        return found

    def calls_of(self, name: str) -> list[tuple[Any, ...]]:
        """Returns the arguments of all recorded calls of a method, in order."""
        return [call.given for call in self.calls if call.name == name]


class Timer:
    """A call that the host is to make at an instant."""

    def __init__(self, when: float, callback: Callable[[], None]) -> None:
        self.when = when
        self.callback = callback
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class FakeHost:
    """A host whose clock moves only in `wait`, and whose threads work only in `run`."""

    workers = 1

    def __init__(self) -> None:
        self.time = 100.0
        self.rng = np.random.default_rng(1)
        self.timers: list[Timer] = []
        self.work: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []

    def now(self) -> float:
        return self.time

    def wall(self) -> float:
        return 1_000.0 + self.time

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        self.timers.append(Timer(when, callback))
        return self.timers[-1]

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.call_at(self.time, callback)

    def execute(self, work: Callable[[], Any], done: Callable[[Any], None], **_: Any) -> None:
        self.work.append((work, done))

    def stopwatch(self) -> float:
        return 0.0

    def meter(self, **_: Any) -> Recorder:
        return Recorder(lap=lambda rows: 0)

    def processors(self) -> ProcessorUse:
        return ProcessorUse(0.0, 0.0, 1.0)

    @property
    def pending(self) -> list[float]:
        """Returns the instants of all pending calls, in order."""
        return sorted(timer.when for timer in self.timers if not timer.is_cancelled)

    def run(self) -> None:
        """Does all work of the threads, including work that follows from it."""
        while self.work:
            work, done = self.work.pop(0)
            try:
                result = work()
            except Exception as problem:
                result = problem
            done(result)

    def wait(self, seconds: float = 0.0) -> None:
        """Moves the clock, and makes each call that is due at its instant."""
        end = self.time + seconds
        while due := sorted((t for t in self.timers if t.when <= end and not t.is_cancelled), key=lambda timer: timer.when):
            self.timers.remove(due[0])
            self.time = max(self.time, due[0].when)
            due[0].callback()
        self.time = end


class FakeGossip(Recorder):
    """Members as one agent sees them; all are alive and at the origin unless the test changes them."""

    def __init__(self, me: str, *others: str, boot: int = 1) -> None:
        members = {name: member(name, boot=boot) for name in (me, *others)}
        super().__init__(name=me, members=members, machine=Recorder(own=members[me], full_state=lambda: b""))

    def alive_labels(self) -> dict[str, dict[str, str]]:
        return {name: one.labels for name, one in sorted(self.members.items()) if one.status is MemberStatus.ALIVE}

    def coordinates(self) -> dict[str, Coordinate]:
        return {name: one.coordinate for name, one in self.members.items() if one.status is MemberStatus.ALIVE}

    def departure_of(self, node: str) -> MemberStatus | None:
        status = self.members[node].status if node in self.members else MemberStatus.FAILED
        return status if status in (MemberStatus.FAILED, MemberStatus.LEFT) else None

    def address_of(self, node: str) -> tuple[str, int] | None:
        return self.members[node].address if node in self.members else None

    def estimated_rtt_ms(self, a: str, b: str) -> float:
        return 0.0 if a == b else 10.0

    def latency_ms(self, node: str) -> float:
        return self.estimated_rtt_ms(self.name, node) / 2


def member(
    name: str, status: MemberStatus = MemberStatus.ALIVE, *, boot: int = 1, at: tuple[float, float, float] = (0.0, 0.0, 0.0)
) -> Member:
    """Returns a row of the table of members."""
    coordinate = Coordinate(at, 0.0, 0.1)
    return Member(name=name, address=(name, 1), status=status, incarnation=1, boot=boot, labels={}, coordinate=coordinate)
