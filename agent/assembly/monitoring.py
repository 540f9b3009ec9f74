"""Makes the parts through which an agent reports on itself: log, telemetry, `sys.*` streams and samples of its own figures."""

from typing import TYPE_CHECKING

from sbon.connectors.system_streams import SystemStreams
from sbon.execution.misfit_log import MisfitLog
from sbon.telemetry.recording import Recording
from sbon_agent.logs import structlog
from sbon_agent.measuring import Measuring
from sbon_agent.telemetry.log import Telemetry

if TYPE_CHECKING:
    from sbon_agent.node import Agent


class Monitoring:
    """Log, telemetry and figures of one agent."""

    def __init__(self, agent: "Agent") -> None:
        config, host = agent.config, agent.host
        self.started_at_s = host.now()
        self.log = structlog.get_logger("agent", node=agent.name)
        self.misfit_log = MisfitLog(self.log)
        self.telemetry = Telemetry(config.telemetry, agent.files.telemetry, host, agent.name)
        self.recording = Recording(self.telemetry.record, host.now, host.wall, config.telemetry.latency_window_s)
        self.system = SystemStreams()
        self.measuring = Measuring(agent)
