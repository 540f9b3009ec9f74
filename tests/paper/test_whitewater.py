"""WhiteWater, sections 2 to 5: quality of configurations, moves, searches.

The plain twin visits operators one by one with plain numbers and bisects, as the paper does. It uses no polynomials.
"""

import itertools
import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbon.cost.chains import chains_of
from sbon.cost.multiples import greatest_multiple
from sbon.cost.throughput import Demand, Supply, latencies, limits, qualities, usage
from sbon.errors import ShapeError
from tests.examples import examples

INF = math.inf


def supply(work, core=None, memory=None, bandwidth=None, propagation_s=None, latency_s_max=INF):
    n = len(work)
    return Supply(
        nodes=tuple(f"n{i}" for i in range(n)),
        work=np.array(work, dtype=float),
        core=np.array(work if core is None else core, dtype=float),
        memory=np.full(n, INF) if memory is None else np.array(memory, dtype=float),
        bandwidth=np.full((n, n), INF) if bandwidth is None else np.array(bandwidth, dtype=float),
        propagation_s=np.zeros((n, n)) if propagation_s is None else np.array(propagation_s, dtype=float),
        latency_s_max=latency_s_max,
    )


def demand(work, memory=None, ends=(), sent=None, tuple_ns=None, points=("",), chains=()):
    """Makes a Demand from lists. `work` has, by operator, coefficients of 1, x, x^2 ...; given once, it holds at all points."""
    work = np.array(work, dtype=float)
    work = work if work.ndim == 3 else np.stack([work] * len(points))
    links = np.array(ends, dtype=np.int64).reshape(-1, 2)
    sent = np.zeros((len(links), work.shape[2])) if sent is None else np.array(sent, dtype=float)
    return Demand(
        operators=tuple(f"o{i}" for i in range(work.shape[1])),
        work=work,
        memory=np.zeros_like(work) if memory is None else np.stack([np.array(memory, dtype=float)] * len(points)),
        ends=links,
        sent=sent if sent.ndim == 3 else np.stack([sent] * len(points)),
        tuple_ns=np.zeros(work.shape[1]) if tuple_ns is None else np.array(tuple_ns, dtype=float),
        points=points,
        chains=chains,
    )


def quality(asked, given_, *node_of):
    return float(qualities(asked, given_, np.array([node_of]))[0])


def value_at(coefficients, x):
    return sum(float(c) * x**k for k, c in enumerate(coefficients))


def tasks_on(asked, node_of, here, point, most):
    """Returns the operators of each task of a node.

    Neighbours of a chain stay together, unless each part takes at least 15 % of a quantum of 5 ms and 0.4 ms. The rates are those at which
    all of them would fill the fastest core.
    """
    after = {one: other for chain in asked.chains for one, other in itertools.pairwise(chain) if node_of[one] == node_of[other]}

    def full_at(group):
        low, high = 1e-9, 1e12
        while high > low * (1 + 1e-12):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if sum(value_at(asked.work[point, o], middle) for o in group) <= most else (low, middle)
        return low if 1e-8 < low < 1e11 else 1.0

    def cut(group, quantum_s):
        whole = sum(work[o] for o in group)
        best = (whole, 0)
        for k in range(1, len(group)):
            parts = sum(work[o] for o in group[:k]), sum(work[o] for o in group[k:])
            if whole and min(parts) / whole * quantum_s >= max(0.0004, 0.15 * quantum_s) and max(parts) < best[0] * (1 - 1e-12):
                best = (max(parts), k)
        if not best[1]:
            return [group]
        return [task for part in (group[: best[1]], group[best[1] :]) for task in cut(part, quantum_s * sum(work[o] for o in part) / whole)]

    found = []
    for first in set(here) - set(after.values()):
        group = [first]
        while group[-1] in after:
            group.append(after[group[-1]])
        x = full_at(group)
        work = {o: value_at(asked.work[point, o], x) for o in group}
        found += cut(group, 0.005)
    return found


