"""Periodic work of an agent: takes samples, saves state, and asks whether its operators are still wanted."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from sbon.links.dead_ends import Absence
from sbon.membership.members import MemberStatus
from sbon.ports import Timer
from sbon.types import NodeId
from sbon_agent.state import SavedState

if TYPE_CHECKING:
    from sbon_agent.node import Agent

SAVE_INTERVAL_S = 30.0
"""Seconds between saves of coordinate and incarnation: after a crash the coordinate settles from a state at most this old."""


class PeriodicTasks:
    """The periodic tasks of one agent, except probes and reviews, which have timers of their own."""

    def __init__(self, agent: "Agent") -> None:
        self._agent = agent
        self._timers: dict[str, Timer] = {}

    def start(self) -> None:
        """Starts all tasks; each runs first after its interval."""
        engine = self._agent.config.engine
        self._every("sample", engine.sample_interval_s, self._sample)
        self._every("watch", engine.report_interval_s, self._agent.queries.owned.watching.watch)
        self._every("keep", engine.report_interval_s, self._agent.queries.owned.ownership.look_at_all)
        self._every("save", SAVE_INTERVAL_S, self.save)
        self._every("wanted", engine.wanted_interval_s, self._agent.queries.wanted.ask)

    def stop(self) -> None:
        """Stops all tasks."""
        for timer in self._timers.values():
            timer.cancel()

    def save(self) -> None:
        """Saves coordinate, incarnation and measured costs for the next start."""
        agent = self._agent
        localiser = agent.network.gossip.localiser
        coordinate = localiser.coordinate if localiser.median_relative_error() is not None else None
        agent.files.state.save(SavedState(agent.name, agent.network.gossip.machine.incarnation, coordinate))
        if agent.execution.cost_store.is_timed:  # else no operator has run
            agent.files.costs.save(agent.execution.cost_store.kept(agent.host.now(), agent.host.wall()))

    def _every(self, name: str, interval_s: float, call: Callable[[], None]) -> None:
        host = self._agent.host

        def again() -> None:
            self._timers[name] = host.call_at(host.now() + interval_s, again)
            call()

        self._timers[name] = host.call_at(host.now() + interval_s, again)

    def _sample(self) -> None:
        agent, operators = self._agent, self._agent.execution.operators
        agent.execution.reports.sample()
        agent.monitoring.misfit_log.look(operators.instances.values(), agent.host.now())
        agent.execution.delays.sample(agent.host.now())
        agent.execution.dealings.sample()
        agent.network.directory.keep(agent.execution.flow.outgoing.destinations())
        settings = agent.config.engine
        operators.look_at_outputs(self._absence, settings.lost_consumer_s)
        operators.look_at_inputs(
            lambda node: self._gone_for(node, settings.lost_input_s), lambda node: self._gone_for(node, settings.lost_consumer_s)
        )
        agent.queries.homes.look(settings.orphan_timeout_s)
        agent.optimisers.telling.look()
        agent.monitoring.measuring.sample()
        agent.monitoring.recording.look_at_sinks()

    def _absence(self, node: NodeId) -> Absence | None:
        member = self._agent.network.gossip.members[node]
        gone = member.status in (MemberStatus.FAILED, MemberStatus.LEFT)
        return Absence(member.status.value, self._agent.host.now() - member.since_s) if gone else None

    def _gone_for(self, node: NodeId, seconds: float) -> bool | None:
        """Tells whether a member has left, or has been failed for longer than `seconds`; None for an unknown or forgotten member."""
        member = self._agent.network.gossip.members.get(node)
        if member is None:
            return None
        if member.status is MemberStatus.LEFT:
            return True
        return member.status is MemberStatus.FAILED and self._agent.host.now() - member.since_s > seconds
