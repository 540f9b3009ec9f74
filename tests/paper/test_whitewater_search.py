"""WhiteWater, section 5: swaps of operators, moves to nodes, and searches over both."""

import itertools
import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbon.cost.throughput import Supply, qualities
from sbon.errors import ShapeError
from sbon.search.best_rates import COOL, COOL_ITERATIONS, ROUNDS, annealed, best_rates
from sbon.search.exact import exhaustive, exhaustive_two_phase
from sbon.search.interface import Budget
from sbon.search.limit_loads import SWAP, TO_NODE
from sbon.search.limits_ground import LoadsAt
from sbon.search.metaheuristics import greedy, reactive_tabu, tabu, two_phase
from sbon.search.orders import Order, Pair, Piece, Query, allowed
from sbon.search.rates import RatesPlacement
from sbon.search.relief import relieve
from sbon_testbed.throughput.queries import paper_query, paper_supply
from sbon_testbed.throughput.search import _World
from tests.examples import examples

INF = math.inf
ENDLESS = 1e12


def source(name, rate, columns, host=0):
    return Piece(name=name, hosts=(host,), rates=(rate,), columns=columns)


def select(name, share, column, hosts=(0,), cost=20.0):
    return Piece(name=name, hosts=hosts, per_row_ns=cost, selectivity=share, reads=column)


def project(name, drops, hosts=(0,)):
    return Piece(name=name, hosts=hosts, per_row_ns=50.0, drops=drops)


def join(name, share, columns, hosts=(0,)):
    return Piece(name=name, hosts=hosts, per_row_ns=800.0, selectivity=share, span_s=10.0, reads=columns)


def query(pieces, below, columns=8, lifts=False):
    return Query(pieces=tuple(pieces), below=tuple(below), column_bytes=(8.0,) * columns, lifts=lifts)


def rates_at(order, row, x):
    """The plain twin: returns an operator's output in rows per second, by recursion over its inputs."""
    piece = order.query.pieces[row]
    if piece.rates:
        return x * piece.rates[0]
    inputs = [rates_at(order, one, x) for one in order.below[row]]
    return inputs[0] * inputs[1] * piece.span_s * piece.selectivity if piece.span_s is not None else inputs[0] * piece.selectivity


def columns_of(order, row):
    piece, found = order.query.pieces[row], order.query.pieces[row].columns
    for one in order.below[row]:
        found |= columns_of(order, one)
    return found & ~piece.drops


def check(order):
    """Asserts that an order reached by swaps has the rates, work and columns of its tree, at any multiple."""
    query = order.query
    for row, piece in enumerate(query.pieces):
        for x in (0.5, 3.0):
            powers = x ** np.arange(order.out.shape[2])
            inputs = [rates_at(order, one, x) for one in order.below[row]] or [rates_at(order, row, x)]
            assert float(order.out[row, 0] @ powers) == pytest.approx(rates_at(order, row, x))
            assert float(order.work[row, 0] @ powers) == pytest.approx(piece.per_row_ns * sum(inputs))
        assert order.columns[row] == columns_of(order, row)
        for one in order.below[row]:
            assert order.above[one] == row
        if order.below[row]:
            there = 0
            for one in order.below[row]:
                there |= order.columns[one]
            assert not piece.reads & ~there, "an operator reads a column that its inputs do not have"
        if piece.span_s is not None:
            assert all(piece.reads & order.columns[one] for one in order.below[row]), "a join without a key on one side"
    fresh = Order(msgspec.structs.replace(query, below=tuple(tuple(inputs) for inputs in order.below)))
    assert {(one.top, one.bottom, one.moved) for one in order.moves()} == {(one.top, one.bottom, one.moved) for one in fresh.moves()}
    assert order.key == fresh.key


@given(st.integers(0, 2**32), st.booleans())
@examples(25)
def test_orders_reached_by_swaps_are_what_their_trees_say_and_give_the_same_rows(seed, lifts):
    rng = np.random.default_rng(seed)
    asked, _ = paper_query(rng, sources=int(rng.integers(1, 5)), others=int(rng.integers(4, 8)), nodes=3, choices=2)
    first = order = msgspec.structs.replace(asked, lifts=lifts).first_order()
    root = first.above.index(-1)
    for _ in range(12):
        moves = order.moves()
        if not moves:
            break
        order = order.swapped(order.swap(moves[int(rng.integers(len(moves)))]))
        check(order)
        assert np.allclose(order.out[order.above.index(-1)], first.out[root])
        assert order.columns[order.above.index(-1)] == first.columns[root]


