"""A shell carries out the actions of its machine, in order, and wakes the machine when it asks for it."""

from collections.abc import Callable

from sbon.shell import Shell


class Timer:
    def __init__(self, host: "Host", when: float, call: Callable[[], None]) -> None:
        self.host, self.when, self.call = host, when, call

    def cancel(self) -> None:
        self.host.timers.remove(self)


class Host:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.time = 0.0
        self.timers: list[Timer] = []
        self.made = 0

    def now(self) -> float:
        return self.time

    def call_at(self, when: float, call: Callable[[], None]) -> Timer:
        self.made += 1
        self.timers.append(Timer(self, when, call))
        return self.timers[-1]

    def run(self, until: float) -> None:
        while due := [timer for timer in self.timers if timer.when <= until]:
            first = min(due, key=lambda timer: timer.when)
            self.timers.remove(first)
            self.time = first.when
            first.call()


class Clock:
    """A machine that wants to be woken every second, or not at all."""

    def __init__(self) -> None:
        self.at: float | None = 1.0

    def wake(self, now: float) -> list[str]:
        self.at = now + 1.0
        return [f"tick at {now:g}"]

    def next_wake(self) -> float | None:
        return self.at


def test_actions_are_carried_out_and_the_machine_is_woken_as_it_asks():
    host, machine, done = Host(), Clock(), list[str]()
    shell = Shell(host, machine, done.append)  # type: ignore[arg-type]
    shell.do(["one", "two"])
    host.run(2.5)
    assert done == ["one", "two", "tick at 1", "tick at 2"]

    machine.at = None
    shell.do([])
    assert host.timers == []


def test_a_timer_is_made_anew_only_where_the_time_has_changed():
    host, machine = Host(), Clock()
    shell = Shell(host, machine, lambda action: None)  # type: ignore[arg-type]
    for _ in range(5):
        shell.do([])
    assert (host.made, len(host.timers)) == (1, 1)
    machine.at = 0.5
    shell.do([])
    assert (host.made, [timer.when for timer in host.timers]) == (2, [0.5])


def test_what_happens_within_an_action_is_carried_out_at_once():
    host, machine, done = Host(), Clock(), list[str]()

    def perform(action: str) -> None:
        done.append(action)
        if action == "outer":
            machine.at = None
            shell.do(["inner"])

    shell = Shell(host, machine, perform)  # type: ignore[arg-type]
    shell.do(["outer", "after"])
    assert done == ["outer", "inner", "after"]
    assert host.timers == []


def test_a_closed_shell_wakes_nothing():
    host, machine, done = Host(), Clock(), list[str]()
    shell = Shell(host, machine, done.append)  # type: ignore[arg-type]
    shell.do([])
    shell.close()
    shell.do(["still carried out"])
    host.run(10.0)
    assert done == ["still carried out"]
