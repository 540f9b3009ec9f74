"""The law of a batch's cost, fitted while batches are measured."""

import itertools
import math

import msgspec
import numpy as np
import pytest

from sbon.cost.cost_fit import CostFit
from sbon.cost.figure import Edge, Source
from sbon.cost.law import Law, rule_law, widened
from sbon.cost.least_squares import least_squares_from_zero
from sbon.errors import ShapeError
from sbon.types import FloatArray

UNIT = tuple(tuple(float(i == j) for j in range(5)) for i in range(5))


def by_enumeration(matrix: FloatArray, vector: FloatArray) -> FloatArray:
    """The plain twin: tries all sets of coefficients that may be above 0."""
    best, least = np.zeros(len(vector)), 0.0
    for count in range(1, len(vector) + 1):
        for chosen in itertools.combinations(range(len(vector)), count):
            some = list(chosen)
            found = np.zeros(len(vector))
            found[some] = np.linalg.solve(matrix[np.ix_(some, some)], vector[some])
            cost = found @ matrix @ found - 2 * vector @ found
            if found.min() >= 0 and cost < least:
                best, least = found, cost
    return best


def test_least_squares_from_zero_is_the_best_of_all_sets_of_coefficients():
    rng = np.random.default_rng(3)
    for _ in range(200):
        size = int(rng.integers(1, 6))
        root = rng.normal(size=(size + 2, size))
        matrix, vector = root.T @ root + 0.01 * np.eye(size), rng.normal(size=size)

        np.testing.assert_allclose(least_squares_from_zero(matrix, vector), by_enumeration(matrix, vector), atol=1e-9)


def measured(
    fit: CostFit, rng: np.random.Generator, a: float, b: float, c: float = 0.0, *, batches: int = 400, scatter: float = 0.1
) -> None:
    """Adds measurements of batches of 100 to 65,536 rows, with sizes evenly spread on a logarithmic scale."""
    for _ in range(batches):
        rows = round(100 * 655.36 ** rng.random())
        windows = float(rng.integers(1, 20)) if c else 0.0
        cost = (a + b * rows + c * rows * windows) * (1 + scatter * rng.normal())
        fit.took(rows, cost, at_s=7.0, open_windows=windows)


@pytest.mark.parametrize(("a", "b", "c"), [(50_000, 20, 0), (2e6, 1, 0), (3e4, 400, 3), (5e5, 5, 90), (500, 2_000, 0), (1e3, 1e9, 0)])
def test_a_fit_finds_the_law_whatever_the_rule_says(a: float, b: float, c: float):
    fit = CostFit()
    measured(fit, np.random.default_rng(1), a, b, c)

    law = fit.law(7.0)

    for rows in (100, 3_000, 65_536):
        windows = 5.0 if c else 0.0
        cost = law.cost_ns(rows, windows)
        assert cost.value == pytest.approx(a + b * rows + c * rows * windows, rel=0.05)
        assert cost.source is Source.MEASURED
    assert law.scatter == pytest.approx(0.1, rel=0.35)  # the first block still contains the error of the default law


def test_bounds_hold_the_true_cost_in_most_runs():
    held = 0
    for seed in range(60):
        fit = CostFit()
        measured(fit, np.random.default_rng(seed), 80_000, 30, batches=60, scatter=0.2)
        cost = fit.law(7.0).cost_ns(5_000)
        held += cost.low <= 230_000 <= cost.high
    assert held >= 52  # of 60: bounds of two standard errors hold in 95 %; observed 57


def test_small_batches_count_as_much_as_large_ones():
    """With unweighted least squares, the scatter of large batches would decide the cost of small ones."""
    rng = np.random.default_rng(5)
    errors = []
    for _ in range(20):
        fit = CostFit()
        measured(fit, rng, 40_000, 50, batches=100, scatter=0.15)
        errors.append(abs(fit.law(7.0).cost_ns(100).value / 45_000 - 1))
    assert np.median(errors) < 0.06  # observed 0.03; unweighted least squares: 0.17


def test_what_batches_do_not_tell_apart_stays_uncertain():
    fit = CostFit()
    for _ in range(300):
        fit.took(4096, 600_000, at_s=1.0)
    law = fit.law(1.0)

    assert law.cost_ns(4096).value == pytest.approx(600_000, rel=0.01)
    assert law.cost_ns(4096).error < 0.05
    assert law.cost_ns(100).error > 0.5
    assert law.cost_ns(4096, open_windows=10).error > 0.3
    assert law.per_row_window_ns == 20.0  # the default, because no row had an open window


def test_a_change_of_cost_shows_after_some_thousand_batches():
    rng = np.random.default_rng(2)
    fit = CostFit()
    measured(fit, rng, 50_000, 20, batches=1_000)
    measured(fit, rng, 50_000, 60, batches=6_000)

    assert fit.law(7.0).per_row_ns == pytest.approx(60, rel=0.1)
    assert fit.samples < 2_200