def swaps_of(pieces, below, lifts=False):
    order = query(pieces, below, lifts=lifts).first_order()
    return {(one.top, one.bottom, one.moved) for one in order.moves()}


def test_table_6_filters_always_swap_with_filters_and_projections_where_columns_stay():
    a = source("a", 1.0, 0b11)
    assert swaps_of([a, select("s", 0.5, 0b01), select("t", 0.5, 0b10)], [(), (0,), (1,)]) == {(2, 1, 0)}
    assert swaps_of([a, select("s", 0.5, 0b01), project("p", 0b10)], [(), (0,), (1,)]) == {(2, 1, 0)}
    assert swaps_of([a, select("s", 0.5, 0b01), project("p", 0b01)], [(), (0,), (1,)]) == set(), "the filter reads a dropped column"
    assert swaps_of([a, project("p", 0b01), select("s", 0.5, 0b10)], [(), (0,), (1,)]) == {(2, 1, 0)}


def test_table_6_filters_and_projections_sink_below_a_join_to_the_side_with_their_columns_and_never_rise():
    sides = [source("a", 1.0, 0b0011), source("b", 1.0, 0b1100), join("j", 0.1, 0b0110)]
    tree = [(), (), (0, 1), (2,)]
    assert swaps_of([*sides, select("s", 0.5, 0b1000)], tree) == {(3, 2, 1)}
    assert swaps_of([*sides, select("s", 0.5, 0b1001)], tree) == set(), "the filter reads columns of both sides"
    assert swaps_of([*sides, project("p", 0b0001)], tree) == {(3, 2, 0)}
    assert swaps_of([*sides, project("p", 0b0010)], tree) == set(), "the join reads a dropped column"
    below = [source("a", 1.0, 0b0011), source("b", 1.0, 0b1100), select("s", 0.5, 0b1), join("j", 0.1, 0b0110)]
    assert swaps_of(below, [(), (), (0,), (2, 1)]) == set()
    assert swaps_of(below, [(), (), (0,), (2, 1)], lifts=True) == {(3, 2, 0)}


def test_table_6_joins_swap_with_the_side_that_has_their_key():
    pieces = [source(n, 1.0, 0b11 << 2 * i) for i, n in enumerate("abc")]
    on_b = [*pieces, join("ab", 0.1, 0b000110), join("bc", 0.1, 0b011000)]
    assert swaps_of(on_b, [(), (), (), (0, 1), (3, 2)]) == {(4, 3, 1)}
    on_a = [*pieces, join("ab", 0.1, 0b000110), join("ac", 0.1, 0b010001)]
    assert swaps_of(on_a, [(), (), (), (0, 1), (3, 2)]) == {(4, 3, 0)}


def world(rng, *, points=1, everything=False, target=INF, sources=None, others=6):
    """Returns a random query with random nodes. With `everything`, there are limits of all kinds."""
    nodes = 4
    asked, hosts = paper_query(
        rng, sources=sources or int(rng.integers(1, 5)), others=int(rng.integers(3, others + 1)), nodes=nodes, choices=3
    )
    asked = msgspec.structs.replace(
        asked,
        lifts=everything,
        points=tuple("abc"[:points]),
        pieces=tuple(
            msgspec.structs.replace(piece, rates=tuple(rng.uniform(1.0, 50.0, points).tolist())) if piece.rates else piece
            for piece in asked.pieces
        ),
    )
    given_ = paper_supply(rng, nodes)
    if everything:
        given_ = Supply(
            nodes=given_.nodes,
            work=given_.work,
            core=given_.work / rng.integers(1, 4, nodes),
            memory=10 ** rng.uniform(4.0, 9.0, nodes),
            bandwidth=10 ** rng.uniform(3.0, 8.0, (nodes, nodes)),
            propagation_s=rng.uniform(0.0, 0.1, (nodes, nodes)) * (1 - np.eye(nodes)),
            latency_s_max=float(rng.choice([INF, 0.2])),
        )
    return RatesPlacement(asked.first_order(), hosts, given_, np.random.default_rng(int(rng.integers(2**32))), target=target)