def fits(asked, given_, node_of, x, point):
    """Returns whether the rates at x keep all limits, checked by resource and operator."""
    slack = 1 + 1e-9
    for node in range(len(given_.nodes)):
        here = [o for o in range(len(asked.operators)) if node_of[o] == node]
        if sum(value_at(asked.work[point, o], x) for o in here) > given_.work[node] * slack:
            return False
        if sum(value_at(asked.memory[point, o], x) for o in here) > given_.memory[node] * slack:
            return False
        for task in tasks_on(asked, node_of, here, point, given_.core.max()):
            if sum(value_at(asked.work[point, o], x) for o in task) > given_.core[node] * slack:
                return False
    pairs: dict[tuple[int, int], float] = {}
    for link, (source, target) in enumerate(asked.ends.tolist()):
        pair = (node_of[source], node_of[target])
        if pair[0] != pair[1]:
            pairs[pair] = pairs.get(pair, 0.0) + value_at(asked.sent[point, link], x)
    if any(rate > given_.bandwidth[pair] * slack for pair, rate in pairs.items()):
        return False

    def way_s(operator):
        own = asked.tuple_ns[operator] / given_.core[node_of[operator]] if asked.tuple_ns[operator] else 0.0
        before = [
            way_s(source) + given_.propagation_s[node_of[source], node_of[operator]]
            for source, target in asked.ends.tolist()
            if target == operator
        ]
        return own + max(before, default=0.0)

    return max(way_s(o) for o in range(len(asked.operators))) <= given_.latency_s_max


def twin(asked, given_, node_of):
    """Returns the quality by bisection to a relative width of 1e-9; infinite above 1e12."""
    found = INF
    for point in range(len(asked.points)):
        low, high = 0.0, 1e12
        if not fits(asked, given_, node_of, 0.0, point):
            return 0.0
        if fits(asked, given_, node_of, high, point):
            continue
        low = 1e-12
        while high > low * (1 + 1e-9):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if fits(asked, given_, node_of, middle, point) else (low, middle)
        found = min(found, low)
    return found