def test_one_stall_does_not_make_a_law():
    """A batch of 70 us takes 3 s. Batches with postponed work may cost some hundred times as much, so the stall counts for a while."""
    fit = CostFit()
    rng = np.random.default_rng(2)
    measured(fit, rng, 50_000, 20)
    fit.took(1_000, 3e9, at_s=7.0)

    assert fit.law(7.0).cost_ns(1_000).value < 4 * 70_000  # observed 165,000; without a cut 7,000,000
    measured(fit, rng, 50_000, 20, batches=8_000)
    assert fit.law(7.0).cost_ns(1_000).value == pytest.approx(70_000, rel=0.05)


def test_classes_of_rows_have_costs_of_their_own():
    fit = CostFit(rule_law(classes=("click", "buy")))
    rng = np.random.default_rng(4)
    for _ in range(300):
        clicks, buys = float(rng.integers(10, 1000)), float(rng.integers(0, 300))
        fit.took(clicks + buys, (20_000 + 10 * clicks + 500 * buys) * rng.uniform(0.9, 1.1), at_s=1.0, by_class=(clicks, buys))
    law = fit.law(1.0)

    assert law.cost_of_classes_ns((100, 0)).value == pytest.approx(21_000, rel=0.05)
    assert law.cost_of_classes_ns((0, 100)).value == pytest.approx(70_000, rel=0.05)
    assert law.per_row_ns == pytest.approx(10 + law.shares[1] * 490, rel=0.05)
    with pytest.raises(ShapeError, match="2"):
        law.cost_of_classes_ns((1.0,))


def test_costs_are_kept_in_reference_ns():
    fit = CostFit(speed=2.0)
    measured(fit, np.random.default_rng(1), 50_000, 20, scatter=0.0)

    assert fit.law(7.0).per_row_ns == pytest.approx(40, rel=0.01)


def test_the_first_few_batches_correct_a_prior_that_is_far_off_for_small_ones_too():
    fit = CostFit()
    for rows in (1, 30, 1_000) * 16:
        fit.took(rows, 100 + 500 * rows, at_s=1.0)
    law = fit.law(1.0)
    assert [law.cost_ns(rows).value for rows in (1, 30, 1_000)] == pytest.approx([600, 15_100, 500_100], rel=0.05)


def test_a_law_is_made_anew_after_each_batch_and_ages_between_them():
    fit = CostFit()
    fit.took(100, 50_000, at_s=1.0)
    first = fit.law(2.0)
    assert first.age_s == 1.0
    assert fit.law(11.0) == msgspec.structs.replace(first, age_s=10.0)
    fit.took(100, 5e6, at_s=12.0)
    again = fit.law(12.0)
    assert (again.samples, again.age_s) == (2.0, 0.0)
    assert again.cost_ns(100).value > first.cost_ns(100).value


def test_before_the_first_batch_the_rule_stands_and_is_wide():
    law = CostFit().law(0.0)

    assert law.source is Source.RULE
    assert law.cost_ns(1_000).low > 0
    assert law.cost_ns(1_000).error > 0.5


def test_at_a_bound_the_batch_asked_for_costs_its_bound():
    fit = CostFit()
    measured(fit, np.random.default_rng(1), 50_000, 20, batches=40, scatter=0.3)
    law = fit.law(107.0)
    per_batch, per_row = law.at(Edge.HIGH, 1_000, 2.0)

    assert law.age_s == 100.0
    assert per_batch + 1_000 * per_row == pytest.approx(law.cost_ns(1_000, 2.0).high)
    assert law.at(Edge.EXPECTED, 1_000)[0] == law.per_batch_ns


@pytest.mark.parametrize(
    "changes",
    [
        {"coefficients": (1.0,) * 4},
        {"coefficients": (1.0, -1.0, 1.0, 1.0, 1.0)},
        {"coefficients": (1.0, math.nan, 1.0, 1.0, 1.0)},
        {"covariance": ((1.0, 0.0), (0.0, 1.0))},
        {"covariance": ((1.0, math.nan, 0.0, 0.0, 0.0), *UNIT[1:])},
        {"covariance": ((-1.0, 0.0, 0.0, 0.0, 0.0), *UNIT[1:])},
        {"shares": (0.0,)},
        {"shares": (0.5, 0.5)},
        {"scatter": math.inf},
        {"samples": -1.0},
    ],
)
def test_a_law_of_a_wrong_shape_is_refused(changes: dict[str, object]):
    good = {"coefficients": (1.0,) * 5, "covariance": UNIT, "source": Source.RULE}
    Law(**good)  # type: ignore[arg-type]

    with pytest.raises(ShapeError):
        Law(**(good | changes))  # type: ignore[arg-type]