def value_anew(one):
    quality = float(qualities(one.at.order.demand(), one.supply, one.node_of[None])[0])
    if quality >= one.target:
        return one.usage
    return 1 / quality if quality else INF


@given(st.integers(0, 2**32), st.booleans(), st.sampled_from([INF, 1.0]))
@examples(12)
def test_a_move_is_valued_as_the_configuration_after_it_is_anew(seed, everything, target):
    rng = np.random.default_rng(seed)
    one = world(rng, points=int(rng.integers(1, 4)), everything=everything, target=target)
    for _ in range(4):
        moves = one.all_moves()
        if not len(moves):
            return
        values, keys, taken, now = one.values_after(moves), one.keys_after(moves), one.snapshot(), one.value()
        for move, value, key in zip(moves, values.tolist(), keys.tolist(), strict=True):
            bound = max(value, now)
            assert one.is_within(move.tolist(), bound * (1 + 1e-6))
            if now * (1 + 1e-6) < value < INF:
                assert not one.is_within(move.tolist(), now + 0.99 * (value - now))
            one.apply(move)
            assert one.key == key
            anew = value_anew(one)
            if math.isinf(target) or value >= 1 / target:
                assert value == pytest.approx(anew, rel=1e-5)
                assert one.value() == pytest.approx(anew, rel=1e-5)
            else:
                assert one.quality >= target * (1 - 1e-9)
                assert one.value() == pytest.approx(value)
            one.restore(taken)
        one.apply(moves[int(rng.integers(len(moves)))])


def test_of_configurations_that_carry_the_profile_the_least_usage_is_best_and_any_beats_those_that_do_not():
    rng = np.random.default_rng(5)
    one = world(rng, everything=True, target=1.0, others=4)
    found = []
    for node_of in itertools.product(*one.hosts):
        value = float(one.values_at(one.at, np.array([node_of]))[0])
        one.node_of[:] = node_of
        found.append((value, one.quality, one.usage))
    carry = [each for each in found if each[1] >= 1]
    assert carry
    assert len(carry) < len(found)
    assert max(value for value, *_ in carry) < min(value for value, quality, _ in found if quality < 1)
    assert [usage for *_, usage in sorted(carry)] == sorted(usage for *_, usage in carry)


def best_of_all(one):
    """The twin of exhaustive search: follows swaps to all orders, enumerates all placements, and returns the best quality."""
    orders, seen = [one.at.order], {tuple(one.at.order.above)}
    for order in orders:
        for pair in order.moves():
            after = order.swapped(order.swap(pair))
            if tuple(after.above) not in seen:
                seen.add(tuple(after.above))
                orders.append(after)
    places = np.array(list(itertools.product(*one.hosts)))
    return max(float(qualities(order.demand(), one.supply, places).max()) for order in orders)


@pytest.mark.parametrize("seed", range(6))
def test_the_default_and_trying_all_find_the_best_of_small_queries(seed):
    one = world(np.random.default_rng(seed), everything=seed % 2 == 0, sources=2, others=4)
    best = best_of_all(one)
    assert exhaustive(one, Budget(evaluations=1)) is not None
    assert one.quality == pytest.approx(best)
    one.scatter()
    best_rates(one, Budget(stale=3), np.random.default_rng(1))
    assert one.quality == pytest.approx(best)
    assert exhaustive(one, Budget(evaluations=1), most=2) is None


