"""Searches in plain numbers agree with polynomials: rates, loads of nodes and links, swaps, moves and bounds."""

import math

import numpy as np
import pytest

from sbon.search.draws import Draws
from sbon.search.interface import Budget
from sbon.search.plain_ground import PlainGround
from sbon.search.plain_moves import PlainMoves
from sbon.search.rates import RatesPlacement
from sbon.search.relief import relieve
from sbon_testbed.throughput.queries import paper_query, paper_supply

SLOW_LINKS = 2e4
"""Bytes per second that some streams of the queries exceed and some do not."""
links_of = pytest.mark.parametrize("bandwidth", [math.inf, SLOW_LINKS, 0.0])


def large(seed, bandwidth=math.inf):
    rng = np.random.default_rng(seed)
    asked, hosts = paper_query(rng, sources=6, others=14, nodes=5, choices=3)
    return RatesPlacement(asked.first_order(), hosts, paper_supply(rng, 5, bandwidth), np.random.default_rng(seed))


def plain(seed, bandwidth):
    one = large(seed, bandwidth)
    tree, links = one.plain_tree()
    assert (links is None) == math.isinf(bandwidth)
    return one, PlainMoves(tree, links, one.hosts, Draws(np.random.default_rng(1)), 0.5)


def found_anew(tree, top):
    """Returns the swaps of an operator, each with the change in work of both operators."""
    return [
        (pair, pytest.approx(one - tree.work[top]), pytest.approx(other - tree.work[pair.bottom]))
        for pair in tree.swaps_of(top)
        for one, other, _ in [tree.swapped(pair)]
    ]


def at_multiple(configuration, x):
    """Returns the work of each node, and the bytes per second of each link with a stream, at a multiple, from polynomials."""
    at, node_of = configuration.at, configuration.node_of.tolist()
    powers = x ** np.arange(at.work.shape[2])
    load = np.zeros(len(configuration.supply.nodes))
    np.add.at(load, configuration.node_of, at.work[:, 0] @ powers)
    links = {}
    for (source, target), sent in zip(at.ends.tolist(), at.sent[:, 0] @ powers, strict=True):
        ends = node_of[source], node_of[target]
        if ends[0] != ends[1]:
            links[ends] = links.get(ends, 0.0) + float(sent)
    return load.tolist(), links


def by_ends(links, nodes):
    return {divmod(slot - nodes, nodes): load for slot, load in links.load.items()}


@links_of
def test_plain_numbers_agree_with_polynomials_after_any_moves(bandwidth):
    """Compares in-place swaps and moves, drawn with annealing's bound, with the configuration that they represent."""
    _, moves = plain(5, bandwidth)
    tree, links = moves.tree, moves.links
    kinds, has_kept, qualities = set(), [], set()
    other = large(5, bandwidth)
    for _ in range(150):
        move = moves.draw()
        before = moves.value()
        bounds = [(factor, moves.is_within(move, before * factor)) for factor in (1.0, 1.3, 3.0)]
        kept = [tree.swaps(top) for top in range(20)]
        moves.apply(move)
        assert [tree.swaps(top) for top in range(20)] == [found_anew(tree, top) for top in range(20)]
        has_kept.append(sum(tree.swaps(top) is one for top, one in enumerate(kept)))
        kinds.add(move[2] is None)
        other.restore(other.taken(moves.snapshot()))
        if bandwidth:
            assert moves.value() == pytest.approx(other.value(), rel=1e-6)
            qualities.add(round(1 / moves.value(), 6))
            assert [is_within for _, is_within in bounds] == [other.value() <= before * factor * (1 + 1e-9) for factor, _ in bounds]
        else:
            assert (moves.value() > 1e100) == (other.value() > 1e100), "a link without a stream counts, or one with a stream does not"
        if links is not None:
            assert by_ends(links, 5) == pytest.approx(at_multiple(other, 1.0)[1], rel=1e-6)
        tree.scale(1.7)
        assert tree.load == pytest.approx(at_multiple(other, 1.7)[0], rel=1e-6)
        if links is None:
            assert tree.quality() == pytest.approx(other.quality, rel=1e-6)
        else:
            links.fill()
            assert by_ends(links, 5) == pytest.approx(at_multiple(other, 1.7)[1], rel=1e-6)
            if bandwidth:
                assert min(tree.quality(), links.quality()) == pytest.approx(other.quality, rel=1e-6)
        swaps = {pair for top in range(20) for pair in tree.swaps_of(top)}
        assert swaps == set(other.at.moves)
        moves.restore(moves.snapshot())
    assert kinds == {True, False}
    assert len(qualities) > 10 or not bandwidth
    assert min(has_kept) >= 16, "a swap recomputed the swaps of unchanged operators"


def test_plain_numbers_allow_the_same_swaps():
    for seed in range(20):
        other = large(seed)
        tree, _ = other.plain_tree()
        assert {pair for top in range(20) for pair in tree.swaps_of(top)} == set(other.at.moves)


@links_of
def test_annealing_values_moves_in_a_row_without_beginning_anew(bandwidth):
    """Values follow from the changes of many moves, not from a fresh start after each."""
    _, moves = plain(7, bandwidth)
    other = large(7, bandwidth)
    for _ in range(200):
        moves.apply(moves.draw())
        value = moves.value()
        other.restore(other.taken(moves.snapshot()))
        assert value == pytest.approx(other.value(), rel=1e-6) or min(value, other.value()) > 1e100
        if moves.links is not None:
            assert by_ends(moves.links, 5) == pytest.approx(at_multiple(other, 1.0)[1], rel=1e-6)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("bandwidth", [math.inf, SLOW_LINKS])
def test_plain_relief_clears_a_multiple_only_if_the_configuration_carries_it(seed, bandwidth):
    one = large(seed, bandwidth)
    rng = np.random.default_rng(seed)
    ground = PlainGround(one, rng)
    quality = ground.quality()
    assert quality == pytest.approx(one.quality, rel=1e-6)
    ground.begin(quality * 0.999)
    assert ground.clear(Budget(evaluations=1e9))
    ground.begin(quality * 1.2)
    cleared = ground.clear(Budget(evaluations=1e9))
    tree, links = ground._tree, ground._links
    one.restore(one.taken(tree.state()))
    load, streams = at_multiple(one, quality * 1.2)
    assert tree.load == pytest.approx(load, rel=1e-6, abs=1e-3)
    if links is not None:
        assert by_ends(links, 5) == pytest.approx(streams, rel=1e-6)
    assert cleared == (one.quality >= quality * 1.2 * (1 - 1e-9))


def test_relief_finds_as_much_in_plain_numbers_as_with_polynomials():
    """Both walk at random, so the same seed gives other moves; over some queries they are as good as one another."""
    found = dict.fromkeys((True, False), 0.0)
    for seed in range(4):
        for is_plain in found:
            one = large(seed, SLOW_LINKS)
            one._is_plain = is_plain
            relieve(one, Budget(stale=10), np.random.default_rng(seed))
            found[is_plain] += math.log(one.quality)
    assert found[True] == pytest.approx(found[False], abs=0.2)
