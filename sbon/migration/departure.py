"""The shell of one migration away from here: passes events to the coordinator's machine, and carries out its actions."""

from collections.abc import Callable
from functools import partial

from sbon.errors import AuthorityError, LinkError, MigrationError, SbonError
from sbon.execution.instance import Instance
from sbon.membership.members import MemberStatus
from sbon.migration import actions, copy
from sbon.migration.coordinator import Migration
from sbon.migration.outcome import MigrationRecord
from sbon.migration.parts import Parts
from sbon.migration.sending import Sending
from sbon.shell import Shell
from sbon.types import NodeId, OperatorId
from sbon.wire.links import Moved
from sbon.wire.messages import Message
from sbon.wire.migration import Abandon, Activate, Lock, Prepare, Unlock

Event = Callable[[float], list[actions.Action]]


class Departure:
    """One operator on its way to another host."""

    def __init__(
        self, parts: Parts, instance: Instance, there: NodeId, epoch: int, reason: str, ended: Callable[[MigrationRecord], None]
    ) -> None:
        self.instance = instance
        self.phases: dict[str, float] = {}
        self._parts = parts
        self._reason = reason
        self._ended = ended
        now = parts.host.now()
        self.steps = Migration(instance.id, there, epoch, parts.neighbours(instance), _owners(instance), parts.config, now)
        self._shell = Shell(parts.host, self.steps, self._perform)
        self.sending = Sending(parts, instance.id, epoch, there, self._copy_told, self.refused)

    def begin(self) -> None:
        """Starts the migration."""
        self._happens(self.steps.start)

    def node_failed(self, node: NodeId, *, left: bool) -> None:
        """Passes on that a node has failed, or has left in good order."""
        self._happens(lambda now: self.steps.failed(node, now, left=left))

    def refused(self, reason: str) -> None:
        """Passes on that the operator cannot move any more."""
        self._happens(lambda now: self.steps.refused(reason, now))

    def close(self) -> None:
        """Stops timers and the copy; nobody is told."""
        self._shell.close()
        self.sending.close()

    # ---------------------------------------------------------------------------------------------- events and actions

    def _happens(self, event: Event) -> None:
        now = self._parts.host.now()
        wanted = event(now)
        self.phases.setdefault(self.steps.phase.value, now)
        self._shell.do(wanted)

    def _perform(self, action: actions.Action) -> None:
        operator, epoch, there, parts = self.instance.id, self.steps.epoch, self.steps.there, self._parts
        ask, timeout_s = parts.directory.request, parts.config.timeout_s
        match action:
            case actions.AskLock(node, neighbours):
                self._ask_lock(node, neighbours)
            case actions.AskPrepare(node):
                feeds = tuple(sorted({output.node for output in self.instance.outputs.values()}))
                ask(node, Prepare(spec=self.instance.spec, epoch=epoch, coordinator=parts.directory.me, feeds=feeds), self._prepared)
            case actions.Copy():
                self.sending.start()
            case actions.CopyMore():
                self.sending.more()
            case actions.StopCopying():
                self.sending.stop()
            case actions.Pause():
                parts.engine.rest(self.instance, self._paused)
            case actions.Transfer():
                self.sending.finish()
            case actions.Commit():
                self.sending.stop()
                parts.operators.hand_over(operator, there, epoch)
            case actions.SendActivate(node):
                activate = Activate(operator=operator, epoch=epoch)
                ask(node, activate, partial(self._word, node, self.steps.activated, self.steps.unknown_there), timeout_s)
            case actions.SendMoved(node):
                moved = Moved(operator=operator, node=there, epoch=epoch)
                ask(node, moved, partial(self._word, node, lambda now: self.steps.told(node, now), lambda now: []), timeout_s)
            case actions.Resume():
                parts.engine.go_on(self.instance)
            case actions.SendAbandon(node):
                parts.directory.tell(node, Abandon(operator=operator, epoch=epoch))
            case actions.SendUnlock(node, moved):
                parts.directory.tell(node, Unlock(operator=operator, moved=moved))
            case actions.Ended():
                self._shell.close()
                self.phases.setdefault(self.steps.phase.value, parts.host.now())
                self._ended(self._record(action))

    def _copy_told(self, told: copy.Action) -> None:
        """Passes the copy's progress to the coordinator's machine."""
        match told:
            case copy.Progressed():
                self._happens(self.steps.progressed)
            case copy.Copied(left_bytes):
                self._happens(lambda now: self.steps.copied(left_bytes, now))
            case copy.Overtaken():
                self._happens(self.steps.overtaken)
            case copy.Delivered():
                self._happens(self.steps.transferred)

    def _ask_lock(self, node: NodeId, neighbours: tuple[OperatorId, ...]) -> None:
        config, asked_at = self._parts.config, self._parts.host.now()
        lock = Lock(
            operator=self.instance.id,
            neighbours=neighbours,
            coordinator=self._parts.directory.me,
            lease_s=config.lease_s,
            there=self.steps.there,
            epoch=self.steps.epoch,
            sends=any(incoming.node == node for incoming in self.instance.inputs.values()),
        )

        def answered(result: Message | SbonError) -> None:
            if isinstance(result, SbonError):
                unheard = isinstance(result, LinkError)
                self._happens(lambda now: self.steps.not_locked(node, str(result), now, unheard=unheard))
            else:
                self._happens(lambda now: self.steps.locked(node, asked_at, now))

        self._parts.directory.request(node, lock, answered)

    def _prepared(self, result: Message | SbonError) -> None:
        if isinstance(result, SbonError):
            self.refused(f"{self.steps.there} refuses it: {result}")
        else:
            self._happens(self.steps.prepared)

    def _paused(self, problem: BaseException | None) -> None:
        if problem is not None:
            self.refused(f"it does not come to rest: {problem}")
        else:
            instance = self.instance
            self._happens(lambda now: self.steps.paused(self._parts.neighbours(instance), _owners(instance), now))

    def _word(self, node: NodeId, heard: Event, unknown: Event, result: Message | SbonError) -> None:
        """Takes the answer to a message that the migration is committed; the machine repeats unanswered ones.

        An answer may take longer than the pause between two messages. A node that has departed is no longer waited for; it may have done so
        before the commit.
        """
        if not isinstance(result, SbonError):
            self._happens(heard)
        elif (gone := self._parts.departure_of(node)) is not None:
            self.node_failed(node, left=gone is MemberStatus.LEFT)
        elif isinstance(result, MigrationError):
            self._happens(unknown)
        elif isinstance(result, AuthorityError):
            self._happens(lambda now: self.steps.disbelieved(node, now))

    def _record(self, ended: actions.Ended) -> MigrationRecord:
        return MigrationRecord(
            operator=self.instance.id,
            queries=tuple(sorted(self.instance.users)),
            here=self._parts.directory.me,
            there=self.steps.there,
            committed=ended.committed,
            reason=self._reason,
            outcome=ended.reason,
            pause_s=ended.pause_s,
            seconds=ended.seconds,
            state_bytes=self.sending.machine.sent_bytes,
            phases=dict(self.phases),
            copy_s=ended.copy_s,
            rounds=ended.rounds,
        )


def _owners(instance: Instance) -> tuple[NodeId, ...]:
    """Returns the homes of the queries that use an operator."""
    return tuple(sorted(set(instance.users.values())))
