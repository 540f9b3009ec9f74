from itertools import pairwise

import numpy as np
import pytest

from sbon_testbed.transit_stub import generate


@pytest.fixture(scope="module")
def small():
    return generate(np.random.default_rng(4), transit_domains=4, transit_nodes=3, stub_domains=24, stub_nodes=5)


def test_the_papers_network_has_1550_routers_and_a_diameter_of_878_ms_one_way():
    """SBON, section 4.1: 10 transit domains of 5 nodes, 150 stub domains of 10 nodes on average."""
    network = generate(np.random.default_rng(1))
    sizes = np.bincount(np.array(network.stub) + 1)

    assert network.rtt_ms.shape == network.before.shape == (1550, 1550)
    assert sizes[0] == 50
    assert len(sizes) == 151
    assert sizes[1:].min() >= 5
    assert network.rtt_ms.max() / 2 == pytest.approx(878.0)
    assert len(set(network.transit)) == 10


def test_latencies_add_up_along_a_route_and_the_way_back_is_the_same(small):
    rng = np.random.default_rng(1)
    for a, b in rng.integers(len(small.rtt_ms), size=(200, 2)).tolist():
        way = small.route(a, b)

        assert (way[0], way[-1]) == (a, b)
        assert small.route(b, a) == way[::-1]
        assert sum(small.rtt_ms[one, other] for one, other in pairwise(way)) == pytest.approx(small.rtt_ms[a, b])


def test_routes_stay_in_a_domain_and_never_pass_through_a_stub(small):
    stub = np.array(small.stub)
    for a in range(len(stub)):
        for b in range(0, len(stub), 7):
            passed = {stub[router] for router in small.route(a, b)}
            assert passed <= {-1, stub[a], stub[b]}
            if stub[a] == stub[b] != -1:
                assert passed == {stub[a]}


def test_some_routes_are_longer_than_a_detour(small):
    """SBON, section 4.1: IP routes sometimes have sub-optimal latencies, which overlay links avoid."""
    detour = (small.rtt_ms[:, :, None] + small.rtt_ms[None, :, :]).min(axis=1)
    longer = (small.rtt_ms > 1.05 * detour)[np.triu_indices(len(detour), 1)]

    assert 0.01 < longer.mean() < 0.6


def test_the_smallest_network_is_one_router():
    network = generate(np.random.default_rng(1), transit_domains=1, transit_nodes=1, stub_domains=0)

    assert network.rtt_ms.tolist() == [[0.0]]
    assert network.route(0, 0) == [0]