def test_figure_5_two_phases_miss_an_order_that_only_the_placement_makes_good():
    # o1 (1/2) must be on the fast node, o2 (1/5) on the slow one: on one node the stricter filter would come first.
    pieces = [source("e", 1.0, 1), select("o1", 0.5, 1, (0,), 1.0), select("o2", 0.2, 1, (1,), 1.0)]
    given_ = Supply(
        nodes=("fast", "slow"),
        work=np.array([500.0, 100.0]),
        core=np.array([500.0, 100.0]),
        memory=np.full(2, INF),
        bandwidth=np.full((2, 2), INF),
        propagation_s=np.zeros((2, 2)),
    )

    def start():
        return RatesPlacement(query(pieces, [(), (0,), (1,)]).first_order(), [(0,), (0,), (1,)], given_, np.random.default_rng(1))

    one = start()
    exhaustive(one, Budget(evaluations=1))
    assert one.quality == pytest.approx(200.0)  # o1 first: 1 x <= 500 and 0.5 x <= 100
    other = start()
    other.apply((SWAP, 0, 0))
    assert other.quality == pytest.approx(100.0)
    # Both may run on either node, but memory admits only one per node; the first phase assumes all on the fast node.
    pieces[1], pieces[2] = (msgspec.structs.replace(piece, fixed_bytes=size) for piece, size in zip(pieces[1:], (3.0, 2.0), strict=True))
    tight = msgspec.structs.replace(given_, memory=np.array([3.0, 2.0]))
    order = query(pieces, [(), (0,), (1,)]).first_order()
    free = RatesPlacement(order, [(0,), (0, 1), (0, 1)], tight, np.random.default_rng(1), np.array([0, 0, 0]))
    free.supply = given_
    phases = exhaustive_two_phase(free, Budget(evaluations=1))
    assert phases is not None
    stricter_first = free.at.order
    placed = RatesPlacement(stricter_first, [(0,), (0, 1), (0, 1)], tight, np.random.default_rng(1), np.array([0, 0, 1]))
    placed.alpha = 1.0
    reactive_tabu(placed, Budget(evaluations=200), np.random.default_rng(1), iterations=20)
    assert placed.quality == pytest.approx(100.0)
    whole = RatesPlacement(order, [(0,), (0, 1), (0, 1)], tight, np.random.default_rng(1), np.array([0, 0, 1]))
    exhaustive(whole, Budget(evaluations=1))
    assert whole.quality == pytest.approx(200.0)


def searches(seed):
    def rng():
        return np.random.default_rng(seed)

    return {
        "greedy": greedy,
        "tabu": lambda one, budget: tabu(one, budget, rng(), iterations=60),
        "reactive": lambda one, budget: reactive_tabu(one, budget, rng(), iterations=60),
        "annealing": lambda one, budget: annealed(one, budget, rng()),
        "two-phase": lambda one, budget: two_phase(lambda again, left: reactive_tabu(again, left, rng(), iterations=30), one, budget),
        "relief": lambda one, budget: relieve(one, budget, rng()),
        "default": lambda one, budget: best_rates(one, budget, rng()),
    }


def large(seed):
    rng = np.random.default_rng(seed)
    asked, hosts = paper_query(rng, sources=6, others=14, nodes=5, choices=3)
    given_ = paper_supply(rng, 5)
    return RatesPlacement(asked.first_order(), hosts, given_, np.random.default_rng(seed))


@pytest.mark.parametrize("name", searches(1))
def test_a_search_keeps_the_best_it_met_repeats_itself_and_is_no_worse_with_more_budget(name):
    found = []
    for evaluations in (1, 400, 400, 4000):
        one = large(3)
        first = one.value()
        record = searches(2)[name](one, Budget(evaluations=evaluations, stale=50))
        assert record.value == pytest.approx(min(value for *_, value in record.curve))
        assert one.value() == pytest.approx(record.value, rel=1e-6)
        assert record.value <= first
        found.append((record.value, one.key))
    assert found[1] == found[2]
    assert found[0][0] >= found[1][0] >= found[3][0]


def test_section_6_3_tabu_goes_on_when_all_moves_are_on_its_list():
    """In the paper it takes as long as reactive tabu, though its list has room for more moves than there are."""
    one = large(3)
    moves = sum(len(group) for group in one.neighbourhoods())
    record = tabu(one, Budget(evaluations=ENDLESS), np.random.default_rng(1), iterations=4 * moves)
    assert record.evaluated > 3 * moves * moves


def test_on_average_random_greedy_tabu_and_reactive_tabu_come_in_this_order_and_the_default_is_not_behind():
    found = dict.fromkeys(("start", "greedy", "tabu", "reactive", "default"), 0.0)
    for seed in range(2):
        for name in found:
            one = large(seed)
            if name != "start":
                searches(1)[name](one, Budget(evaluations=ENDLESS, stale=60))
            found[name] += math.log(one.quality)
    assert found["start"] < found["greedy"] < found["reactive"] + 1e-9
    assert found["default"] > found["reactive"] - 0.01


