"""Makes a multicast where an operator of this host has several consumers near each other, and ends multicasts that are no longer useful.

The node runs it.

A new multicast starts beside the operator that feeds it and takes over some of its outputs (`sbon.execution.splitting`). Its receivers are
told, then it migrates to its place like any operator. To end, it migrates back beside the feeding operator, which gets the outputs back
(it *folds*). So every change of the tree is either local or a migration, and rows arrive once and in order throughout.

Each multicast on this host has a machine (`sbon.rearranging.multicast_life`), which says what may happen to it. One that has arrived from
another host gets its machine when it is first tended.
"""

from functools import partial
from typing import TYPE_CHECKING

from sbon.delivery.sender_notices import Telling, settled
from sbon.errors import MigrationError
from sbon.execution.ends import Output
from sbon.execution.instance import Instance
from sbon.execution.life import State
from sbon.execution.splitting import feeds
from sbon.migration.outcome import MigrationRecord
from sbon.optimiser.config import OptimiserConfig
from sbon.optimiser.slack import least_slack_ms
from sbon.optimiser.views import BRANCHES_MIN, Branch, Insert, Migrate, SourceView, Stay
from sbon.placement.config import PlacementConfig
from sbon.query.multicast_ids import multicast_id
from sbon.query.params.source import SinkParams
from sbon.rearranging.multicast_life import MulticastLife, Stage
from sbon.rearranging.returning import Returning
from sbon.rearranging.reviewing import Reports, Reviewing, Surroundings
from sbon.types import NodeId, OperatorId

if TYPE_CHECKING:
    from sbon.cost.space import CostSpace
    from sbon.optimiser.multicast import MulticastOptimiser

JOURNEY_PAUSE_S = 2.0
"""Seconds between two attempts to leave."""
SUFFIX_BITS = 40
"""Random bits in the id of a multicast: two multicasts of one operator collide with a chance of one in 10**12."""


