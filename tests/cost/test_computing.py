"""Extra time that work takes on another node."""

import math

import msgspec
import pytest

from sbon.cost.computing import Work, longer_ms
from sbon.cost.figure import Source, around, by_rule
from sbon.cost.resources import NodeResources, UseSeries


def node(cores: float = 2.0, speed: float = 1.0, others: float = 0.0, operators: float = 0.0) -> NodeResources:
    return NodeResources(
        node="n",
        cores=cores,
        speed=around(speed, 0.0, Source.MEASURED),
        others=UseSeries((others,) * 10),
        operators=UseSeries((operators,) * 10),
    )


def test_a_batch_takes_its_own_time_at_the_speed_of_the_node():
    work, here = Work(1e-6, 0.010), node(operators=1e-6)

    assert longer_ms(work, here, node(speed=2.0)) == pytest.approx(-5.0, abs=0.01)
    assert longer_ms(work, here, node(speed=0.5)) == pytest.approx(10.0, abs=0.01)


def test_on_one_core_a_batch_waits_as_long_as_that_is_busy():
    work, here = Work(0.1, 0.010), node(cores=1.0, operators=0.1)

    # 10 ms / (1 - 0.1) here, 10 ms / (1 - 0.4 - 0.1) there.
    assert longer_ms(work, here, node(cores=1.0, others=0.4)) == pytest.approx(20.0 - 10.0 / 0.9)


def test_a_node_that_is_full_with_the_work_or_whose_one_core_is_takes_none():
    assert longer_ms(Work(0.5, 0.01), node(operators=0.5), node(others=1.2, operators=0.4)) == math.inf
    assert longer_ms(Work(0.8, 0.01), node(operators=0.8), node(cores=4.0, speed=0.7)) == math.inf
    assert longer_ms(Work(0.8, 0.01), node(operators=0.8), node(cores=4.0, speed=0.9)) < math.inf


def test_away_from_a_full_node_nothing_is_longer():
    assert longer_ms(Work(0.5, 0.01), node(others=1.6, operators=0.5), node(others=1.0)) == 0.0


def test_what_only_a_rule_tells_is_no_difference():
    work, here = Work(0.5, 0.01), node(operators=0.5)
    unknown = NodeResources(node="n", cores=1.0, speed=by_rule(1.0))

    assert longer_ms(work, here, unknown) == 0.0
    assert longer_ms(work, here, msgspec.structs.replace(node(), speed=by_rule(0.1))) == 0.0
    assert longer_ms(work, here, msgspec.structs.replace(node(others=1.9), speed=by_rule(0.1))) == math.inf
