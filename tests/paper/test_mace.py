"""Mace, definitions 4 to 9, lemmas 1 and 2, theorems 2 and 3, sections VI-C, VII and X; theorem 1 is in `test_stimulus_time.py`.

The plain twins are loops over the definitions, and `simulate`, which runs single events in virtual time without intervals. One event uses a
core for at most some hundredths of an interval, so the theorems' epsilon is smaller than the tested differences.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbon.cost.completions import completions
from sbon.cost.excess import WorkClock, cumulative_excess, peak_excess
from sbon.cost.load import NodeLoad, OperatorCost, Polynomial, Source, Upstream, deterministic_load, with_links
from sbon.cost.mace import Terms, lemma_epsilon_s, path_propagation_s, predict
from sbon.cost.node_excess import Nodes, excess_s, mace
from sbon.errors import ShapeError
from sbon_testbed.mace.world import simulate
from tests.examples import examples

WIDTH_S = 1.0
ROUNDING = 1e-9


def linear(inputs, rows, work):
    return OperatorCost(tuple(inputs), Polynomial(tuple(map(float, rows))), Polynomial(tuple(map(float, work))))


def random_graph(rng, sources, *, most=6, delays=(0.0,)):
    """Returns operators with at least one output row per input row, so that all work leads to an answer."""
    made = []
    for number in range(int(rng.integers(1, most + 1))):
        inputs = []
        for _ in range(int(rng.integers(1, 3))):
            outside = number == 0 or rng.random() < 0.35
            inputs.append(Source(int(rng.integers(sources))) if outside else Upstream(int(rng.integers(number)), float(rng.choice(delays))))
        made.append(linear(inputs, rng.choice([1.0, 1.0, 2.0], len(inputs)), rng.uniform(0.002, 0.05, len(inputs))))
    return made


def even_arrivals(counts):
    """Returns instants of events that arrive evenly within each interval (assumption A-2)."""
    return [np.concatenate([WIDTH_S * (p + np.arange(count) / max(1, count)) for p, count in enumerate(row)]) for row in counts]


def grain_of(operators, sources):
    """Returns the work of each operator for one event of each source."""
    return sum(deterministic_load(operators, np.eye(sources)[:, [source]]).work[:, 0] for source in range(sources))


class World:
    """A random graph on random nodes, with its predicted latency and the latency measured in virtual time."""

    def __init__(self, seed, *, sources=None, nodes=None, cores=1, delays=(0.0,), even=True, rank_width_s=0.0):
        rng = np.random.default_rng(seed)
        count = int(rng.integers(1, 4)) if sources is None else sources
        self.operators = random_graph(rng, count, delays=delays)
        places = int(rng.integers(1, 5)) if nodes is None else nodes
        self.node_of = rng.integers(0, places, len(self.operators))
        self.nodes = Nodes(rng.uniform(0.5, 2.0, places), rng.integers(1, cores + 1, places))
        counts = rng.choice([0, 1, 2, 5, 15], size=(count, 6))
        counts[:, 0] += 1
        arrivals = even_arrivals(counts)
        if not even:
            arrivals = [np.sort(np.floor(one) + rng.random(len(one)) * 0.999) for one in arrivals]
        self.work = deterministic_load(self.operators, counts.astype(float)).work
        self.grain = grain_of(self.operators, count)
        self.predicted = predict(self.operators, self.work, self.node_of, self.nodes, WIDTH_S, self.grain, even=even)
        measured = simulate(self.operators, self.node_of, self.nodes, arrivals, rng, rank_width_s=rank_width_s)
        self.latency_s = measured.worst_by_interval(WIDTH_S, counts.shape[1])
        self.has_answers = np.isin(np.arange(counts.shape[1]), measured.stimulus_s.astype(int))
        self.epsilon_s = lemma_epsilon_s(self.grain, self.node_of, self.nodes)


# ------------------------------------------------------------------------------------------------ definitions, by plain loops


def random_operators(rng, sources, most=5):
    """Returns operators of all kinds: linear ones, joins of rows of the same interval, and windows that answer once per interval."""
    made = []
    for number in range(int(rng.integers(1, most + 1))):
        inputs = []
        for _ in range(int(rng.integers(1, 3))):
            outside = number == 0 or rng.random() < 0.35
            inputs.append(Source(int(rng.integers(sources))) if outside else Upstream(int(rng.integers(number))))
        ports, costs = len(inputs), rng.uniform(0.002, 0.05, len(inputs)).tolist()
        kind = rng.choice(["linear", "join", "window"]) if ports == 2 else rng.choice(["linear", "window"])
        if kind == "linear":
            made.append(linear(inputs, rng.choice([0, 1, 1, 2], ports), costs))
        elif kind == "join":
            pairs, pair_cost = float(rng.integers(0, 3)), float(rng.uniform(0.0, 0.01))
            rows = Polynomial((0.0, 0.0), ((0, 1, pairs),))
            made.append(OperatorCost(tuple(inputs), rows, Polynomial(tuple(costs), ((0, 1, pair_cost),))))
        else:
            answers, closing = float(rng.integers(0, 3)), float(rng.uniform(0.0, 0.05))
            made.append(OperatorCost(tuple(inputs), Polynomial((0.0,) * ports, (), answers), Polynomial(tuple(costs), (), closing)))
    return made


def loads_by_event(operators, events, intervals):
    """Returns each operator's work in each interval (definitions 4, 5), computed event by event.

    An event is the number of its stimulus time's interval.

    Parameters
    ----------
    events : events of each source
    """
    load, given = [], []
    for one in operators:
        came = [events[way.index] if isinstance(way, Source) else given[way.operator] for way in one.inputs]
        work, out = [0.0] * intervals, []
        for port, port_events in enumerate(came):
            for interval in port_events:
                work[interval] += one.work.linear[port]
                out += [interval] * int(one.rows.linear[port])
        for polynomial, is_rows in ((one.rows, True), (one.work, False)):
            for left, right, factor in polynomial.products:
                for interval in [mine for mine in came[left] for other in came[right] if mine == other]:
                    if is_rows:
                        out += [interval] * int(factor)
                    else:
                        work[interval] += factor
        for interval in range(intervals):
            work[interval] += one.work.constant
            out += [interval] * int(one.rows.constant)
        load.append(work)
        given.append(out)
    return load


def behind_by_interval(load, capacity):
    """Returns the cumulative excess in s at the end of each interval (definition 8)."""
    behind, found = 0.0, []
    for work in load:
        behind = max(0.0, behind + work - capacity * WIDTH_S)
        found.append(behind / capacity)
    return found


def test_excess_of_whole_units_of_work():
    """Loads may be integers."""
    assert cumulative_excess(np.array([3, 6, 1, 0]), 2, 1).tolist() == [2, 6, 5, 3]


@examples(100)
@given(seed=st.integers(0, 2**32))
def test_definitions_4_to_9_equal_loops_over_events(seed):
    """A node with several cores is behind by at least the excess of each of its operators."""
    rng = np.random.default_rng(seed)
    sources, intervals, nodes = 2, 3, 3
    operators = random_operators(rng, sources)
    counts = rng.integers(0, 3, (sources, intervals))
    node_of, capacity, cores = rng.integers(0, nodes, len(operators)), rng.uniform(0.02, 0.2, nodes), rng.integers(1, 3, nodes)
    events = [[interval for interval in range(intervals) for _ in range(row[interval])] for row in counts]
    load = loads_by_event(operators, events, intervals)

    series = [0.0] * intervals
    for node in range(nodes):
        mine = [load[number] for number in range(len(operators)) if node_of[number] == node]
        whole = behind_by_interval([sum(of) for of in zip(*mine, strict=True)] or [0.0] * intervals, capacity[node] * cores[node])
        for one in [whole, *(behind_by_interval(of, capacity[node]) for of in mine)]:
            series = [max(pair) for pair in zip(series, one, strict=True)]

    found = deterministic_load(operators, counts.astype(float))
    assert found.work == pytest.approx(np.array(load))
    assert mace(excess_s(found.work, node_of, Nodes(capacity, cores), WIDTH_S)) == pytest.approx(np.array(series))


def test_figure_3_has_five_seconds():
    """Section IV: N2 has loads of 3 and 6 in intervals of 2 s, and so is 1 and 5 cycles behind."""
    assert cumulative_excess(np.array([3.0, 6.0]), 2.0).tolist() == [1.0, 5.0]


def test_section_vi_c_joins_and_windows_are_polynomials():
    """A join of 3 rows with 2 compares 6 pairs; half of them match. A window answers once per interval, whatever arrived."""
    join = OperatorCost((Source(0), Source(1)), Polynomial((0.0, 0.0), ((0, 1, 0.5),)), Polynomial((1.0, 1.0), ((0, 1, 0.1),)))
    window = OperatorCost((Upstream(0),), Polynomial((0.0,), constant=1.0), Polynomial((2.0,), constant=3.0))

    found = deterministic_load([join, window], np.array([[3.0, 0.0], [2.0, 4.0]]))

    assert found.rows.tolist() == [[3.0, 0.0], [1.0, 1.0]]
    assert found.work == pytest.approx(np.array([[3 + 2 + 0.6, 4.0], [2 * 3 + 3, 3.0]]))


@examples(50)
@given(seed=st.integers(0, 2**32))
def test_a_moved_operator_loads_nodes_as_if_all_were_added_anew(seed):
    rng = np.random.default_rng(seed)
    work, node_of = rng.exponential(size=(12, 5)), rng.integers(0, 4, 12)
    load = NodeLoad(work, node_of, 4)

    for operator in rng.integers(0, 12, 20).tolist():
        load.move(operator, int(rng.integers(4)))

    assert load.of_nodes == pytest.approx(NodeLoad(work, load.node_of, 4).of_nodes)
    assert peak_excess(load.of_nodes, 2.0) == pytest.approx(cumulative_excess(load.of_nodes, 2.0).max(axis=1))


# ------------------------------------------------------------------------------------------------------------ lemmas and theorems


@examples(25)
@given(seed=st.integers(0, 2**32))
def test_lemma_1_bounds_one_node(seed):
    world = World(seed, nodes=1)
    excess = mace(excess_s(world.work, world.node_of, world.nodes, WIDTH_S))
    before = np.concatenate(([0.0], excess[:-1]))
    of_node = world.work.sum(axis=0) / world.nodes.capacity_per_s[0]
    here = world.has_answers

    assert (world.latency_s <= before + of_node + ROUNDING)[here].all()
    assert (excess <= world.latency_s + ROUNDING)[here].all()


@examples(25)
@given(seed=st.integers(0, 2**32))
def test_lemma_2_a_node_between_slower_ones_adds_less_than_an_event(seed):
    """With one source, the loads of all nodes have the same shape, so the slowest node is always furthest behind."""
    rng = np.random.default_rng(seed)
    costs = np.array([0.1, 0.1 * rng.random(), 0.1])
    chain = [linear([Source(0)], [1], [costs[0]]), *(linear([Upstream(i)], [1], [costs[i + 1]]) for i in range(2))]
    arrivals = even_arrivals([rng.choice([0, 2, 8, 30], 6)])
    three = Nodes(np.ones(3), np.ones(3, dtype=int))

    def worst(costs_):
        operators = [linear(one.inputs, [1], [cost]) for one, cost in zip(chain, costs_, strict=True)]
        return simulate(operators, np.arange(3), three, arrivals, rng).latency_s.max(initial=0.0)

    assert worst(costs) <= worst([costs[0], 0.0, costs[2]]) + costs[1] + ROUNDING


@examples(50)
@given(seed=st.integers(0, 2**32))
def test_theorems_2_and_3_hold_where_loads_have_one_shape(seed):
    world = World(seed, sources=1)
    here = world.has_answers

    assert (world.predicted.mace_s <= world.latency_s + ROUNDING)[here].all()
    assert (world.latency_s <= world.predicted.mace_s + WIDTH_S + world.epsilon_s + ROUNDING)[here].all()


def test_lemma_1_needs_even_arrivals():
    """Work that arrives at an interval's end has an excess of 0 by definition 8, but still waits when the next interval begins."""
    arrivals = [np.array([0.9, 1.0])]
    node = Nodes(np.ones(1), np.ones(1, dtype=int))
    operators, work = [linear([Source(0)], [1], [0.9])], np.array([[0.9, 0.9, 0.0]])

    latency_s = simulate(operators, np.array([0]), node, arrivals, np.random.default_rng(1)).latency_s.max()

    assert cumulative_excess(work, 1.0).max() == 0
    assert latency_s == pytest.approx(1.7)  # lemma 1 would allow at most 0 + 0.9
    assert latency_s <= predict(operators, work, np.array([0]), node, 1.0, np.zeros(1), even=False).upper_s[1]


