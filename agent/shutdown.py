"""An agent's departure from the overlay: operators move to other hosts, the other agents are told, then the agent closes."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from sbon.ports import Timer

if TYPE_CHECKING:
    from sbon_agent.node import Agent


class Shutdown:
    """Carries out the departure of one agent."""

    def __init__(self, agent: "Agent") -> None:
        self._agent = agent
        self._timer: Timer | None = None
        self._on_left: list[Callable[[], None]] = []
        self._on_leaving: list[Callable[[float], None]] = []

    def when_leaving(self, call: Callable[[float], None]) -> None:
        """Registers a call for when the agent begins to leave; it gets the seconds that leaving may take."""
        self._on_leaving.append(call)

    def when_left(self, call: Callable[[], None]) -> None:
        """Registers a call for when the agent has left."""
        self._on_left.append(call)

    def begin(self, done: Callable[[], None], within_s: float | None = None) -> None:
        """Moves operators to other hosts, says goodbye, closes, then calls `done`. A second call in the meantime closes the agent at once.

        Parameters
        ----------
        within_s : longest time for moving operators; None for the configured `leaving_s`
        """
        agent, config = self._agent, self._agent.config
        self._on_left.append(done)
        if agent.optimisers.leaving.begun or agent.stopped:
            self.end("told again")
            return
        agent.optimisers.stop()
        within_s = config.leaving_s if within_s is None else within_s
        agent.monitoring.log.info("agent.leaving", within_s=within_s)
        for told in self._on_leaving:
            told(within_s + config.leave_timeout_s)
        agent.optimisers.leaving.begin(within_s, config.optimiser, config.placement, self._say_goodbye)

    def _say_goodbye(self) -> None:
        agent = self._agent
        agent.periodic.save()
        until = agent.host.now() + agent.config.leave_timeout_s
        self._timer = agent.host.call_at(until, partial(self.end, "the goodbye took longer than leave_timeout_s"))
        agent.network.gossip.leave()

    def end(self, why: str) -> None:
        """Closes the agent, then makes the registered calls."""
        if not self._agent.stopped:
            self._agent.monitoring.log.info("agent.left", why=why)
            self._agent.stop()
        told, self._on_left = self._on_left, []
        for done in told:
            done()

    def close(self) -> None:
        """Cancels the timer."""
        if self._timer is not None:
            self._timer.cancel()
