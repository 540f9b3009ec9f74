"""Starts that are scanned together end as each start does alone."""

from random import Random

import numpy as np
import pytest

from sbon.operators.match import scan
from sbon.operators.match.program import Automaton, compile_pattern
from sbon.operators.match.scan import Jobs, Scanner
from sbon.query.row_pattern import Choice, Pattern, Repeat, Sequence, Variable

A, B, C = Variable(0), Variable(1), Variable(2)
PATTERNS: list[Pattern] = [
    Sequence((A, Repeat(B, 0, None), C)),
    Sequence((A, Repeat(Sequence((B, C)), 0, None))),
    Sequence((A, Repeat(Choice((B, C)), 1, None), Repeat(A, 0, 2))),
    Repeat(Choice((Sequence((A, B)), Sequence((A, C)), B)), 1, None),
    Sequence((Repeat(A, 1, None), Repeat(B, 0, None, reluctant=True), Repeat(C, 1, None))),
    Sequence((A, B, Repeat(Sequence((A, B)), 0, None))),
]


def alone(automaton: Automaton, masks: list[int], begin: int, state: int, stop: int) -> tuple[int, int, int]:
    """Returns the state, the end and the rows taken of one start that is scanned alone, step by step."""
    place, end = begin, -1
    while place < stop and state != 0:
        state, ended = automaton.step(state, masks[place])
        place += 1
        end = place if ended else end
    return state, end, place


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("seed", range(8))
def test_starts_that_meet_in_a_state_have_the_ends_that_each_has_alone(
    pattern: Pattern, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Starts that reach one state go on as one: later ends count for each of them, earlier ends for the start that had them."""
    monkeypatch.setattr(scan, "STEPS_MAX", 1)
    random = Random(seed)
    masks = random.choices([1, 2, 4, 3, 6], [4, 4, 3, 1, 1], k=60)
    automaton = Automaton(compile_pattern(pattern))
    scanner = Scanner(automaton)
    begins = sorted(random.sample(range(55), 25))
    stops = [30 if begin < 30 else 60 for begin in begins]
    jobs = Jobs(np.array(begins), np.full(25, automaton.first), np.array(stops), np.ones(25, np.bool_))
    found = scanner.scan(scanner.classes(np.array(masks)), jobs)
    expected = [alone(automaton, masks, begin, automaton.first, stop) for begin, stop in zip(begins, stops, strict=True)]
    assert list(zip(found.state.tolist(), found.end.tolist(), found.taken.tolist(), strict=True)) == expected