def late_burst():
    """Returns operators, nodes and counts of two sources with consecutive bursts.

    The first source's burst keeps node 0 busy. The second source's burst waits there, and again at node 1, which it loads.
    """
    operators = [linear([Source(0)], [1], [0.01]), linear([Source(1)], [1], [0.0001]), linear([Upstream(1)], [1], [0.01])]
    counts = np.zeros((2, 30), dtype=int)
    counts[0, 0], counts[1, 1] = 1100, 1000
    return operators, np.array([0, 0, 1]), counts


def test_theorem_2_fails_where_bursts_of_two_sources_follow_each_other_and_our_bound_holds():
    """Each node is at most 10 s behind, but the same rows wait for both nodes.

    Lemma 2 assumes that late work arrives no faster than it is served.
    """
    operators, node_of, counts = late_burst()
    nodes, grain = Nodes(np.ones(2), np.ones(2, dtype=int)), grain_of(operators, 2)
    work = deterministic_load(operators, counts.astype(float)).work

    measured = simulate(operators, node_of, nodes, even_arrivals(counts), np.random.default_rng(1)).latency_s.max()
    predicted = predict(operators, work, node_of, nodes, WIDTH_S, grain)
    lower_s, likely_s, upper_s = predicted.worst_s()

    assert lower_s == pytest.approx(10.0)
    assert lower_s + WIDTH_S + lemma_epsilon_s(grain, node_of, nodes) < 12
    assert measured == pytest.approx(19.1, abs=0.1)
    assert likely_s == pytest.approx(measured, rel=0.01)
    assert measured <= upper_s <= measured + WIDTH_S + 0.1
    assert predicted.parts_s == pytest.approx({0: 9.1, 1: 10.0}, abs=0.1)


