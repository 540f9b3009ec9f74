"""The pure parts of the evaluation on a real agent: the function that works, the query, and the comparison."""

import numpy as np
import polars as pl
import pytest

from sbon.errors import SbonError
from sbon.extensions import Extensions
from sbon.query.planner import plan
from sbon.query.sql import parse
from sbon_testbed.mace.feeding import Answers, Sent, parsed
from sbon_testbed.mace.real import Ran, check, compared, measured_of, then
from sbon_testbed.mace.visit_query import OPERATORS, STEPS, answers_of, by_quarter, rounds_for, sink, statements, work_of_visit
from sbon_testbed.mace.visits import passes, rounds_of, visit_step
from sbon_testbed.mace.world import Measured
from tests.query_worlds import make_catalog


def test_a_step_passes_its_share_of_rows_always_the_same_ones() -> None:
    numbers = np.arange(10_000)

    kept = passes(numbers, 3, 0.3)

    assert kept.mean() == pytest.approx(0.3, abs=0.02)
    assert (passes(numbers[5000:], 3, 0.3) == kept[5000:]).all()
    assert np.corrcoef(kept, passes(numbers, 4, 0.3))[0, 1] == pytest.approx(0.0, abs=0.05), "steps choose independently"
    assert passes(numbers, 3, 1.0).all()


def test_work_of_rows_scatters_by_half_of_its_mean() -> None:
    rounds = rounds_of(np.arange(20_000), 2, 1000)

    assert rounds.mean() == pytest.approx(1000, rel=0.02)
    assert rounds.std() == pytest.approx(500, rel=0.05)
    assert rounds_of(np.arange(20_000), 2, 0).sum() == 0


def test_the_installed_function_gives_the_rows_that_pass() -> None:
    frame = pl.DataFrame({"ts": [1, 2, 3, 4], "visit": [10, 11, 12, 13]})
    kept = passes(np.arange(10, 14), 7, 0.5)

    assert visit_step.make(step=7, rounds=1, keep=0.5)(frame)["visit"].to_list() == np.arange(10, 14)[kept].tolist()  # type: ignore[operator, index]
    assert visit_step.make(step=7, rounds=1, keep=1.0)(frame).height == 4  # type: ignore[operator, union-attr]


def test_the_query_has_fourteen_operators_that_pass_and_work_as_it_says() -> None:
    assert OPERATORS == 14
    assert work_of_visit() == pytest.approx(0.5 + 1.0 + 1.6 + 0.4 + 0.4 + 0.6 + 0.6 + 0.8 + 2.4 + 2.4 + 1.2 + 3.6)
    many = answers_of(np.arange(100_000))
    assert many.mean() == pytest.approx(1.2, abs=0.02)
    assert many.max() == 4
    assert (answers_of(np.arange(50_000, 100_000)) == many[50_000:]).all()


def test_the_statements_are_planned_as_that_many_operators() -> None:
    extensions = Extensions(functions={"visit_step": lambda: visit_step})
    catalog = make_catalog(statements(10.0, "a", 1000, 50.0))
    (statement,) = parse(sink("a", 1001))

    made = plan(statement, catalog, {"a": {}}, "a", "q", extensions=extensions)

    assert len(made.operators) == OPERATORS
    assert len(made.links) == sum(len(step.inputs) for step in STEPS.values()) + 1


def test_events_are_counted_by_quarters_of_a_second() -> None:
    assert by_quarter(np.array([0.0, 0.2, 0.25, 1.1])) == [2, 1, 0, 0, 1]


def test_lines_come_when_their_ends_do() -> None:
    found = parsed([(1.0, b'{"ts":"a","visit":3}\n{"vis'), (2.0, b'it": 5}\n{"visit": 6}\n')])

    assert found.visits.tolist() == [3, 5, 6]
    assert found.at_s.tolist() == [1.0, 2.0, 2.0]


def test_latency_counts_from_the_instant_at_which_a_row_was_due() -> None:
    """The row of 4 s was sent 0.5 s late; it waits for the sender, which the agent cannot know."""
    answers = Answers(np.array([1_000_000, 1_000_001]), np.array([101.0, 105.0]))

    found = measured_of(answers, np.array([0.5, 4.0]), Sent(100.0, np.array([0.0, 0.5])), 1_000_000)

    assert found.stimulus_s.tolist() == [0.5, 4.0]
    assert found.latency_s.tolist() == [0.5, 1.0]


def test_answers_that_lack_or_repeat_a_row_are_refused() -> None:
    numbers, right = np.array([7, 8, 9]), np.array([1, 0, 2])
    check(Answers(np.array([9, 7, 9]), np.zeros(3)), numbers, right)

    for wrong in ([7, 9], [7, 8, 9], [7, 9, 9, 10]):
        with pytest.raises(SbonError, match="answers are wrong"):
            check(Answers(np.array(wrong), np.zeros(len(wrong))), numbers, right)


def test_a_prediction_is_compared_with_the_latest_answer_of_each_interval() -> None:
    none = np.zeros(0, dtype=np.int64)
    measured = Measured(np.array([0.1, 0.9, 1.5, 2.5]), np.array([0.2, 1.0, 3.0, 2.0]), none, none, np.zeros(0))
    over = {
        "width_s": 1.0,
        "latest_ms": [1100.0, 2700.0, 2000.0],
        "mace_ms": [900.0, 2500.0, 500.0],
        "upper_ms": [1300.0, 2900.0, None],
        "load_ms": [900.0, 800.0, 100.0],
        "epsilon_ms": 100.0,
    }

    ran = Ran(measured, 3.0, 0.0, {}, 2.0, 100)

    found = compared({"worst_ms": 2700.0, "intervals": over}, ran)

    assert (found["predicted_s"], found["measured_s"], found["mace_s"]) == (2.7, 3.0, 2.5)
    assert found["error"] == pytest.approx(0.1)
    assert found["mean_error"] == pytest.approx(0.2 / 6.0)
    assert (found["work_s"], found["work_measured_s"]) == (1.8, 2.0)
    assert found["outside_bounds"] == 1, "3.0 s are above 2.9 s"
    assert found["above_theorem"] == 1, "2.0 s are above 0.5 s + 1 s + 0.1 s"
    assert compared({"worst_ms": None, "intervals": over}, ran)["predicted_s"] == 2.7


def test_a_prediction_is_made_anew_for_the_speed_that_the_machine_had() -> None:
    """200 rounds took 2 s in the training, and 90 rounds 1 s in the test: the machine was slower by a tenth."""
    none = np.zeros(0, dtype=np.int64)
    learnt = Ran(Measured(np.zeros(1), np.ones(1), none, none, np.zeros(0)), 3.0, 0.0, {}, 2.0, 200)
    ran = Ran(Measured(np.zeros(1), np.array([2.0]), none, none, np.zeros(0)), 3.0, 0.0, {}, 1.0, 90)

    found = then({1.0: 1.0, 0.8: 2.0}, learnt, ran)

    assert found == pytest.approx({"speed": 0.9, "predicted_s": 1.5, "error": 0.25})


def test_rounds_of_rows_are_those_of_all_operators() -> None:
    numbers = np.arange(20_000)

    assert rounds_for(numbers, 1000.0) == pytest.approx(len(numbers) * 1000 * work_of_visit(), rel=0.02)
    assert rounds_for(numbers[:10], 1000.0) + rounds_for(numbers[10:], 1000.0) == rounds_for(numbers, 1000.0)
