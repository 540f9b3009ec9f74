"""The parts that a node gives to its engine. To use another engine than `sbon_agent.engine`, pass it to `sbon_agent.node.Agent`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from sbon.cost.store import CostStore
from sbon.delivery.flow import Flow
from sbon.execution.engine import Engine
from sbon.execution.events import EngineEvents
from sbon.execution.instance import Instance
from sbon.execution.settings import EngineConfig
from sbon.links.config import LinkConfig
from sbon.state_budget import StateBudget
from sbon.types import NodeId, OperatorId
from sbon_agent.connectors.base import ConnectorContext
from sbon_agent.connectors.reaches import Reaches
from sbon_agent.host import Host


@dataclass(frozen=True)
class EngineParts:
    """Parts of one host that an engine works with."""

    me: NodeId
    host: Host
    flow: Flow
    """Links of this host."""
    instances: dict[OperatorId, Instance]
    """Operators of this host; `sbon.execution.operators` adds and removes them."""
    budget: StateBudget
    """Memory for states."""
    cost_store: CostStore
    """Record of measured costs."""
    events: EngineEvents
    context: ConnectorContext
    reaches: Reaches
    config: EngineConfig
    links: LinkConfig


MakeEngine: TypeAlias = Callable[[EngineParts], Engine]
"""Makes the engine of a host."""
