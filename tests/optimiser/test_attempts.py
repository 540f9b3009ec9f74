"""Each step of finding a new host for an operator whose host leaves."""

from collections.abc import Callable

import numpy as np
import pytest

from sbon.errors import LocalProtocolError
from sbon.optimiser.attempts import PAUSE_S_MAX, STRIKES_MAX, TABLE, Attempt, Stage
from sbon.placement.candidates import CandidateReport


def reports(**slots):
    return {name: CandidateReport(name, {}, free) for name, free in slots.items()}


RNG = np.random.default_rng(1)

STEPS: dict[str, Callable[[Attempt], None]] = {
    "ask": Attempt.ask,
    "found": lambda one: one.chosen(("a", "b"), "ab", reports(a=1, b=1)),
    "full": lambda one: one.chosen((), "ab", reports(a=0)),
    "room for some": lambda one: one.chosen((), "ab", reports(a=0, b=1)),
    "set out": Attempt.set_out,
    "hindered": lambda one: one.hindered("a neighbour moves"),
    "refused": lambda one: one.refused_by("a"),
    "a refuses another": lambda one: one.refused_another("a"),
    "b refuses another": lambda one: one.refused_another("b"),
    "called off": lambda one: one.called_off("a", 10.0, RNG),
    "moved": Attempt.moved,
    "nobody": lambda one: one.nobody_left(1, 10.0, RNG),
    "nobody for the group": lambda one: one.nobody_left(2, 10.0, RNG),
}
EVENTS: dict[str, tuple[str, ...]] = {
    "ask": ("ask",),
    "chosen": ("found", "full", "room for some"),
    "set_out": ("set out",),
    "hindered": ("hindered",),
    "refused_by": ("refused",),
    "refused_another": ("a refuses another", "b refuses another"),
    "called_off": ("called off",),
    "moved": ("moved",),
    "nobody_left": ("nobody", "nobody for the group"),
}
"""Steps by the event of the table that they are."""
BOUND = ("ask", "found")
MOVING = (*BOUND, "set out")
THRICE = (*MOVING, *("called off", "set out") * (STRIKES_MAX - 1), "called off")
WAYS: dict[Stage, tuple[str, ...]] = {
    Stage.IDLE: (),
    Stage.ASKING: ("ask",),
    Stage.BOUND: BOUND,
    Stage.MOVING: MOVING,
    Stage.MOVED: (*MOVING, "moved"),
    Stage.GIVEN_UP: ("nobody",),
}
FOLLOWING: list[tuple[tuple[str, ...], Stage, dict[str, object]]] = [
    ((), Stage.IDLE, {}),
    (("ask",), Stage.ASKING, {}),
    (BOUND, Stage.BOUND, {"there": "a"}),
    (("ask", "full"), Stage.IDLE, {"refused": {"a", "b"}}),
    (("ask", "room for some"), Stage.IDLE, {"alone": True, "refused": {"a"}}),
    ((*BOUND, "a refuses another"), Stage.IDLE, {}),
    ((*BOUND, "b refuses another"), Stage.BOUND, {"there": "a"}),
    (MOVING, Stage.MOVING, {"there": "a"}),
    ((*MOVING, "hindered"), Stage.BOUND, {"there": "a", "last": "a neighbour moves"}),
    ((*MOVING, "refused"), Stage.IDLE, {"refused": {"a"}}),
    ((*MOVING, "a refuses another"), Stage.MOVING, {"there": "a"}),
    ((*MOVING, "called off"), Stage.BOUND, {"there": "a", "strikes": 1}),
    (THRICE, Stage.IDLE, {"unlucky": {"a"}, "strikes": STRIKES_MAX}),
    ((*THRICE, "nobody"), Stage.IDLE, {"strikes": STRIKES_MAX}),
    ((*MOVING, "moved"), Stage.MOVED, {"there": "a"}),
    (("nobody",), Stage.GIVEN_UP, {"given_up": "no other agent has room for it"}),
    (("nobody for the group",), Stage.IDLE, {"alone": True}),
]
"""Steps of one attempt, the stage after them, and what else differs from a new attempt."""


def made(*steps: str) -> Attempt:
    attempt = Attempt()
    for step in steps:
        STEPS[step](attempt)
    return attempt


def facts(attempt: Attempt) -> dict[str, object]:
    """Returns what is known of an attempt, except its stage and the pause."""
    names = ("there", "alone", "refused", "unlucky", "strikes", "given_up", "last")
    return {name: getattr(attempt, name) for name in names}


@pytest.mark.parametrize(("steps", "stage", "expected"), FOLLOWING, ids=lambda value: " ".join(value) if isinstance(value, tuple) else "")
def test_what_follows_what(steps: tuple[str, ...], stage: Stage, expected: dict[str, object]) -> None:
    attempt = made(*steps)

    assert attempt.stage is stage
    assert facts(attempt) == {**facts(Attempt()), **expected}
    assert attempt.is_idle(100.0) is (stage is Stage.IDLE)
    assert attempt.may_set_out(100.0) is (stage is Stage.BOUND)


@pytest.mark.parametrize("stage", Stage)
@pytest.mark.parametrize("event", sorted(TABLE.events))
def test_each_event_leads_where_the_table_says_or_is_refused(stage: Stage, event: str) -> None:
    for step in EVENTS[event]:
        attempt = made(*WAYS[stage])
        before = facts(attempt)
        assert attempt.stage is stage
        if TABLE.takes(stage, event):
            STEPS[step](attempt)
            assert attempt.stage in TABLE.rows[stage][event]
        elif event == "refused_another":
            STEPS[step](attempt)
            assert (attempt.stage, facts(attempt)) == (stage, before)
        else:
            with pytest.raises(LocalProtocolError, match="which is no transition"):
                STEPS[step](attempt)
            assert attempt.stage is stage


def test_an_operator_that_a_neighbour_has_kept_waits_before_it_sets_out_again() -> None:
    attempt = made(*MOVING, "called off")

    assert not attempt.may_set_out(10.0)
    assert attempt.may_set_out(10.0 + PAUSE_S_MAX)
    assert not made(*THRICE).is_idle(10.0)


def test_pauses_grow_up_to_a_limit_and_end():
    attempt = Attempt()
    pauses = []
    for _ in range(10):
        if attempt.stage is Stage.IDLE:
            STEPS["ask"](attempt)
            STEPS["found"](attempt)
        attempt.set_out()
        attempt.called_off("a", 0.0, np.random.default_rng(1))
        pauses.append(attempt.not_before_s)

    assert pauses == sorted(pauses)
    assert 0.5 * PAUSE_S_MAX <= pauses[-1] <= PAUSE_S_MAX


def test_what_ended_the_last_move_is_the_reason():
    attempt = Attempt()
    attempt.last = "its move was called off"
    attempt.nobody_left(1, 0.0, np.random.default_rng(1))

    assert attempt.given_up == "its move was called off"