class Multicasting(Reviewing["MulticastOptimiser"]):
    """All multicasts that begin or end on one host."""

    def __init__(self, around: Surroundings, config: OptimiserConfig, placement: PlacementConfig, telling: Telling) -> None:
        super().__init__(around, config, placement)
        self._telling = telling
        self._returning = Returning(around, self._stands)
        self._proposed: dict[OperatorId, MulticastLife] = {}
        """Multicasts about which candidates are being asked, by the operator that would feed them."""
        self._lives: dict[OperatorId, MulticastLife] = {}
        """Multicasts here that were made here, or have been tended."""
        self._folded: dict[OperatorId, tuple[int, float]] = {}
        """For operators here: the number of their multicasts that were folded, and the time of the last."""
        self.counters = {"multicasts_made": 0, "multicasts_folded": 0}

    @property
    def _machine(self) -> "MulticastOptimiser":
        """Returns the optimiser; loads it when an operator first has several consumers."""
        if self._loaded is None:
            from sbon.optimiser.multicast import MulticastOptimiser
            from sbon.placement.models import model_of

            self._loaded = MulticastOptimiser(self._config, model_of(self._placement))
        return self._loaded

    # ------------------------------------------------------------------------------------------------------- reviewing

    def _review_all(self) -> None:
        here = self._operators.instances
        self._folded = {operator: past for operator, past in self._folded.items() if operator in here}
        self._forget_absent()
        if self._loaded is not None:
            self._loaded.keep(here)
        for relay in [i for i in here.values() if i.is_multicast]:
            self.tend(relay)
        if not self._config.enabled or not self._config.multicast:
            return
        sources = [i for i in here.values() if self._may_split(i)]
        if not sources:
            return
        from sbon.cost.space import CostSpace

        space = CostSpace(self._gossip.coordinates())

        def review() -> None:
            for instance in sources:
                if self._operators.instances.get(instance.id) is instance and self._may_split(instance):
                    self._review(instance, space)

        # The consumers' nearest nodes suffice, because a good place is near each consumer.
        nodes = [node for instance in sources for node in self._ends(instance)]
        self._remembering.refresh(dict.fromkeys(self._remembering.stale(nodes), ()), review)

    def _ends(self, instance: Instance) -> list[NodeId]:
        """Returns the nodes that a multicast's links would lead to: this one, and the consumers'."""
        return [self._directory.me, *(output.node for output in instance.outputs.values())]

    def _may_split(self, instance: Instance) -> bool:
        """Tells whether the operator's outputs may be handed to a multicast. The cheap test comes first: most operators have one output."""
        return (
            self._leaving(instance) >= BRANCHES_MIN
            and not isinstance(instance.spec.params, SinkParams)
            and instance.id not in self._proposed
            and self._stands(instance)
            and not any(feeds(instance, relay) for relay in self._underway())
        )

    def is_considering(self, operator: OperatorId) -> bool:
        """Tells whether a multicast of an operator is about to be made.

        The operator should not move before that, because its best place changes when it sends fewer copies.
        """
        instance = self._operators.instances.get(operator)
        if instance is None or self._loaded is None or not self._config.multicast or self._leaving(instance) < BRANCHES_MIN:
            return False
        return self._loaded.is_unsure(operator) or any(feeds(instance, relay) for relay in self._underway())

    def _leaving(self, instance: Instance) -> int:
        """Returns the number of outputs to other hosts that carry the same rows."""
        return sum(output.node != self._directory.me and output.link.part is None for output in instance.outputs.values())

    def _underway(self) -> list[Instance]:
        """Returns the multicasts that have been made here and have not left for their places."""
        here = self._operators.instances
        return [here[name] for name, life in self._lives.items() if life.is_under_way and name in here]

    def _life(self, name: OperatorId) -> MulticastLife:
        """Returns the machine of a multicast that is here."""
        life = self._lives.get(name)
        if life is None or life.stage is Stage.GONE:
            life = self._lives[name] = MulticastLife(Stage.STANDING)
        return life

    def _forget_absent(self) -> None:
        """Drops the machines of multicasts that have left or ended."""
        for name, life in list(self._lives.items()):
            if name not in self._operators.instances:
                life.removed()
                del self._lives[name]

    def _stands(self, instance: Instance) -> bool:
        """Tells whether an operator runs and neither it nor a neighbour moves."""
        life = self._lives.get(instance.id)
        is_under_way = life is not None and life.is_under_way
        return instance.state is State.RUNNING and not is_under_way and self._migrations.may_be_rewired(instance.id)

    def _review(self, instance: Instance, space: "CostSpace") -> None:
        operator = instance.id
        remembered = self._remembering.remembered(self._ends(instance))
        question = self._machine.review(self._view(instance), space, self._host.now(), remembered)
        if question is None:
            return
        self._proposed[operator] = MulticastLife()

        def answered(reports: Reports) -> None:
            self._decide(operator, reports, self._proposed.pop(operator))

        self._ask(question, answered)

    def _decide(self, operator: OperatorId, reports: Reports, proposed: MulticastLife) -> None:
        instance = self._operators.instances.get(operator)
        if instance is None or not self._may_split(instance):
            proposed.removed()
            return
        decision = self._machine.decide(self._view(instance), reports, self._gossip.coordinates(), self._host.now())
        self._log(decision)
        if not isinstance(decision, Insert) or self.insert(decision, proposed) is None:
            proposed.removed()

    def _view(self, instance: Instance) -> SourceView:
        folded, at_s = self._folded.get(instance.id, (0, None))
        return SourceView(
            id=instance.id,
            here=self._directory.me,
            branches=tuple(
                Branch(o.link.id, o.node, o.steady_rate.per_s, least_slack_ms(instance.users.slack_ms.get(query) for query in o.users))
                for o in instance.outputs.values()
            ),
            changes=folded,
            since_change_s=None if at_s is None else self._host.now() - at_s,
        )

    # -------------------------------------------------------------------------------------------------------- inserting

    def insert(self, decision: Insert, proposed: MulticastLife | None = None) -> OperatorId | None:
        """Makes a multicast, tells its consumers and sends it on its way.

        Returns its id, or None if something has changed since the decision.

        Parameters
        ----------
        proposed : the machine of the multicast since candidates were asked; None: nobody was asked
        """
        parent = self._operators.instances.get(decision.operator)
        if parent is None or not self._stands(parent) or not all(link in parent.outputs for link in decision.links):
            return None
        if not self._operators.room.free_slots(self._host.now()) or (parent.is_multicast and len(decision.links) == len(parent.outputs)):
            return None  # no slot; or all outputs of a multicast, whose own migration achieves the same
        name = multicast_id(parent.id, f"{int(self._rng.integers(2**SUFFIX_BITS)):010x}")
        relay = self._operators.split(parent.id, decision.links, name)
        self.counters["multicasts_made"] += 1
        life = self._lives[name] = proposed or MulticastLife()
        life.made(decision.to, decision.reason, self._host.now())
        self._telling.tell(list(relay.outputs.values()), partial(self._set_out, name))
        self._recording.multicast("made", parent.id, name, decision.to, decision.reason)
        return name

    def _set_out(self, name: OperatorId) -> None:
        """Starts the migration of a new multicast, once all its consumers know it."""
        relay, life = self._operators.instances.get(name), self._lives.get(name)
        if relay is None or life is None:
            self._forget_absent()
            return
        if not settled(relay) or self._migrations.is_leaving(name) or not life.set_out(self._host.now()):
            return
        try:
            self._migrations.migrate(name, life.there, life.reason, partial(self._move_ended, name, life))
        except MigrationError:
            life.stopped()
            self._try_again(name)

    def _try_again(self, name: OperatorId) -> None:
        self._host.call_at(self._host.now() + JOURNEY_PAUSE_S, partial(self._set_out, name))

    def _move_ended(self, name: OperatorId, life: MulticastLife, record: MigrationRecord) -> None:
        if record.committed:
            life.left()
        else:
            life.stopped()
        if life.stage is Stage.WAITING:
            self._try_again(name)

    # ---------------------------------------------------------------------------------------------------------- folding

    def tend(self, relay: Instance) -> None:
        """Ends a multicast of this host, or moves it back, if it is no longer useful."""
        life = self._life(relay.id)
        if life.is_under_way:
            if not self._migrations.is_leaving(relay.id):
                life.expire(self._host.now())
            return
        if not self._stands(relay):
            return
        if not relay.outputs:
            self._operators.destroy(relay.id)
            life.removed()
        elif any(feeds(parent, relay) for parent in self._operators.instances.values()):
            self._fold(relay, life)
        elif len(relay.outputs) == 1:
            self._returning.consider(relay, life)

    def _fold(self, relay: Instance, life: MulticastLife) -> None:
        parent = next(instance for instance in self._operators.instances.values() if feeds(instance, relay))

        def free() -> bool:
            return self._migrations.may_be_rewired(parent.id) and self._migrations.may_be_rewired(relay.id)

        def folded(outputs: list[Output]) -> None:
            life.folded()
            self.counters["multicasts_folded"] += 1
            self._folded[parent.id] = (self._folded.get(parent.id, (0, 0.0))[0] + 1, self._host.now())
            self._recording.multicast("folded", parent.id, relay.id, self._directory.me)
            self._telling.tell(outputs)

        if free() and settled(relay):
            self._operators.fold(relay.id, parent.id, free, folded)

    def _log(self, decision: Migrate | Insert | Stay) -> None:
        verdict = "insert" if isinstance(decision, Insert) else "noinsert"
        self._recording.review(decision.operator, (decision.operator,), verdict, decision.reason, decision.alternatives)
