"""Tells receivers of links which operator sends on them now, after a link has passed to a multicast or back (`sbon.links.passing`).

`sbon.rearranging.multicasting` calls `tell` after each such change, and the periodic work of the agent calls `look`.

Until the receiver has answered, the sending operator and those that sent before stay on this host (`Output.staying`). So requests that the
receiver sends under an old name (a migration's lock, a query that wants to use everything upstream) still reach this host, which finds the
link by its id.
"""

from collections.abc import Callable
from functools import partial

from sbon.delivery.flow import Flow
from sbon.errors import LocalProtocolError, SbonError
from sbon.execution.ends import Output
from sbon.execution.instance import Instance
from sbon.execution.life import State
from sbon.execution.operators import Operators
from sbon.links.ends import pause_s
from sbon.links.passing import Action, Noted, Passing
from sbon.peers.directory import Directory, Done
from sbon.ports import Clock
from sbon.shell import Shell
from sbon.types import LinkId, OperatorId
from sbon.wire.deployment import InputLost
from sbon.wire.links import Handed, Moved
from sbon.wire.messages import Done as DoneMessage
from sbon.wire.messages import Message


class Telling:
    """Sends the messages about a link's new source, and handles those of other hosts."""

    def __init__(
        self, host: Clock, directory: Directory, operators: Operators, flow: Flow, is_leaving: Callable[[OperatorId], bool]
    ) -> None:
        self._host = host
        self._directory = directory
        self._operators = operators
        self._flow = flow
        self._is_leaving = is_leaving
        self._passing = Passing()
        self._shell = Shell[Action](host, self._passing, self._perform)
        self._told: dict[LinkId, Callable[[], None]] = {}
        """Callbacks to call when a link's receiver has answered."""
        self._lost: dict[LinkId, bool] = {}
        """Outputs of multicasts, and whether their receivers were last told that the multicast has lost its source."""
        self._said: dict[LinkId, tuple[int, float]] = {}
        """Inputs that have brought nothing to an operator that moved here: the number of the next message to their sender, and its time."""

    # ----------------------------------------------------------------------------------------------------- telling

    def tell(self, outputs: list[Output], told: Callable[[], None] = lambda: None) -> None:
        """Tells the receivers of these outputs which operator has the sending end now; calls `told` for each that has answered."""
        for output in outputs:
            output.staying.add(output.link.source)
            self._told.setdefault(output.link.id, told)
            self._shell.do(self._passing.passed(output.link.id, output.link.handed))

    def _perform(self, action: Action) -> None:
        found = self._flow.ends.gives(action.link)
        if isinstance(action, Noted):
            if found is not None:
                found[1].staying.clear()
            self._told.pop(action.link)()
        elif found is None:
            del self._told[action.link]
            self._shell.do(self._passing.gone(action.link))
        else:
            handed = Handed(link=found[1].link, node=self._directory.me)
            self._directory.request(found[1].node, handed, partial(self._answered, action.link))

    def _answered(self, link: LinkId, result: Message | SbonError) -> None:
        refused = isinstance(result, SbonError)
        self._shell.do(self._passing.refused(link, self._host.now()) if refused else self._passing.answered(link))

    def look(self) -> None:
        """Repeats news that other hosts may not have heard; called every second."""
        self.look_at_losses()
        self.say_where()

    def look_at_losses(self) -> None:
        """Tells the receivers of multicasts whether the multicast has lost its only input.

        An operator stops waiting for a source that has crashed. If a multicast lies between them, only the multicast's host sees the crash.
        """
        outputs: dict[LinkId, tuple[Output, bool]] = {}
        for instance in self._operators.instances.values():
            if instance.is_multicast:
                lost = any(incoming.lost for incoming in instance.inputs.values())
                outputs |= {link: (output, lost) for link, output in instance.outputs.items() if output.told}
        for link in self._lost.keys() - outputs.keys():
            if self._flow.ends.gives(link) is None:
                del self._lost[link]
        for link, (output, lost) in outputs.items():
            if lost != self._lost.get(link, False):
                self._tell_loss(output, lost)

    def say_where(self) -> None:
        """Tells the hosts of inputs that have brought nothing about the operators that have moved here.

        The former host repeats this news, too, but may crash before a neighbour has heard it; the neighbour would then send to the former
        host for ever. An input may also just have no rows, so the message is repeated after the pauses of `sbon.links.ends.pause_s`. A
        neighbour on this host may have been made again after the move, by an owner that had not heard of the move.
        """
        now, me = self._host.now(), self._directory.me
        moved = [one for one in self._operators.instances.values() if one.state is State.RUNNING and one.epoch]
        inputs = [(instance, incoming) for instance in moved for incoming in instance.inputs.values()]
        for instance, incoming in inputs:
            giving = self._flow.ends.gives(incoming.link.id)
            if giving is not None and giving[1].node != me:
                self._flow.moved(instance.id, me, instance.epoch)
        silent = {one.link.id: (instance, one) for instance, one in inputs if one.node != me and one.reply is None}
        self._said = {link: self._said.get(link, (1, now + pause_s(1))) for link in silent}
        for link, (tries, due_s) in self._said.items():
            if due_s <= now:
                instance, incoming = silent[link]
                self._directory.tell(incoming.node, Moved(operator=instance.id, node=me, epoch=instance.epoch))
                self._said[link] = tries + 1, now + pause_s(tries + 1)

    def _tell_loss(self, output: Output, lost: bool) -> None:
        output.staying.add(output.link.source)

        def answered(result: Message | SbonError) -> None:
            if not self._passing.is_telling(output.link.id):  # otherwise the receiver still has to learn the new source
                output.staying.clear()
            if not isinstance(result, SbonError):
                self._lost[output.link.id] = lost

        ask = InputLost(operator=output.link.target, link=output.link.id, back=not lost)
        self._directory.request(output.node, ask, answered)

    # ------------------------------------------------------------------------------------------------------ being told

    def handle(self, message: Handed, respond: Done) -> None:
        """Handles the message that another operator has the sending end of an input.

        Raises
        ------
        LocalProtocolError
            The receiving operator is not here, or its migration has already read its record. Repeat the message at its new host.
        """
        link = message.link
        instance = self._operators.instances.get(link.target)
        if instance is None or link.id not in instance.inputs or self._is_leaving(link.target):
            raise LocalProtocolError(f"the receiver of {link.id} is not on {self._directory.me}, or is about to leave it")
        self._flow.passed(link, message.node)
        respond(DoneMessage())


def settled(instance: Instance) -> bool:
    """Tells whether all receivers of an operator know which operator sends on their inputs."""
    return all(output.told for output in instance.outputs.values())