def test_theorem_3_fails_from_below_where_older_work_is_still_on_its_way():
    """Node 0 will send node 1 nine seconds of work. A newer event from outside arrives earlier and does not wait."""
    operators = [linear([Source(0)], [1], [1.0]), linear([Upstream(0), Source(1)], [1, 1], [0.9, 0.01])]
    nodes, counts = Nodes(np.ones(2), np.ones(2, dtype=int)), np.array([[10, 0], [0, 1]])
    predicted = predict(operators, deterministic_load(operators, counts.astype(float)).work, np.array([0, 1]), nodes, 1.0, np.ones(2))

    measured = simulate(operators, np.array([0, 1]), nodes, even_arrivals(counts), np.random.default_rng(1)).worst_by_interval(1.0, 2)

    assert predicted.mace_s[1] > 7 > measured[1]
    assert predicted.mace_s.max() <= measured.max()


@pytest.mark.parametrize(("cores", "delays", "even"), [(1, (0.0,), True), (1, (0.0, 0.3), True), (3, (0.0,), True), (1, (0.0,), False)])
@examples(25)
@given(seed=st.integers(0, 2**32))
def test_the_worst_case_is_within_bounds_in_any_graph(cores, delays, even, seed):
    """Covers several sources, nodes that send to each other in cycles, propagation, several cores, uneven arrivals."""
    world = World(seed, cores=cores, delays=delays, even=even)
    lower_s, likely_s, upper_s = (
        world.predicted.worst_s() if not world.predicted.overloaded else (world.predicted.mace_s.max(), 0.0, np.inf)
    )

    assert lower_s <= world.latency_s.max() + ROUNDING
    assert (world.latency_s <= world.predicted.upper_s + ROUNDING)[world.has_answers].all()
    assert likely_s <= upper_s + ROUNDING


