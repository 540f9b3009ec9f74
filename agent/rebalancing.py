"""Running operators placed anew: the local optimiser (SBON, section 3.2), with real candidates answering and real migrations following.

Every operator on this host that may move is reviewed once an interval, at instants of its own, so that the hosts of one query do not all
ask at once.
"""

from agent.directory import Directory
from agent.engine import Engine
from agent.gossip import Gossip
from agent.host import Host, Timer
from agent.instance import Instance
from agent.migrations import MigrationRecord, Migrations
from agent.surveying import Surveying
from agent.telemetry import Telemetry
from sbon.errors import MigrationError
from sbon.optimiser.config import OptimiserConfig
from sbon.optimiser.local import Ask, LocalOptimiser, Migrate, Neighbour, OperatorView
from sbon.placement.candidates import CandidateReport
from sbon.types import NodeId, OperatorId


class Rebalancing:
    """The local optimiser of one host."""

    def __init__(
        self,
        host: Host,
        directory: Directory,
        gossip: Gossip,
        engine: Engine,
        surveying: Surveying,
        migrations: Migrations,
        config: OptimiserConfig,
        telemetry: Telemetry,
    ) -> None:
        self._host = host
        self._directory = directory
        self._gossip = gossip
        self._engine = engine
        self._surveying = surveying
        self._migrations = migrations
        self._config = config
        self._telemetry = telemetry
        self._rng = host.rng.spawn(1)[0]
        self._machine = LocalOptimiser(config, host.rng.spawn(1)[0])
        self._asking: set[OperatorId] = set()
        self._timer: Timer | None = None

    def start(self) -> None:
        """Begin to review."""
        self._rearm()

    def stop(self) -> None:
        """Review no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def reconfigure(self, config: OptimiserConfig) -> None:
        """Other thresholds from the next review on."""
        self._config = config
        self._machine = LocalOptimiser(config, self._host.rng.spawn(1)[0])

    def arrived(self, instance: Instance) -> None:
        """An operator runs here now that has just moved."""
        self._machine.arrived(instance.id, instance.migrations, self._host.now())

    def migration_ended(self, record: MigrationRecord) -> None:
        """One of ours has moved away, or could not."""
        if record.committed:
            self._machine.forget(record.operator)
        else:
            self._machine.abandoned(record.operator, self._host.now())

    def _rearm(self) -> None:
        pause_s = self._config.interval_s * float(self._rng.uniform(0.75, 1.25))
        self._timer = self._host.call_at(self._host.now() + pause_s, self._review_all)

    def _review_all(self) -> None:
        self._rearm()
        if not self._config.enabled:
            return
        for instance in list(self._engine.instances.values()):
            if instance.id not in self._asking and self._migrations.may_migrate(instance.id):
                self._review(instance)

    def _review(self, instance: Instance) -> None:
        view = self._view(instance)
        question = self._machine.review(view, self._gossip.coordinates(), self._host.now())
        if question is None:
            return
        self._asking.add(instance.id)
        waiting = set(question.candidates)
        reports: list[CandidateReport] = []

        def answered(node: NodeId, report: CandidateReport | None) -> None:
            waiting.discard(node)
            if report is not None:
                reports.append(report)
            if not waiting:
                self._asking.discard(instance.id)
                self._decide(instance, sorted(reports, key=lambda r: r.node))

        for node in question.candidates:
            self._surveying.ask(node, question.about, (), self._config.answer_timeout_s, answered)

    def _decide(self, instance: Instance, reports: list[CandidateReport]) -> None:
        if self._engine.instances.get(instance.id) is not instance or not self._migrations.may_migrate(instance.id):
            return
        decision = self._machine.decide(self._view(instance), reports, self._gossip.coordinates(), self._host.now())
        self._telemetry.record("review", operator=instance.id, decision=type(decision).__name__.lower(), reason=decision.reason)
        if isinstance(decision, Migrate):
            try:
                self._migrations.migrate(instance.id, decision.to, decision.reason)
            except MigrationError as problem:
                self._telemetry.record("review", operator=instance.id, decision="abandoned", reason=str(problem))

    def _view(self, instance: Instance) -> OperatorView:
        incoming = [Neighbour(i.node, i.byte_rate.per_s, upstream=True) for i in instance.inputs.values()]
        outgoing = [Neighbour(o.node, o.byte_rate.per_s, upstream=False) for o in instance.outputs.values()]
        return OperatorView(id=instance.id, here=self._directory.me, neighbours=tuple(incoming + outgoing))


__all__ = ["Ask", "Rebalancing"]
