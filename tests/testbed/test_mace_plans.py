"""The choice among three equivalent plans."""

import pytest

from sbon_testbed.mace.plans import PLANS, chain, evaluate_plans


def test_the_best_plan_is_chosen_from_a_hundred_events() -> None:
    found = evaluate_plans(2000, 1, lambda name, done, total: None)

    assert found["best"] == "select last"
    assert [one["chosen"] for one in found["samples"].values()] == ["select last"] * len(found["samples"])
    assert list(found["samples"]) == ["100", "500", "1500", "2000"]


def test_plans_are_equivalent() -> None:
    """The selectivities of each plan have the same product."""
    kept = {name: [operator.rows.linear[0] for operator in chain(steps)] for name, steps in PLANS.items()}

    for selectivities in kept.values():
        product = 1.0
        for one in selectivities:
            product *= one
        assert product == pytest.approx(0.5 * 0.2**3)