@st.composite
def worlds(draw):
    """Draws a chain or tree of operators with random coefficients, nodes with random limits, and some placements."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    operators, nodes, terms, points = int(rng.integers(1, 6)), int(rng.integers(1, 4)), int(rng.integers(2, 6)), int(rng.integers(1, 4))
    ends = [(int(source), int(rng.integers(source + 1, operators))) for source in range(operators - 1)]

    def coefficients(rows):
        numbers = rng.uniform(0.0, 10.0, (points, rows, terms)) * (rng.random((points, rows, terms)) < 0.5)
        numbers[:, :, 0] *= rng.random() < 0.3
        return numbers

    asked = Demand(
        operators=tuple(f"o{i}" for i in range(operators)),
        work=coefficients(operators),
        memory=coefficients(operators),
        ends=np.array(ends, dtype=np.int64).reshape(-1, 2),
        sent=coefficients(len(ends)),
        tuple_ns=rng.uniform(0.0, 5.0, operators),
        points=tuple("abc"[:points]),
        chains=chains_of(ends[row] for row in range(len(ends)) if [end for _, end in ends].count(ends[row][1]) == 1 and rng.random() < 0.8),
    )
    core = rng.uniform(1.0, 50.0, nodes)
    given_ = supply(
        core * rng.integers(1, 4, nodes),
        core,
        np.where(rng.random(nodes) < 0.5, INF, rng.uniform(1.0, 100.0, nodes)),
        np.where(rng.random((nodes, nodes)) < 0.5, INF, rng.uniform(1.0, 50.0, (nodes, nodes))),
        rng.uniform(0.0, 1.0, (nodes, nodes)),
        float(rng.choice([INF, 2.0, 5.0])),
    )
    return asked, given_, rng.integers(0, nodes, (3, operators))


@given(worlds())
@examples(40)
def test_qualities_are_those_of_the_twin_that_goes_operator_by_operator(world):
    asked, given_, placements = world
    for found, node_of in zip(qualities(asked, given_, placements), placements, strict=True):
        expected = twin(asked, given_, node_of.tolist())
        assert (math.isinf(expected) and (math.isinf(found) or found > 1e10)) or found == pytest.approx(expected, rel=1e-6, abs=1e-9)
        named = limits(asked, given_, node_of)
        if math.isfinite(found):
            assert named[0].quality == pytest.approx(found, rel=1e-9)
        for one in (one for one in named if one.what != "latency"):
            assert greatest_multiple(np.array([one.demand]), np.array([one.supply]))[0] == pytest.approx(one.quality, rel=1e-6)


@given(worlds(), st.sampled_from(["work", "memory", "sent"]), st.floats(1.0, 5.0))
@examples(30)
def test_quality_never_rises_when_a_cost_a_rate_or_a_size_does(world, field, factor):
    """Proposition 1 relies on constraints that grow with the rates."""
    asked, given_, placements = world
    dearer = msgspec.structs.replace(asked, **{field: getattr(asked, field) * factor})
    assert (qualities(dearer, given_, placements) <= qualities(asked, given_, placements) * (1 + 1e-9)).all()


def test_throughput_of_two_selections_depends_on_order_and_placement():
    """Table 2, with r = 1: o1 costs 2 and passes a half, o2 costs 10."""
    query = demand([[0.0, 2.0], [0.0, 0.5 * 10.0]])
    nodes = supply([100.0, 300.0])
    assert quality(query, nodes, 0, 1) == min(100 / 2, 300 / (0.5 * 10))
    assert quality(query, nodes, 1, 0) == min(300 / 2, 100 / (0.5 * 10))


def test_the_example_with_a_join_has_the_constraints_of_section_4_1():
    """Example 2: o1 joins r1 and r2, o2 filters, o3 joins with r3; o1 on N1, the others on N2."""
    c1, c2, c3, s1, s2, w, r1, r2, r3 = 3.0, 5.0, 7.0, 0.1, 0.5, 2.0, 4.0, 6.0, 9.0
    joined = 2 * w * s1 * r1 * r2
    query = demand([[0.0, c1 * (r1 + r2), 0.0], [0.0, 0.0, c2 * joined], [0.0, c3 * r3, c3 * s2 * joined]])
    x = quality(query, supply([1e9, 1000.0]), 0, 1, 1)
    assert c2 * joined * x**2 + c3 * (s2 * joined * x**2 + r3 * x) == pytest.approx(1000.0)
    assert quality(query, supply([100.0, 1e9]), 0, 1, 1) == pytest.approx(100.0 / (c1 * (r1 + r2)))


def test_the_best_solution_is_on_the_ray_through_the_profile():
    """Proposition 1: no rates within the limits have a better worst ratio to the profile."""
    profile = np.array([30.0, 45.0])

    def is_within(rates):
        return 2 * rates[0] + rates[1] <= 200 and 0.05 * rates[0] * rates[1] <= 150

    ray = demand([[0.0, 2 * profile[0] + profile[1], 0.0], [0.0, 0.0, 0.05 * profile[0] * profile[1]]])
    best = quality(ray, supply([200.0, 150.0]), 0, 1)
    grid = [rates for rates in itertools.product(np.linspace(1, 100, 100), np.linspace(1, 200, 100)) if is_within(rates)]
    assert max((np.array(rates) / profile).min() for rates in grid) <= best


def test_of_several_target_points_the_worst_counts():
    points = demand([[[0.0, 10.0]], [[0.0, 80.0]]], points=("day", "launch"))
    assert quality(points, supply([100.0]), 0) == pytest.approx(1.25)
    first, *_ = limits(points, supply([100.0]), np.array([0]))
    assert (first.what, first.point, first.quality) == ("CPU on node n0", "launch", 1.25)


def test_one_core_limits_an_operator_on_a_node_of_many():
    query = demand([[0.0, 30.0], [0.0, 10.0]])
    nodes = supply([400.0], core=[100.0])
    assert quality(query, nodes, 0, 0) == pytest.approx(100 / 30)
    first, second, third = limits(query, nodes, np.array([0, 0]))
    assert first.what == "one core, operator o0 on node n0"
    assert (second.what, second.quality) == ("CPU on node n0", 10.0)
    assert third.what == "one core, operator o1 on node n0"


def test_operators_that_follow_each_other_on_a_node_share_one_core():
    """A join of 7 and a sink of 1 are one task. A filter that costs as much as the join is a separate task with its own thread."""
    query = demand([[0.0, 7.0], [0.0, 1.0], [0.0, 7.0]], chains=((0, 1, 2),))
    nodes = supply([50.0, 50.0], core=[20.0, 20.0])
    assert quality(query, nodes, 0, 0, 1) == pytest.approx(20 / 8)
    assert quality(query, nodes, 0, 1, 0) == pytest.approx(20 / 7)
    assert quality(query, nodes, 0, 0, 0) == pytest.approx(20 / 8)
    # Only the tasks of the whole chain count, not those of a part; a chain is split at the rates that fill a core.
    assert quality(demand([[0.0, 10.0], [0.0, 1.0], [0.0, 5.0]], chains=((0, 1, 2),)), nodes, 0, 0, 0) == pytest.approx(20 / 10)
    assert quality(demand([[0.0, 1.0, 0.0], [0.0, 0.0, 0.1]], chains=((0, 1),)), nodes, 0, 0) == pytest.approx(math.sqrt(200))
    first, *_ = limits(query, nodes, np.array([0, 0, 1]))
    assert (first.what, first.nodes) == ("one core, operators o0, o1 on node n0", ("n0",))
    assert limits(query, nodes, np.array([0, 1, 0]))[0].what == "one core, operator o0 on node n0"


def test_links_within_a_node_have_no_limit_and_streams_share_those_between_nodes():
    query = demand([[0.0, 0.0]] * 3, ends=[(0, 2), (1, 2)], sent=[[0.0, 6.0], [0.0, 4.0]])
    nodes = supply([1.0, 1.0], bandwidth=[[1.0, 50.0], [50.0, 1.0]])
    assert quality(query, nodes, 0, 0, 1) == pytest.approx(5.0)
    assert quality(query, nodes, 0, 1, 1) == pytest.approx(50 / 6)
    assert quality(query, nodes, 1, 1, 1) == INF
    assert [limit.what for limit in limits(query, nodes, np.array([0, 0, 1]))] == ["link n0-n1"]


def test_the_dearest_path_must_keep_the_latency():
    """Section 4.4: latency is time in operators plus time on links."""
    query = demand([[0.0, 1.0]] * 3, ends=[(0, 2), (1, 2)], tuple_ns=[10.0, 30.0, 5.0])
    nodes = supply([10.0, 100.0], propagation_s=[[0.0, 0.06], [0.06, 0.0]], latency_s_max=1.0)
    assert latencies(query, nodes, np.array([[0, 1, 1], [0, 0, 0]])) == pytest.approx([1.0 + 0.06 + 0.05, 3.5])
    assert quality(query, nodes, 0, 1, 1) == 0.0
    assert limits(query, nodes, np.array([0, 1, 1]))[0].what == "latency"
    assert quality(query, nodes, 1, 1, 1) > 0.0


def test_other_queries_are_taken_off_first_and_shared_operators_count_once():
    other = demand([[0.0, 40.0], [10.0, 20.0]], ends=[(0, 1)], sent=[[0.0, 5.0]])
    nodes = supply([100.0, 100.0], bandwidth=[[INF, 20.0], [20.0, INF]])
    left = nodes.less(other, np.array([0, 1]))
    assert left.work.tolist() == [60.0, 70.0]
    assert left.bandwidth.tolist() == [[INF, 15.0], [20.0, INF]]
    query = demand([[0.0, 40.0], [0.0, 30.0]], ends=[(0, 1)], sent=[[0.0, 10.0]])
    assert quality(query.without(["o0"]), left, 0, 1) == pytest.approx(1.5)  # o0's stream still goes to the new consumer
    assert quality(query, left, 0, 1) == pytest.approx(1.5)
    assert quality(query, left, 0, 0) == pytest.approx(60 / 70)


def test_usage_is_bytes_in_transit_at_the_profile():
    query = demand([[0.0, 1.0]] * 2, ends=[(0, 1)], sent=[[50.0, 100.0]])
    assert usage(query, supply([1.0, 1.0], propagation_s=[[0.0, 0.02], [0.02, 0.0]]), np.array([0, 1])) == pytest.approx(3.0)


def test_roots_are_exact_over_many_powers():
    rng = np.random.default_rng(1)
    rows = 10.0 ** rng.uniform(-30, 5, (200, 14))
    found = greatest_multiple(rows, np.full(200, 7.0))
    within = rows[:, 0] <= 7.0
    assert ((found > 0) == within).all()
    sums = (rows * found[:, None] ** np.arange(14)).sum(axis=1)
    assert sums[within] == pytest.approx(np.full(within.sum(), 7.0), rel=1e-8)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: demand([[0.0, -1.0]]), "negative"),
        (lambda: demand([[0.0, math.nan]]), "not finite"),
        (lambda: demand([[0.0, 1.0]], ends=[(0, 3)]), "expected 0 to 0"),
        (lambda: supply([1.0], memory=[-1.0]), "negative"),
        (lambda: supply([1.0], memory=[1.0, 2.0]), "expected 1 nodes"),
        (lambda: quality(demand([[0.0, 1.0]]), supply([1.0]), 0, 0), "expected 1"),
        (lambda: latencies(demand([[0.0, 1.0]] * 2, ends=[(0, 1), (1, 0)]), supply([1.0]), np.array([[0, 0]])), "cycle"),
    ],
)
def test_what_makes_no_sense_is_refused(wrong, message):
    with pytest.raises(ShapeError, match=message):
        wrong()
