"""Stand-ins for what a protocol role acts through: they note what the role asks for, and the test answers when and how it likes."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from sbon.cost_space.coordinate import Coordinate
from sbon.membership.members import Member, MemberStatus
from sbon.ports import ProcessorUse


class Call(NamedTuple):
    """One call of a method that the role has made."""

    name: str
    given: tuple[Any, ...]
    named: dict[str, Any]

    @property
    def done(self) -> Callable[..., None]:
        """The callback that the role waits for: the last argument that can be called."""
        return next(one for one in reversed([*self.given, *self.named.values()]) if callable(one))


class Recorder:
    """Any narrow interface. What the test gives by name is there; every other method notes its calls and returns None."""

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
        """Takes away the oldest call of a method whose first arguments are these."""
        found = next((call for call in self.calls if call.name == name and call.given[: len(first)] == first), None)
        assert found is not None, f"{name}{first} is not among {[(call.name, *call.given[:1]) for call in self.calls]}"
        self.calls.remove(found)
        return found

    def calls_of(self, name: str) -> list[tuple[Any, ...]]:
        """Arguments of all calls of a method that are still there, in order."""
        return [call.given for call in self.calls if call.name == name]


class Timer:
    """A call that the machine is to make."""

    def __init__(self, when: float, callback: Callable[[], None]) -> None:
        self.when = when
        self.callback = callback
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class FakeHost:
    """A machine whose clock stands still until the test moves it, and whose threads work when the test says so."""

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
        """Times at which calls are to be made."""
        return sorted(timer.when for timer in self.timers if not timer.is_cancelled)

    def run(self) -> None:
        """Does all work of the threads, and what follows of it."""
        while self.work:
            work, done = self.work.pop(0)
            try:
                result = work()
            except Exception as problem:
                result = problem
            done(result)

    def wait(self, seconds: float = 0.0) -> None:
        """Moves the clock, and makes the calls that are due on the way, each at its time."""
        end = self.time + seconds
        while due := sorted((t for t in self.timers if t.when <= end and not t.is_cancelled), key=lambda timer: timer.when):
            self.timers.remove(due[0])
            self.time = max(self.time, due[0].when)
            due[0].callback()
        self.time = end


class FakeGossip(Recorder):
    """Members as one agent sees them; all live at the origin unless the test says otherwise."""

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
    """A row of the table of members."""
    coordinate = Coordinate(at, 0.0, 0.1)
    return Member(name=name, address=(name, 1), status=status, incarnation=1, boot=boot, labels={}, coordinate=coordinate)
