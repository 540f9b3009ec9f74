"""Network usage: the data in transit at an instant, which placement minimises (SBON, section 2.3), and the load of the hosts beside it."""

from sbon.cost.model import SumOfLinks
from sbon.types import FloatArray

MS_PER_S = 1000.0


class NetworkUsage(SumOfLinks):
    """Bytes in transit over the links. A millisecond of a host's load counts like `load_weight` ms of RTT on each link of its operators.

    Parameters
    ----------
    load_weight : weight of a millisecond of load relative to one of RTT; 0 ignores load
    """

    def __init__(self, load_weight: float = 0.0) -> None:
        self._load_weight = load_weight

    def of_links(self, rate_bytes_per_s: float | FloatArray, latency_ms: FloatArray) -> FloatArray:
        """Returns rate x one-way latency, in bytes; 0 within a node.

        Source
        ------
        SBON (Pietzuch et al., ICDE 2006), section 2.3, equation 1.

        Examples
        --------
        >>> import numpy as np
        >>> NetworkUsage().of_links(np.array([1000.0, 500.0]), np.array([10.0, 40.0]))
        array([10., 20.])
        """
        return rate_bytes_per_s / MS_PER_S * latency_ms

    def of_hosts(self, rate_bytes_per_s: float | FloatArray, load_ms: FloatArray) -> FloatArray:
        """Returns load weight x rate x half the load, in bytes."""
        return self._load_weight * (rate_bytes_per_s / MS_PER_S) * load_ms / 2
