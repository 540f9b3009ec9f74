"""Chooses the cost model by the settings, so that nobody else has to know one."""

from sbon.cost.model import CostModel
from sbon.cost.network_usage import NetworkUsage
from sbon.placement.config import PlacementConfig


def model_of(config: PlacementConfig) -> CostModel:
    """Returns the model that placement and the optimisers minimise."""
    return NetworkUsage(config.load_weight)