def test_a_prior_that_no_batch_could_correct_is_refused():
    with pytest.raises(ShapeError, match="above 0"):
        CostFit(rule_law(per_row_ns=0.0))


@pytest.mark.parametrize(("to_first", "to_second", "beyond"), [(7, 7, 16), (7, 7, 2), (250, 70, 30)])
def test_rows_beyond_each_knee_have_a_cost_of_their_own(to_first: float, to_second: float, beyond: float):
    def cost(rows: int) -> float:
        return 90_000 + to_first * min(rows, 4_096) + to_second * min(max(0, rows - 4_096), 12_288) + beyond * max(0, rows - 16_384)

    fit = CostFit()
    rng = np.random.default_rng(6)
    for _ in range(600):
        rows = round(100 * 655.36 ** rng.random())
        fit.took(rows, cost(rows) * rng.uniform(0.9, 1.1), at_s=1.0)
    law = fit.law(1.0)

    for rows in (1_000, 4_096, 8_192, 16_384, 65_536):
        assert law.cost_ns(rows).value == pytest.approx(cost(rows), rel=0.04)
    assert law.cost_ns(2 * 65_536, batches=2.0).value == pytest.approx(2 * law.cost_ns(65_536).value)
    per_batch, per_row = law.at(Edge.EXPECTED, 65_536)
    assert per_batch + 65_536 * per_row == pytest.approx(law.cost_ns(65_536).value)


def test_work_put_off_is_part_of_the_cost_per_row():
    """A window gathers 100,000 rows and then works on them, so 99 of 100 batches of 1,000 rows cost next to nothing."""
    fit = CostFit()
    gathered, costs = 0, {1_000: 0.0, 20_000: 0.0}
    for number in range(4_000):
        rows = 1_000 if number // 100 % 2 else 20_000
        gathered += rows
        cost = 80_000.0
        if gathered >= 100_000:
            cost, gathered = cost + 100 * gathered, 0
        fit.took(rows, cost, at_s=1.0)
        costs[rows] += cost / 2_000
    law = fit.law(1.0)

    for rows, mean in costs.items():
        assert mean == pytest.approx(80_000 + 100 * rows, rel=0.05)
        assert law.cost_ns(rows).value == pytest.approx(mean, rel=0.1)


@pytest.mark.parametrize("sizes", [(8, 15), (64, 127), (1_024, 2_000), (2_048, 4_000), (128, 200, 250)])
def test_sizes_that_come_in_a_short_cycle_tell_fixed_cost_from_that_of_rows(sizes: tuple[int, ...]):
    """The sizes differ by at most a factor of two. Sums over whole cycles all have the same mean size, however many batches there are."""
    fit = CostFit()
    for number in range(2_048):
        rows = sizes[number % len(sizes)]
        fit.took(rows, 50_000 + 40 * rows, at_s=1.0)
    law = fit.law(1.0)

    for rows in (10, 1_000, 8_000):
        assert law.cost_ns(rows).value == pytest.approx(50_000 + 40 * rows, rel=0.01)


@pytest.mark.parametrize("ns", [0, 1, 1e-9, 1e13])
@pytest.mark.parametrize("rows", [0, 1, 4_096, 131_072])
def test_any_batches_have_a_law(ns: float, rows: int):
    """Covers clocks that show 0, watermarks without rows, and many equal batches."""
    fit = CostFit()
    for number in range(700):
        fit.took(rows, ns, at_s=1.0)
        if number in (0, 1, 70, 699):
            cost = fit.law(1.0).cost_ns(rows)
            assert cost.low <= cost.value <= cost.high < math.inf
    assert cost.value == pytest.approx(ns, rel=0.05, abs=100)


def test_many_batches_of_one_size_do_not_make_the_law_wrong_for_all_others():
    """The costs follow no law: 30 us more below 200 rows. Of 20,000 batches, 99 % are below 200 rows."""
    fit = CostFit(memory=1e9)
    rng = np.random.default_rng(3)

    def cost_ns(rows: int) -> float:
        return 80_000 + 50 * rows + (30_000 if rows < 200 else 0)

    for _ in range(20_000):
        rows = 100 if rng.random() < 0.99 else int(rng.choice([1_000, 8_192]))
        fit.took(rows, cost_ns(rows) * rng.uniform(0.8, 1.2), at_s=0.0)
    law = fit.law(0.0)

    errors = [law.cost_ns(rows).value / cost_ns(rows) - 1 for rows in (100, 1_000, 8_192)]
    assert max(map(abs, errors)) < 0.17  # observed: 0.147 at 1,000 rows; 0.191 if all batches had the same weight


