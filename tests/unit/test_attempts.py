"""Each step of finding a new host for an operator whose host leaves."""

import numpy as np
import pytest

from sbon.optimiser.attempts import PAUSE_S_MAX, STRIKES_MAX, Attempt
from sbon.placement.candidates import CandidateReport


def reports(**slots):
    return {name: CandidateReport(name, {}, free) for name, free in slots.items()}


def made(*steps):
    attempt = Attempt()
    for step in steps:
        STEPS[step](attempt, np.random.default_rng(1))
    return attempt


STEPS = {
    "ask": lambda one, rng: setattr(one, "asking", True),
    "found": lambda one, rng: one.chosen(("a", "b"), "ab", reports(a=1, b=1)),
    "full": lambda one, rng: one.chosen((), "ab", reports(a=0)),
    "room for some": lambda one, rng: one.chosen((), "ab", reports(a=0, b=1)),
    "refused": lambda one, rng: one.refused_by("a"),
    "called off": lambda one, rng: one.called_off("a", 10.0, rng),
    "nobody": lambda one, rng: one.nobody_left(1, 10.0, rng),
    "nobody for the group": lambda one, rng: one.nobody_left(2, 10.0, rng),
}
TABLE = [
    ((), {"idle": True}),
    (("ask",), {"idle": False, "asking": True}),
    (("ask", "found"), {"idle": False, "there": "a"}),
    (("ask", "full"), {"idle": True, "refused": {"a", "b"}}),
    (("ask", "room for some"), {"idle": True, "alone": True, "refused": {"a"}}),
    (("ask", "found", "refused"), {"idle": True, "refused": {"a"}}),
    (("ask", "found", "called off"), {"idle": False, "there": "a", "strikes": 1}),
    (("ask", "found", *["called off"] * STRIKES_MAX), {"idle": False, "unlucky": {"a"}, "strikes": STRIKES_MAX}),
    (("nobody",), {"idle": True, "given_up": "no other agent has room for it"}),
    (("nobody for the group",), {"idle": True, "alone": True}),
    (("ask", "found", *["called off"] * STRIKES_MAX, "nobody"), {"idle": False, "strikes": STRIKES_MAX}),
]


@pytest.mark.parametrize(("steps", "expected"), TABLE, ids=lambda value: " ".join(value) if isinstance(value, tuple) else "")
def test_what_follows_what(steps, expected):
    attempt = made(*steps)
    plain = {"asking": False, "there": None, "alone": False, "refused": set(), "unlucky": set(), "strikes": 0, "given_up": ""}

    assert attempt.is_idle(10.0) is expected.pop("idle")
    assert {name: getattr(attempt, name) for name in plain} == {**plain, **expected}


def test_pauses_grow_up_to_a_limit_and_end():
    attempt = Attempt()
    pauses = []
    for _ in range(10):
        attempt.called_off("a", 0.0, np.random.default_rng(1))
        pauses.append(attempt.not_before_s)

    assert pauses == sorted(pauses)
    assert 0.5 * PAUSE_S_MAX <= pauses[-1] <= PAUSE_S_MAX


def test_what_ended_the_last_move_is_the_reason():
    attempt = Attempt()
    attempt.last = "its move was called off"
    attempt.nobody_left(1, 0.0, np.random.default_rng(1))

    assert attempt.given_up == "its move was called off"
