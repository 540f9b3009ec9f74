"""What one agent knows of costs: of operators by signature, of nodes, and of the bandwidth between them."""

from sbon.cost.resources import Bandwidths, NodeBook
from sbon.cost.statistics import StatisticsBook


class Books:
    """The books of one agent; models read them by way of `sbon.planning.gathering`."""

    def __init__(self) -> None:
        self.speed = 1.0
        """Reference ns per ns of this machine."""
        self.statistics = StatisticsBook(speed=lambda: self.speed)
        self.nodes = NodeBook()
        self.bandwidths = Bandwidths()
