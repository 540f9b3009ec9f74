"""Makes the parts that find hosts for the operators of new queries."""

from typing import TYPE_CHECKING

from sbon.queries.placing import Placing
from sbon.rearranging.candidate_questions import CandidateQuestions
from sbon.rearranging.remembering import Remembering
from sbon.supervision.sharing import Sharing
from sbon_agent.assembly.execution import Execution
from sbon_agent.assembly.network import Network

if TYPE_CHECKING:
    from sbon_agent.node import Agent


class Placement:
    """Chooses hosts, and answers other agents' questions to this host as a candidate."""

    def __init__(self, agent: "Agent", network: Network, execution: Execution) -> None:
        config, host, measuring = agent.config, agent.host, agent.monitoring.measuring
        directory, gossip, operators = network.directory, network.gossip, execution.operators
        self.sharing = Sharing(operators, config.hosting, lambda: measuring.cpu)
        self.candidate_questions = CandidateQuestions(host, directory, gossip, operators, execution.reports, self.sharing, agent.extensions)
        self.remembering = Remembering(host, directory, gossip, config.optimiser)
        self.placing = Placing(
            host, gossip, self.candidate_questions, self.remembering, config.placement, config.optimiser, execution.cost_store
        )
