"""Cities on a globe: their positions, and the RTTs between them through fibre.

Positions are rounded to a tenth of a degree. The RTT of two cities is that of the great circle in fibre (two thirds of the speed of
light), times a detour that differs by pair, because cables follow coasts and roads; every node adds its access link.
"""

from typing import NamedTuple

import numpy as np

from sbon.types import FloatArray

EARTH_RADIUS_KM = 6371.0
FIBRE_KM_PER_MS = 299_792.458 / 1000 * 2 / 3
"""Two thirds of the speed of light: 200 km in a millisecond, one way."""


class City(NamedTuple):
    """One row of the table."""

    name: str
    country: str
    region: str
    """Region (eu, na, sa, as, oc, af or me), which is the label `region` of agents there."""
    latitude: float
    longitude: float


CITIES = (
    City("london", "gb", "eu", 51.5, -0.1),
    City("new-york", "us", "na", 40.7, -74.0),
    City("tokyo", "jp", "as", 35.7, 139.7),
    City("sao-paulo", "br", "sa", -23.6, -46.6),
    City("frankfurt", "de", "eu", 50.1, 8.7),
    City("san-francisco", "us", "na", 37.8, -122.4),
    City("singapore", "sg", "as", 1.4, 103.8),
    City("sydney", "au", "oc", -33.9, 151.2),
    City("paris", "fr", "eu", 48.9, 2.4),
    City("chicago", "us", "na", 41.9, -87.6),
    City("mumbai", "in", "as", 19.1, 72.9),
    City("johannesburg", "za", "af", -26.2, 28.0),
    City("stockholm", "se", "eu", 59.3, 18.1),
    City("toronto", "ca", "na", 43.7, -79.4),
    City("dubai", "ae", "me", 25.2, 55.3),
    City("madrid", "es", "eu", 40.4, -3.7),
    City("dallas", "us", "na", 32.8, -96.8),
    City("hong-kong", "hk", "as", 22.3, 114.2),
    City("santiago", "cl", "sa", -33.4, -70.7),
    City("milan", "it", "eu", 45.5, 9.2),
    City("seattle", "us", "na", 47.6, -122.3),
    City("seoul", "kr", "as", 37.6, 127.0),
    City("auckland", "nz", "oc", -36.8, 174.8),
    City("warsaw", "pl", "eu", 52.2, 21.0),
    City("miami", "us", "na", 25.8, -80.2),
    City("lagos", "ng", "af", 6.5, 3.4),
    City("tel-aviv", "il", "me", 32.1, 34.8),
    City("amsterdam", "nl", "eu", 52.4, 4.9),
    City("los-angeles", "us", "na", 34.1, -118.2),
    City("jakarta", "id", "as", -6.2, 106.8),
    City("bogota", "co", "sa", 4.7, -74.1),
    City("dublin", "ie", "eu", 53.3, -6.3),
    City("ashburn", "us", "na", 39.0, -77.5),
    City("taipei", "tw", "as", 25.0, 121.5),
    City("nairobi", "ke", "af", -1.3, 36.8),
    City("vienna", "at", "eu", 48.2, 16.4),
    City("mexico-city", "mx", "na", 19.4, -99.1),
    City("bangkok", "th", "as", 13.8, 100.5),
    City("melbourne", "au", "oc", -37.8, 145.0),
    City("lisbon", "pt", "eu", 38.7, -9.1),
    City("montreal", "ca", "na", 45.5, -73.6),
    City("delhi", "in", "as", 28.6, 77.2),
    City("buenos-aires", "ar", "sa", -34.6, -58.4),
    City("helsinki", "fi", "eu", 60.2, 24.9),
    City("denver", "us", "na", 39.7, -105.0),
    City("osaka", "jp", "as", 34.7, 135.5),
    City("cairo", "eg", "af", 30.0, 31.2),
    City("zurich", "ch", "eu", 47.4, 8.5),
    City("atlanta", "us", "na", 33.7, -84.4),
    City("manila", "ph", "as", 14.6, 121.0),
    City("istanbul", "tr", "me", 41.0, 29.0),
    City("perth", "au", "oc", -32.0, 115.9),
)
"""Cities, ordered so that the first few are spread over the world."""

CABLES: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "atlantic": (frozenset({"eu", "af", "me"}), frozenset({"na", "sa"})),
    "pacific": (frozenset({"as", "oc"}), frozenset({"na", "sa"})),
    "suez": (frozenset({"eu", "af"}), frozenset({"as", "oc", "me"})),
}
"""Regions at either end of each group of cables whose latency an event can scale."""


def great_circle_km(a: City, b: City) -> float:
    """Returns the distance over the surface of a sphere (haversine formula).

    Examples
    --------
    >>> round(great_circle_km(CITIES[0], CITIES[0]))
    0
    """
    lat_a, lat_b = np.radians(a.latitude), np.radians(b.latitude)
    half_lat, half_lon = (lat_b - lat_a) / 2, np.radians(b.longitude - a.longitude) / 2
    chord = np.sin(half_lat) ** 2 + np.cos(lat_a) * np.cos(lat_b) * np.sin(half_lon) ** 2
    return float(2 * EARTH_RADIUS_KM * np.arcsin(np.sqrt(min(1.0, chord))))


def fibre_rtt_ms(cities: list[City], detour: FloatArray) -> FloatArray:
    """Returns the RTTs of the fibre between cities, without access links.

    Parameters
    ----------
    cities : (cities,)
    detour : (cities, cities)
        Ratio of the cable's length to the great circle, at least 1.

    Returns
    -------
    FloatArray
        (cities, cities), ms; 0 within a city.
    """
    distance_km = np.zeros((len(cities), len(cities)))
    for i, a in enumerate(cities):
        for j in range(i):
            distance_km[i, j] = distance_km[j, i] = great_circle_km(a, cities[j])
    return 2 * distance_km * detour / FIBRE_KM_PER_MS