def test_any_law_may_be_a_prior_once_it_is_widened():
    """A law with nearly equal errors of two coefficients, or one from a peer, may have a covariance without full rank."""
    rng = np.random.default_rng(7)
    tried = 0
    for kind in ("positive", "of rank 1", "indefinite", "0", "tiny and huge") * 60:
        coefficients = tuple((10.0 ** rng.uniform(-9, 6, 5) * rng.integers(0, 2, 5)).tolist())
        root = rng.normal(size=(5, 1 if kind == "of rank 1" else 5)) * 10.0 ** rng.uniform(-6, 12, (5, 1))
        covariance = root @ root.T
        if kind == "indefinite":
            covariance = covariance * rng.choice([-3.0, 3.0], (5, 5))
            np.fill_diagonal(covariance, np.abs(np.diagonal(covariance)))
        if kind in ("0", "tiny and huge"):
            covariance = np.zeros((5, 5)) if kind == "0" else np.full((5, 5), 1e24) * (1 - np.eye(5)) + 1e-300 * np.eye(5)
        law = Law(coefficients=coefficients, covariance=tuple(map(tuple, covariance.tolist())), source=Source.MEASURED)

        prior = widened(law)
        scaled = np.array(prior.covariance) / np.outer(prior.coefficients, prior.coefficients)
        assert np.linalg.eigvalsh((scaled + scaled.T) / 2).min() > 0.2
        fit = CostFit(prior)
        for rows in (100, 10_000) * 40:
            fit.took(rows, 50_000 + 20 * rows, at_s=1.0)
        assert all(0 <= cost < math.inf for cost in fit.law(now=1.0).coefficients)
        tried += 1
    assert tried == 300


def sizes_of(rng: np.random.Generator, count: int) -> FloatArray:
    """Returns rows of batches as a slow source with some bursts gives them: mostly one."""
    found: FloatArray = np.where(rng.random(count) < 0.7, 1, rng.integers(1, 64, count)).astype(np.float64)
    return found


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("first", [0, 64], ids=["of all sizes", "of one row first"])
@pytest.mark.parametrize("row_ns", [4e5, 1e6, 2e7])
def test_a_function_that_is_expensive_row_by_row_is_known_as_such_after_few_batches(row_ns: float, first: int, seed: int):
    """Before, nearly all of the cost counted as that of a batch: a batch of 30 rows was said to take a twentieth of its time."""
    rng = np.random.default_rng(seed)
    fit = CostFit()
    for rows in np.concatenate([np.ones(first), sizes_of(rng, 64)]):
        fit.took(rows, 5e4 + rng.gamma(4 * rows, row_ns / 4), at_s=1.0)

    law = fit.law(1.0)

    for rows in (1, 5, 30):
        assert law.cost_ns(rows).value == pytest.approx(5e4 + rows * row_ns, rel=0.35)
    assert law.scatter < 1


def test_a_function_that_is_expensive_batch_by_batch_is_known_as_such_too():
    rng = np.random.default_rng(1)
    fit = CostFit()
    for rows in sizes_of(rng, 64):
        fit.took(rows, 5e6 * (1 + 0.1 * rng.normal()) + 1e3 * rows, at_s=1.0)

    law = fit.law(1.0)

    for rows in (1, 30):
        assert law.cost_ns(rows).value == pytest.approx(5e6 + 1e3 * rows, rel=0.1)


def test_batches_of_one_row_that_are_expensive_leave_open_what_more_rows_cost():
    fit = CostFit()
    for _ in range(64):
        fit.took(1, 3e6, at_s=1.0)

    law = fit.law(1.0)

    assert law.cost_ns(1).value == pytest.approx(3e6, rel=0.05)
    assert law.cost_ns(10).low < 7e6
    assert law.cost_ns(10).high > 2.5e7


def test_a_first_batch_that_loads_code_says_nothing_about_rows():
    """The ratio of fixed cost and cost per row stays that of the rule, as batches of one size cannot tell them apart."""
    fit = CostFit()
    for number in range(64):
        fit.took(1, 3e8 if number == 0 else 1e5, at_s=1.0)

    law = fit.law(1.0)

    assert law.per_row_ns < law.per_batch_ns / 1000


def test_a_law_that_is_asked_for_early_is_as_good_later():
    rng = np.random.default_rng(1)
    early, late = CostFit(), CostFit()
    costs = [(float(rows), 5e4 + rng.gamma(4 * rows, 1e6 / 4)) for rows in sizes_of(rng, 64)]
    for number, (rows, ns) in enumerate([(1.0, 5e7), *costs]):
        early.took(rows, ns, at_s=1.0)
        late.took(rows, ns, at_s=1.0)
        if number % 3 == 0:
            early.law(1.0)

    assert early.law(1.0).coefficients == pytest.approx(late.law(1.0).coefficients)
    assert early.law(1.0).samples == late.law(1.0).samples