def test_theorem_3_mean_and_quantiles_are_those_of_the_latest_answers():
    """Compares predicted and measured latency over intervals, by mean and quantiles, for one node and 300 s of bursts."""
    rng = np.random.default_rng(4)
    counts = np.where(rng.random((1, 300)) < 0.2, 200, 10)
    operators = [linear([Source(0)], [1], [0.002]), linear([Upstream(0)], [1], [0.01])]
    one = Nodes(np.ones(1), np.ones(1, dtype=int))
    predicted = predict(
        operators, deterministic_load(operators, counts.astype(float)).work, np.zeros(2, dtype=int), one, WIDTH_S, np.ones(2)
    )

    measured = simulate(operators, np.zeros(2, dtype=int), one, even_arrivals(counts), rng).worst_by_interval(WIDTH_S, 300)

    assert predicted.mean_s() == pytest.approx(measured.mean(), rel=0.03)
    assert predicted.quantile_s(0.9) == pytest.approx(np.quantile(measured, 0.9, method="inverted_cdf"), rel=0.03)
    assert predicted.quantile_s(1.0) == predicted.likely_s.max() == pytest.approx(measured.max(), rel=0.02)


# ------------------------------------------------------------------------------------------------------------- extensions


def test_latest_answers_are_those_of_operators_that_have_rows():
    """One answer comes over a network of 2 s, the other does not; the second source is silent for two intervals."""
    keep = Polynomial((1.0,))
    operators = [OperatorCost((one,), keep, keep) for one in (Source(0), Source(1), Upstream(1, 2.0))]
    load = deterministic_load(operators, np.array([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]]))
    node_of, nodes = np.array([0, 1, 2]), Nodes(np.full(3, 4.0), np.ones(3, dtype=np.int64))

    found = predict(operators, load.work, node_of, nodes, 1.0, np.ones(3), rows_of_parts=load.rows)

    assert found.likely_s.tolist() == [0.0, 0.0, 2.0]
    assert found.propagation_s == 2.0
    assert predict(operators, load.work, node_of, nodes, 1.0, np.ones(3)).likely_s.tolist() == [2.0, 2.0, 2.0]


