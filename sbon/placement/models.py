"""Chooses the cost model by the settings, so that no other module has to know one."""

from collections.abc import Callable, Sequence

import numpy as np

from sbon.cost.model import CostModel
from sbon.cost.network_usage import NetworkUsage
from sbon.placement.config import PlacementConfig
from sbon.types import NodeId


def model_of(config: PlacementConfig) -> CostModel:
    """Returns the model that placement and the optimisers minimise."""
    return NetworkUsage(config.load_weight)


def cost_of_links(
    config: PlacementConfig, links: Sequence[tuple[NodeId, NodeId, float]], rtt_ms: Callable[[NodeId, NodeId], float | None]
) -> float | None:
    """Returns the cost of links between nodes at these rates in bytes/s, without load; None while a round trip is unknown."""
    rtts = [rtt for a, b, _ in links if (rtt := rtt_ms(a, b)) is not None]
    if len(rtts) < len(links):
        return None
    return float(model_of(config).of_links(np.array([rate for _, _, rate in links]), np.array(rtts) / 2).sum())