@given(st.integers(0, 2**32), st.booleans())
@examples(20)
def test_relief_clears_a_multiple_only_if_the_configuration_carries_it(seed, everything):
    rng = np.random.default_rng(seed)
    one = world(rng, points=2, everything=everything)
    one.supply = msgspec.structs.replace(one.supply, latency_s_max=INF)
    quality = one.quality
    if not 0 < quality < INF:
        return
    assert LoadsAt(one, quality * 0.999, rng).clear(Budget(evaluations=ENDLESS))
    assert one.quality == quality
    state = LoadsAt(one, quality * 1.2, rng)
    cleared = state.clear(Budget(evaluations=ENDLESS))
    assert cleared == (one.quality >= quality * 1.2 * (1 - 1e-9))
    fresh = LoadsAt(one, quality * 1.2, rng)
    assert state._load == pytest.approx(fresh._load, rel=1e-6, abs=1e-3)


@given(st.integers(0, 2**32), st.sampled_from(["rates", "per_row_ns", "selectivity"]))
@examples(30)
def test_quality_never_rises_with_a_rate_a_cost_or_a_selectivity(seed, what):
    rng = np.random.default_rng(seed)
    one = world(rng, everything=True)
    order: Order = one.at.order
    pieces = list(order.query.pieces)
    candidates = [row for row, piece in enumerate(pieces) if bool(piece.rates) == (what == "rates")]
    row = candidates[int(rng.integers(len(candidates)))]
    before = getattr(pieces[row], what)
    pieces[row] = msgspec.structs.replace(pieces[row], **{what: (before[0] * 1.5,) if what == "rates" else before * 1.5})
    dearer = msgspec.structs.replace(order.query, pieces=tuple(pieces)).first_order()
    after = float(qualities(dearer.demand(), one.supply, one.node_of[None])[0])
    assert after <= one.quality * (1 + 1e-9)


def test_a_query_that_is_no_tree_or_has_an_operator_without_a_host_is_refused():
    a = source("a", 1.0, 1)
    with pytest.raises(ShapeError, match="expected a tree"):
        query([a, select("s", 0.5, 1), select("t", 0.5, 1)], [(), (0,), (0,)])
    with pytest.raises(ShapeError, match="expected 1 inputs"):
        query([a, source("b", 1.0, 2), select("s", 0.5, 1)], [(), (), (0, 1)])
    with pytest.raises(ShapeError, match="may run nowhere"):
        query([a, select("s", 0.5, 1, ())], [(), (0,)])
    order = query([a, select("s", 0.5, 1)], [(), (0,)]).first_order()
    assert list(allowed(order, 1, 0)) == []
    assert Pair(1, 0, 0) not in order.moves()
    with pytest.raises(ShapeError, match="hosts of 2 operators"):
        RatesPlacement(order, [(0,), (7,)], paper_supply(np.random.default_rng(1), 2), np.random.default_rng(1))
    assert TO_NODE != SWAP


def test_the_default_anneals_where_relief_ends_too_early():
    """On this query of 40 operators, relief reaches 0.80 of reactive tabu's quality, annealing all of it."""
    world = _World(1, 49, small=False)
    relief, _, _ = world.run(lambda one, rng: relieve(one, Budget(stale=ROUNDS), rng))
    default, _, _ = world.run(lambda one, rng: best_rates(one, Budget(stale=ROUNDS), rng))
    assert relief < 0.9 * default


def test_where_links_are_limited_the_default_begins_a_second_time():
    """On this query of 40 operators, relief and annealing from its result reach 0.90 of reactive tabu's quality, the default all of it."""
    world = _World(1, 46, small=False, link_bytes_per_s=125e6, choices=3)

    def first(one, rng):
        relieve(one, Budget(stale=ROUNDS), rng)
        return annealed(one, Budget(evaluations=ENDLESS), rng, COOL, COOL_ITERATIONS)

    once, _, _ = world.run(first)
    default, _, _ = world.run(lambda one, rng: best_rates(one, Budget(stale=ROUNDS), rng))
    assert once < 0.95 * default
