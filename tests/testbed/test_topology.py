"""Topologies: plausible distances, symmetry, determinism, selectors."""

import numpy as np
import pytest

from sbon.errors import ConfigError
from sbon_testbed.cities import CITIES, great_circle_km
from sbon_testbed.topology import CitiesConfig, MatrixConfig, TransitStubConfig, build

CITY = {city.name: city for city in CITIES}
SMALL = TransitStubConfig(transit_domains=4, transit_nodes=3, stub_domains=20, stub_nodes=4, diameter_ms=500)


@pytest.mark.parametrize(
    ("a", "b", "km"),
    [("london", "new-york", 5570), ("tokyo", "sydney", 7820), ("sao-paulo", "johannesburg", 7430), ("paris", "london", 344)],
)
def test_great_circles_have_their_known_length(a, b, km):
    assert great_circle_km(CITY[a], CITY[b]) == pytest.approx(km, rel=0.02)


def test_cities_are_not_nearer_than_light_in_fibre_allows():
    topology = build(CitiesConfig(), 20, seed=3)
    for i in range(20):
        for j in range(i):
            assert topology.rtt_ms[i, j] >= 2 * great_circle_km(CITIES[i], CITIES[j]) / 200


def test_names_are_unique_and_tell_the_city():
    assert build(CitiesConfig(), 3, 1).nodes == ("london", "new-york", "tokyo")
    assert build(CitiesConfig(cities=("paris", "milan")), 5, 1).nodes == ("paris-1", "milan-1", "paris-2", "milan-2", "paris-3")
    assert len({city.name for city in CITIES}) == len(CITIES)


def test_nodes_of_one_city_are_only_their_access_links_apart():
    topology = build(CitiesConfig(cities=("paris",)), 2, 1)
    assert topology.rtt_ms[0, 1] == pytest.approx(topology.access_ms.sum())


@pytest.mark.parametrize(("config", "nodes"), [(CitiesConfig(), 60), (SMALL, 30)])
def test_rtts_are_symmetric_positive_and_drawn_from_the_seed(config, nodes):
    topology = build(config, nodes, seed=9)
    rtt = topology.rtt_ms
    assert (rtt == rtt.T).all()
    assert (np.diag(rtt) == 0).all()
    assert (rtt[~np.eye(nodes, dtype=bool)] > 0).all()
    assert (rtt == build(config, nodes, seed=9).rtt_ms).all()
    assert not (rtt == build(config, nodes, seed=10).rtt_ms).all()
    assert len(set(topology.nodes)) == nodes


def test_the_atlantic_joins_europe_and_america():
    topology = build(CitiesConfig(), 4, 1)
    assert topology.cables["atlantic"][topology.index("london"), topology.index("new-york")]
    assert not topology.cables["atlantic"][topology.index("london"), topology.index("tokyo")]


def test_a_transit_stub_network_keeps_stubs_close_and_some_routes_indirect():
    topology = build(SMALL, 60, seed=2)
    stubs = np.array([labels["stub"] for labels in topology.labels])
    same = (stubs[:, None] == stubs[None, :]) & ~np.eye(60, dtype=bool)
    assert np.median(topology.rtt_ms[same]) < 0.2 * np.median(topology.rtt_ms[~same])
    assert topology.rtt_ms.max() <= 500
    detour = (topology.rtt_ms[:, :, None] + topology.rtt_ms[None, :, :]).min(axis=1)
    assert (detour < topology.rtt_ms - 1e-6).any()


def test_selectors_name_one_some_or_all():
    topology = build(CitiesConfig(), 4, 1)
    assert topology.select("tokyo") == (2,)
    assert topology.select("#3") == (3,)
    assert topology.select("region=eu") == (0,)
    assert topology.select("*") == (0, 1, 2, 3)
    for wrong in ("tokio", "#4", "#x", "region=xx"):
        with pytest.raises(ConfigError):
            topology.select(wrong)


def test_impossible_sizes_and_cities_are_refused():
    with pytest.raises(ConfigError, match="atlantis"):
        build(CitiesConfig(cities=("atlantis",)), 2, 1)
    with pytest.raises(ConfigError, match="stub nodes"):
        build(SMALL, 5000, 1)
    with pytest.raises(ConfigError, match="nodes = 0"):
        build(CitiesConfig(), 0, 1)


def test_a_matrix_file_is_a_topology_too_and_missing_pairs_are_filled(tmp_path):
    pytest.importorskip("sbon_testbed.matrix")
    rtt = np.array([[0.0, 10.0, np.nan], [11.0, 0.0, np.nan], [30.0, np.nan, 0.0]])
    np.savez(tmp_path / "m.npz", rtt=rtt)
    topology = build(MatrixConfig(file="m.npz"), 3, 1, tmp_path)
    assert topology.rtt_ms[0, 1] == 10.0
    assert topology.rtt_ms[0, 2] == 30.0
    assert np.isfinite(topology.rtt_ms).all()
    with pytest.raises(ConfigError):
        build(MatrixConfig(file="m.npz"), 4, 1, tmp_path)