@examples(25)
@given(seed=st.integers(0, 2**32))
def test_section_vii_a_any_order_within_an_interval_costs_its_work_at_each_node(seed):
    world = World(seed, sources=1, rank_width_s=WIDTH_S)
    epsilon_s = lemma_epsilon_s(world.work.max(axis=1), world.node_of, world.nodes) + world.epsilon_s
    here = world.has_answers

    assert (world.latency_s <= world.predicted.mace_s + WIDTH_S + epsilon_s + ROUNDING)[here].all()
    assert world.predicted.mace_s.max() <= world.latency_s.max() + WIDTH_S + ROUNDING


@examples(25)
@given(seed=st.integers(0, 2**32))
def test_section_vii_b_links_are_nodes_and_propagation_adds_up(seed):
    rng = np.random.default_rng(seed)
    operators, places = random_graph(rng, 2), 3
    node_of = rng.integers(0, places, len(operators))
    far_s = rng.uniform(0.01, 0.2, (places, places))
    counts = rng.choice([1, 5, 15], size=(2, 5))
    made = with_links(operators, node_of, places, [100.0] * len(operators), far_s)
    nodes = Nodes(np.concatenate([np.ones(places), np.full(len(made.links), 2000.0)]), np.ones(places + len(made.links), dtype=int))
    work = deterministic_load(made.operators, counts.astype(float)).work
    predicted = predict(made.operators, work, made.node_of, nodes, WIDTH_S, grain_of(made.operators, 2))

    measured = simulate(made.operators, made.node_of, nodes, even_arrivals(counts), rng).worst_by_interval(WIDTH_S, 5)

    assert predicted.mace_s.max() <= measured.max() + ROUNDING
    assert (measured <= predicted.upper_s + ROUNDING).all()
    assert {made.node_of[number] for number in made.number} <= set(range(places))
    pairs = {
        (int(node_of[one.operator]), int(node_of[n])) for n, o in enumerate(operators) for one in o.inputs if isinstance(one, Upstream)
    }
    assert set(made.links) == {pair for pair in pairs if pair[0] != pair[1]}
    for number, operator in zip(made.number, operators, strict=True):
        for one, before in zip(made.operators[number].inputs, operator.inputs, strict=True):
            if isinstance(one, Upstream):
                pair = node_of[before.operator], made.node_of[number]
                assert one.delay_s == (far_s[pair] if pair[0] != pair[1] else 0.0)


def test_section_vii_b_least_and_greatest_propagation_of_paths_through_a_node():
    """Two paths lead to the last operator: 0.1 + 0.2 s and 0.5 s. The second operator's node is on the first path only."""
    operators = [
        linear([Source(0)], [1], [1]),
        linear([Upstream(0, 0.1)], [1], [1]),
        linear([Upstream(1, 0.2), Upstream(0, 0.5)], [1, 1], [1, 1]),
    ]

    least, greatest = path_propagation_s(operators, np.array([0, 1, 2]), 4)

    assert least == pytest.approx([0.3, 0.3, 0.3, np.inf])
    assert greatest == pytest.approx([0.5, 0.3, 0.5, 0.0])


