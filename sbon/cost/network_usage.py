"""Network usage: the data in transit at an instant, which placement minimises (SBON, section 2.3)."""

from collections.abc import Iterable, Mapping
from typing import Protocol

import numpy as np

from sbon.cost.latency import Latencies
from sbon.errors import PlacementError, ShapeError
from sbon.types import FloatArray, NodeId, OperatorId

MS_PER_S = 1000.0


class RatedLink(Protocol):
    """The fields of a link that determine its usage: `PlacementLink` and a plan's `LinkSpec` have them."""

    @property
    def source(self) -> OperatorId:
        """Returns the operator upstream."""

    @property
    def target(self) -> OperatorId:
        """Returns the operator downstream."""

    @property
    def rate_bytes_per_s(self) -> float:
        """Returns the data rate on the link."""


def network_usage(rate_bytes_per_s: FloatArray, latency_ms: FloatArray) -> float:
    """Returns the bytes in transit over the links of one query.

    Parameters
    ----------
    rate_bytes_per_s : (links,)
    latency_ms : (links,)
        One way, in the same order.

    Returns
    -------
    float
        Smaller is better; 0 when all operators share a node.

    Raises
    ------
    ShapeError
        The arrays differ in shape.

    Source
    ------
    SBON (Pietzuch et al., ICDE 2006), section 2.3, equation 1.

    Examples
    --------
    >>> network_usage(np.array([1000.0, 500.0]), np.array([10.0, 40.0]))
    30.0
    """
    if rate_bytes_per_s.shape != latency_ms.shape or rate_bytes_per_s.ndim != 1:
        raise ShapeError(f"rates {rate_bytes_per_s.shape} and latencies {latency_ms.shape}, expected two vectors of one length")
    return float(rate_bytes_per_s @ latency_ms) / MS_PER_S


def usage_of_assignment(links: Iterable[RatedLink], assignment: Mapping[OperatorId, NodeId], latencies: Latencies) -> float:
    """Returns the bytes in transit if every operator runs where `assignment` puts it; links within a node count 0.

    Raises
    ------
    PlacementError
        An end of a link has no node.
    """
    ends = []
    rates = []
    for link in links:
        for end in (link.source, link.target):
            if end not in assignment:
                raise PlacementError(f"operator {end!r} has no node, expected one for both ends of {link.source!r} > {link.target!r}")
        ends.append((assignment[link.source], assignment[link.target]))
        rates.append(link.rate_bytes_per_s)
    latency = [latencies.one_way_ms(source, target) for source, target in ends]
    return network_usage(np.array(rates, dtype=np.float64), np.array(latency, dtype=np.float64))
