"""`sbon bench migrate` finds missing, doubled and wrong answers."""

import pytest

from sbon_testbed.bench.pairs import Answer, Held, problem_of

HELD = Held(1000)
STEADY: list[Answer] = [(k, float(k), float(k)) for k in range(400)]
ANSWERS: list[Answer] = STEADY + [(-1 - n % 200 * 5, -1.0 - n % 200 * 5, float(n)) for n in range(300)]


def test_questions_are_spread_over_all_that_is_held():
    assert [HELD.key(n) for n in (0, 1, 199, 200)] == [-1, -6, -996, -1]
    assert [Held(3).key(n) for n in range(4)] == [-1, -2, -3, -1]


def test_answers_that_came_once_are_right_in_any_order():
    assert problem_of(ANSWERS, HELD) == ""
    assert problem_of(ANSWERS[::-1], HELD) == ""


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        (ANSWERS[:7] + ANSWERS[8:], "of 399 rows of the two streams 0 came twice, 1 are missing"),
        ([*ANSWERS, ANSWERS[7]], "of 401 rows of the two streams 1 came twice, 0 are missing"),
        (ANSWERS[:-2] + ANSWERS[-1:], "of 299 rows with a row that was held 0 came twice, 1 are missing"),
        ([*ANSWERS, ANSWERS[-1]], "of 301 rows with a row that was held 1 came twice, 0 are missing"),
        (ANSWERS[:400], "no row with a row that was held has come"),
        (ANSWERS[400:], "no row of the two streams has come"),
        ([*ANSWERS, (-1, -2.0, 300.0)], "the row k = -1, v = -2, n = 300 is wrong"),
        ([*ANSWERS, (-6, -6.0, 300.0)], "the row k = -6, v = -6, n = 300 is wrong"),
    ],
)
def test_one_row_that_is_missing_doubled_or_wrong_is_told(answers: list[Answer], told: str):
    assert problem_of(answers, HELD) == told
