"""Base class of the optimisers of this host's operators: one review per interval, and questions to candidates.

Reviews come at random times, so that the hosts of a query do not all ask at once.
"""

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from sbon.delivery.flow import Flow
from sbon.execution.operators import Operators
from sbon.membership.gossip import Gossip
from sbon.migration.migrations import Migrations
from sbon.optimiser.config import OptimiserConfig
from sbon.optimiser.views import Ask
from sbon.peers.directory import Directory
from sbon.placement.candidates import CandidateReport
from sbon.placement.config import PlacementConfig
from sbon.ports import SeededExecutor, Timer
from sbon.query.params.kinds import NO_NEEDS, Needs
from sbon.rearranging.candidate_questions import CandidateQuestions
from sbon.rearranging.remembering import Remembering
from sbon.telemetry.recording import Recording
from sbon.types import NodeId

JITTER = 0.25
"""Greatest random deviation of the time between reviews, as a share of the interval."""

Reports = dict[NodeId, CandidateReport]


@dataclass(frozen=True)
class Surroundings:
    """Parts of one host that a review reads and acts through."""

    host: SeededExecutor
    directory: Directory
    gossip: Gossip
    operators: Operators
    flow: Flow
    candidate_questions: CandidateQuestions
    migrations: Migrations
    remembering: Remembering
    recording: Recording


Machine = TypeVar("Machine")


class Reviewing(abc.ABC, Generic[Machine]):
    """Periodic reviews of one kind on one host.

    Subclasses load the optimiser when it is first needed, because most agents host nothing to review.
    """

    def __init__(self, around: Surroundings, config: OptimiserConfig, placement: PlacementConfig) -> None:
        self._host = around.host
        self._directory = around.directory
        self._gossip = around.gossip
        self._operators = around.operators
        self._candidate_questions = around.candidate_questions
        self._migrations = around.migrations
        self._remembering = around.remembering
        self._recording = around.recording
        self._config = config
        self._placement = placement
        self._rng = around.host.rng.spawn(1)[0]
        self._loaded: Machine | None = None
        self._timer: Timer | None = None

    def start(self) -> None:
        """Schedules the next review."""
        pause_s = self._config.interval_s * float(self._rng.uniform(1 - JITTER, 1 + JITTER))
        self._timer = self._host.call_at(self._host.now() + pause_s, self._wake)

    def stop(self) -> None:
        """Stops reviewing."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def reconfigure(self, config: OptimiserConfig) -> None:
        """Uses these settings from the next review on, and schedules that review by the new interval."""
        self._config = config
        self._loaded = None
        if self._timer is not None:
            self.stop()
            self.start()

    @abc.abstractmethod
    def _review_all(self) -> None:
        """Reviews every operator here."""

    def _wake(self) -> None:
        self.start()
        self._review_all()

    def _ask(self, question: Ask, done: Callable[[Reports], None], needs: Needs = NO_NEEDS) -> None:
        """Asks the candidates. `done` gets the reports of those that answered, once all have answered or timed out."""
        waiting = set(question.candidates)
        reports: Reports = {}

        def answered(node: NodeId, report: CandidateReport | None) -> None:
            waiting.discard(node)
            if report is not None:
                reports[node] = report
            if not waiting:
                done(reports)

        for node in question.candidates:
            self._candidate_questions.ask(node, question.about, (), self._config.answer_timeout_s, answered, needs=needs)