def test_section_x_capacity_that_varies():
    """Compares with work done in steps of a millisecond."""
    rng = np.random.default_rng(2)
    work, left = rng.choice([0.1, 1.5], (1, 8)), rng.choice([0.25, 1.0], (1, 8))
    found = excess_s(work, np.array([0]), Nodes(np.ones(1), np.ones(1, dtype=int), left), WIDTH_S)[0]

    behind = cumulative_excess(work, left)[0]
    for p in range(8):
        waiting, steps = behind[p], 0
        while waiting > 1e-9:
            waiting -= 0.001 * left[0, min(p + 1 + steps // 1000, 7)]
            steps += 1
        assert found[p] == pytest.approx(steps / 1000, abs=0.002)


def test_capacity_that_ends_for_good_leaves_work_for_ever():
    clock = WorkClock(np.array([1.0, 0.0]), 1.0)

    assert clock.instant_of(np.array([0.5, 1.0, 1.1])).tolist() == [0.5, 1.0, np.inf]


def test_a_node_is_behind_by_one_operator_where_its_other_cores_cannot_help():
    """One operator has 3 s of work in an interval of 1 s. On four cores it is 2 s behind, as on one."""
    work, node_of = np.array([[3.0], [0.5]]), np.array([0, 0])

    assert excess_s(work, node_of, Nodes(np.ones(1), np.array([4])), 1.0).tolist() == [[2.0]]
    assert excess_s(work, node_of, Nodes(np.ones(1), np.array([1])), 1.0).tolist() == [[2.5]]


def test_pace_and_clocks_widen_the_bounds():
    chain, one, grain = [linear([Source(0)], [1], [2.0])], Nodes(np.ones(1), np.ones(1, dtype=int)), np.zeros(1)
    plain = predict(chain, np.array([[2.0, 0.0]]), np.array([0]), one, 1.0, grain)

    wider = predict(chain, np.array([[2.0, 0.0]]), np.array([0]), one, 1.0, grain, Terms(blocking_s=0.005, pace_s=0.1, clock_s=0.01))

    assert wider.upper_s - plain.upper_s == pytest.approx(0.115)
    assert plain.mace_s - wider.mace_s == pytest.approx(np.array([0.01, 0.0]))


def test_overload_never_ends_rather_than_being_a_large_number():
    chain, one = [linear([Source(0)], [1], [1.1])], Nodes(np.ones(1), np.ones(1, dtype=int))

    predicted = predict(chain, np.full((1, 5), 1.1), np.array([0]), one, 1.0, np.ones(1))

    assert predicted.overloaded == (0,)
    assert predicted.worst_s() == (np.inf, np.inf, np.inf)


@examples(25)
@given(seed=st.integers(0, 2**32))
def test_without_delays_upstream_completions_are_the_cumulative_excess(seed):
    """For one node, completions equal Lindley's recursion, with constant and with varying capacity."""
    rng = np.random.default_rng(seed)
    work, left = rng.choice([0.0, 0.3, 4.0], (2, 12)), rng.choice([0.5, 1.0], (1, 12))
    operators = [linear([Source(0)], [1], [1]), linear([Upstream(0), Source(0)], [1, 1], [1, 1])]
    for nodes in (Nodes(np.ones(1), np.ones(1, dtype=int)), Nodes(np.ones(1), np.ones(1, dtype=int), left)):
        expected = excess_s(work, np.array([0, 0]), nodes, WIDTH_S)[0] + WIDTH_S * np.arange(1, 13)

        for late_s in (None, np.zeros(2)):
            found = completions(operators, work, np.array([0, 0]), nodes, WIDTH_S, late_s=late_s, is_bound=True)
            assert found.done_s[1, 1:] == pytest.approx(expected)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: deterministic_load([linear([Upstream(0)], [1], [1])], np.ones((1, 2))),
        lambda: deterministic_load([linear([Source(1)], [1], [1])], np.ones((1, 2))),
        lambda: deterministic_load([linear([Source(0)], [1], [1])], np.array([[-1.0]])),
        lambda: Polynomial((1.0,), ((0, 1, 1.0),)),
        lambda: Polynomial((np.nan,)),
        lambda: OperatorCost((), Polynomial(()), Polynomial(())),
        lambda: NodeLoad(np.ones((2, 3)), np.array([0, 2]), 2),
        lambda: cumulative_excess(np.ones((2, 3)), np.ones((2, 4))),
        lambda: cumulative_excess(np.ones((2, 0)), 1.0),
        lambda: WorkClock(np.array([-1.0]), 1.0),
        lambda: excess_s(np.ones((1, 2)), np.array([1]), Nodes(np.ones(1), np.ones(1, dtype=int)), 1.0),
        lambda: excess_s(np.ones((1, 2)), np.array([0]), Nodes(np.zeros(1), np.ones(1, dtype=int)), 1.0),
    ],
)
def test_wrong_shapes_are_refused(wrong):
    with pytest.raises(ShapeError):
        wrong()
