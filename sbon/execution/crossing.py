"""The change of a sink from one plan of its query to another (docs/replanning.md): which rows of which plan it writes.

    closed        rows of the present plan are written, rows of the other plan dropped
    cut           an event time is chosen: earlier rows are taken from the present plan, the others from the other plan. Later rows of both
                  plans wait, so that either plan can go on
    ready         both plans have promised to give no earlier rows; the owner of the query checks whether all operators are there
    crossed       rows of the other plan are written, rows of the present plan dropped
    called off    rows of the present plan are written, rows of the other plan dropped; also if the query ends before the sink has crossed

A sink may refuse a batch and be offered it again. So `step` judges a batch first, and `commit` counts it once it has been written.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from sbon.errors import LocalProtocolError
from sbon.execution.ends import Input
from sbon.execution.engine import Engine
from sbon.execution.host_links import Links
from sbon.execution.instance import Instance
from sbon.execution.life import State
from sbon.execution.operators import Operators
from sbon.execution.renewing import STEADY
from sbon.links.config import LinkConfig
from sbon.links.link_names import first_name
from sbon.links.receiver import LinkReceiver
from sbon.query.multicast_ids import MULTICAST_MARK
from sbon.query.params.source import SinkParams, newest_us
from sbon.types import LinkId, OperatorId, QueryId
from sbon.watermarks import WATERMARK_MIN
from sbon.wire.deployment import End, User
from sbon.wire.replanning import Cross, Crossing, Cut, Retire, Retired, Uncut

if TYPE_CHECKING:
    import polars as pl

HELD_ROWS_MAX = 1_000_000
"""Most rows that wait in a sink; with more, the sink calls the change off."""


class Step(msgspec.Struct, frozen=True):
    """The judgement on one batch."""

    rows: "pl.DataFrame | None"
    """Rows to write now."""
    held: "tuple[pl.DataFrame | None, pl.DataFrame | None]"
    """Rows that wait after this batch, of the present plan and of the other plan."""
    newest_us: int
    late: int
    is_ready: bool
    is_called_off: bool


class PlanChange:
    """The change of one sink.

    Parameters
    ----------
    links : first names of the links from the other plan
    time_column : column with the event time of the rows
    floor_us : event time at which the sink has crossed to the present plan; earlier rows came from the plan before
    number : number of the change; later changes have higher numbers
    """

    def __init__(self, links: frozenset[LinkId], time_column: str, floor_us: int = WATERMARK_MIN, number: int = 0) -> None:
        self.links, self.time_column, self.floor_us, self.number = links, time_column, floor_us, number
        self.at_us: int | None = None
        self.is_ready = False
        self.has_crossed = False
        self.is_called_off = False
        self.late_rows = 0
        """Rows that were left out because they came behind the event time of a change."""
        self._newest_us = WATERMARK_MIN
        self._held: tuple[pl.DataFrame | None, pl.DataFrame | None] = (None, None)

    def cut(self, after_us: int) -> int:
        """Chooses the event time to cross at, once; returns it."""
        if self.at_us is None:
            self.at_us = max(after_us, self._newest_us, self.floor_us) + 1
        return self.at_us

    def go(self) -> None:
        """Lets the sink cross, if it is ready. Waiting rows of the other plan are written with the next batch."""
        self.has_crossed = self.has_crossed or (self.is_ready and not self.is_called_off)

    def call_off(self) -> None:
        """Lets the present plan go on, unless the sink has crossed. Waiting rows of it are written with the next batch."""
        if not self.has_crossed:
            self.is_called_off = True

    def step(self, link: LinkId, frame: "pl.DataFrame | None", *, both_passed: bool, is_end: bool = False) -> Step:
        """Judges a batch.

        Parameters
        ----------
        both_passed : whether both plans have promised, with this batch, to give no more rows before the event time of the change
        is_end : whether this is the last batch
        """
        other = first_name(link) in self.links
        held, newest_us = self._held, self._newest_us
        if self.has_crossed:
            assert self.at_us is not None
            rows = _since(frame, self.time_column, self.at_us) if other and frame is not None else None
            late = frame.height - rows.height if rows is not None and frame is not None else 0
            return Step(_joined(held[1], rows), (None, None), newest_us, late, is_ready=True, is_called_off=False)
        if frame is not None and not other and self.floor_us > WATERMARK_MIN:
            frame = _since(frame, self.time_column, self.floor_us)
        present = None if other else frame
        if self.is_called_off or is_end:
            return Step(_joined(held[0], present), (None, None), newest_us, 0, is_ready=False, is_called_off=True)
        if frame is not None:
            newest_us = max(newest_us, _newest_us(frame, self.time_column))
        if self.at_us is None:
            return Step(present, held, newest_us, 0, is_ready=False, is_called_off=False)
        if frame is not None:
            later = _since(frame, self.time_column, self.at_us)
            held = (held[0], _joined(held[1], later)) if other else (_joined(held[0], later), held[1])
            present = None if other else _before(frame, self.time_column, self.at_us)
        if sum(one.height for one in held if one is not None) > HELD_ROWS_MAX:
            return Step(_joined(present, held[0]), (None, None), newest_us, 0, is_ready=False, is_called_off=True)
        return Step(present, held, newest_us, 0, is_ready=self.is_ready or both_passed, is_called_off=False)

    def commit(self, step: Step) -> None:
        """Counts a batch whose rows have been written."""
        self._held, self._newest_us = step.held, step.newest_us
        self.late_rows += step.late
        self.is_ready, self.is_called_off = step.is_ready, step.is_called_off

    @property
    def waits(self) -> bool:
        """True if rows still wait although the change has been decided; they are to be written or dropped."""
        return (self.has_crossed or self.is_called_off) and any(one is not None for one in self._held)

    def has_both(self, links: Iterable[LinkId]) -> bool:
        """Tells whether `links` include links of both plans."""
        return len({first_name(link) in self.links for link in links}) > 1

    @property
    def told(self) -> Crossing:
        """Returns how far the sink is. It counts as crossed once the waiting rows are written; then the former plan may end."""
        at_us = WATERMARK_MIN if self.at_us is None else self.at_us
        return Crossing(at_us, self.has_crossed and not self.waits, self.is_ready, self.is_called_off)


def both_passed(change: PlanChange, instance: Instance, incoming: Input, watermark_us: int) -> bool:
    """Tells whether all inputs of a sink have passed the event time of a change, after a batch of `incoming` that takes the sink to
    `watermark_us`.

    An input whose source is lost has not passed it: rows may still come from the operator that is made again in its place.
    """
    at_us = change.at_us
    if at_us is None:
        return False
    # The watermark is the least of all inputs that are not lost, or an earlier one of the sink's.
    own = incoming.watermark_us >= at_us or (watermark_us >= at_us > instance.watermark_us)
    return own and not any(one.lost or (one is not incoming and one.watermark_us < at_us) for one in instance.inputs.values())


def _time(frame: "pl.DataFrame", column: str) -> Any:
    return frame.get_column(column).to_physical()


def _newest_us(frame: "pl.DataFrame", column: str) -> int:
    newest = _time(frame, column).max()
    return newest if isinstance(newest, int) else WATERMARK_MIN


def _since(frame: "pl.DataFrame", column: str, at_us: int) -> "pl.DataFrame":
    return frame.filter((_time(frame, column) >= at_us).fill_null(value=False))


def _before(frame: "pl.DataFrame", column: str, at_us: int) -> "pl.DataFrame":
    return frame.filter((_time(frame, column) < at_us).fill_null(value=True))


def _joined(one: "pl.DataFrame | None", other: "pl.DataFrame | None") -> "pl.DataFrame | None":
    if one is None or other is None:
        return other if one is None else one
    return one.vstack(other)


# -------------------------------------------------------------------------------------------------------------- on the sink's host


def cross(operators: Operators, links: Links, config: LinkConfig, message: Cross) -> None:
    """Gives a sink the links of another plan; repeating it does nothing.

    Raises
    ------
    LocalProtocolError
        It is not possible now, or not here: ask again.
    """
    instance = _sink(operators, message.query, message.operator)
    before = instance.waiting.change
    if before is not None and before.number >= message.number:
        if before.number > message.number or before.is_called_off:
            raise LocalProtocolError(f"the change of sink {message.operator} has been called off")
        return
    names = frozenset(first_name(end.link.id) for end in message.inputs)
    instance.waiting.change = _next_change(instance, names, message.time_column, message.number)
    for end in message.inputs:
        receiver = LinkReceiver(end.link.id, config)
        incoming = instance.inputs[end.link.id] = Input(end.link, end.node, end.schema, receiver, end.watermark_us, end.epoch)
        links.ends.add_taking(instance, incoming)


def given_before(instance: Instance, ends: Iterable[End]) -> tuple[int, int]:
    """Returns how many rows an operator had given before it got these outputs, and an event time that none of these rows exceeds.

    Raises
    ------
    LocalProtocolError
        A multicast has one of the outputs by now.
    """
    found = [instance.outputs.get(end.link.id) for end in ends]
    known = [output.sender.before for output in found if output is not None]
    if len(known) < len(found):
        raise LocalProtocolError(f"a multicast carries an output of {instance.id}")
    rows, watermark_us = max(known, default=(0, WATERMARK_MIN))
    return rows, newest_us(instance.spec.params, watermark_us)


def cut(operators: Operators, engine: Engine, message: Cut) -> Crossing:
    """Chooses where a sink crosses to the other plan; repeating it tells how far the sink is.

    Raises
    ------
    LocalProtocolError
        It is not possible now, or not here: ask again.
    """
    instance = _sink(operators, message.query, message.operator)
    change = instance.waiting.change
    if change is None or change.number != message.number:
        raise LocalProtocolError(f"sink {instance.id} has another change of plan under way, or none")
    if instance.busy and (message.go or change.at_us is None):
        raise LocalProtocolError(f"sink {instance.id} is at work on a batch")
    change.cut(message.after_us)
    if message.go:
        change.go()
        write_waiting(engine, instance)
    return change.told


def uncut(operators: Operators, engine: Engine, message: Uncut) -> Crossing:
    """Lets the present plan of a sink go on, unless the sink has crossed; repeating it does nothing.

    Raises
    ------
    LocalProtocolError
        It is not possible now, or not here: ask again.
    """
    instance = _sink(operators, message.query, message.operator)
    if instance.busy:
        raise LocalProtocolError(f"sink {instance.id} is at work on a batch")
    change = instance.waiting.change
    if change is None or change.number < message.number:
        change = instance.waiting.change = _next_change(instance, frozenset(), "" if change is None else change.time_column, message.number)
    if change.number > message.number:
        return Crossing(at_us=WATERMARK_MIN, has_crossed=False, is_called_off=True)
    change.call_off()
    write_waiting(engine, instance)
    return change.told


def _next_change(instance: Instance, links: frozenset[LinkId], time_column: str, number: int) -> PlanChange:
    """Returns the change that follows the present one of a sink.

    Raises
    ------
    LocalProtocolError
        The present change is not over.
    """
    before = instance.waiting.change
    if before is None:
        return PlanChange(links, time_column, number=number)
    if instance.busy or before.waits or not (before.has_crossed or before.is_called_off):
        raise LocalProtocolError(f"sink {instance.id} is about to change to another plan already")
    floor_us = before.at_us if before.has_crossed and before.at_us is not None else before.floor_us
    return PlanChange(links, time_column, floor_us, number)


def _sink(operators: Operators, query: str, operator: OperatorId) -> Instance:
    instance = operators.instances.get(operator)
    if instance is None or query not in instance.users or not isinstance(instance.spec.params, SinkParams):
        raise LocalProtocolError(f"sink {operator} of {query} is not on {operators.me}")
    if instance.state not in STEADY:
        raise LocalProtocolError(f"sink {operator} is {instance.state.value}")
    return instance


def retire(operators: Operators, engine: Engine, links: Links, is_leaving: Callable[[OperatorId], bool], message: Retire) -> Retired:
    """Ends a query's use of operators here, and its links to and from them; repeating it does nothing.

    Raises
    ------
    LocalProtocolError
        One of them is about to move, or an operator works on a batch from one of them: ask again.
    """
    gone, left, moved = frozenset(message.operators), frozenset(message.left), []
    for instance in list(operators.instances.values()):
        if message.query not in instance.users:
            continue
        if instance.id in gone and is_leaving(instance.id):
            raise LocalProtocolError(f"operator {instance.id} is about to move")
        if instance.id not in gone and _is_fed_by(instance, gone if _of(instance.id) in left else gone | left):
            if instance.busy:
                raise LocalProtocolError(f"operator {instance.id} is at work on a batch")
            if instance.waiting.change is not None and instance.waiting.change.waits:
                write_waiting(engine, instance)
                raise LocalProtocolError(f"sink {instance.id} has yet to write the rows that waited in it")
            if instance.state not in (State.RUNNING, State.FINISHED):
                raise LocalProtocolError(f"operator {instance.id} is {instance.state.value}")
    for instance in list(operators.instances.values()):
        if message.query not in instance.users or instance.id in gone:
            continue
        is_left = _of(instance.id) in left
        ended = gone if is_left else gone | left
        drop_inputs(engine, links, instance, [one for one in instance.inputs.values() if _of(one.link.source) in ended])
        if is_left:  # the query's latency bounds no longer count for this operator
            instance.users.add(User(message.query, instance.users[message.query]))
        for output in list(instance.outputs.values()):
            if output.link.target in gone or (is_left and _of(output.link.target) not in left):
                output.users.discard(message.query)
                if not output.users:
                    operators.disconnect(instance.id, output.link.id)
    for operator in message.operators:
        if operator not in operators.instances and (place := links.ends.place(operator)) is not None:
            moved.append((operator, *place))
        give_up(operators, operator, message.query)
    return Retired(moved=tuple(moved))


def drop_inputs(engine: Engine, links: Links, instance: Instance, dropped: Iterable[Input]) -> None:
    """Removes inputs of an idle operator, and the batches that wait there. Then advances the operator to the watermark of the others."""
    for incoming in dropped:
        while incoming.queue:
            instance.waiting.dequeue(incoming)
        del instance.inputs[incoming.link.id]
        links.drop_input(incoming.link.id)
    if instance.state is State.RUNNING and instance.inputs and instance.watermark_in_us > instance.watermark_us:
        engine.advance(instance, instance.watermark_in_us)
    engine.consider(instance)


def write_waiting(engine: Engine, instance: Instance) -> None:
    """Lets an idle sink write the rows that wait for its change of plan, if the change has been decided."""
    if instance.state is State.RUNNING and instance.waiting.change is not None and instance.waiting.change.waits:
        engine.advance(instance, instance.watermark_us)


def give_up(operators: Operators, operator: OperatorId, query: QueryId) -> None:
    """Ends a query's use of an operator, if it is here; without any other query the operator ends."""
    instance = operators.instances.get(operator)
    if instance is not None:
        instance.users.remove(query)
        if not instance.users:
            operators.destroy(operator)


def _of(operator: OperatorId) -> OperatorId:
    return operator.partition(MULTICAST_MARK)[0]


def _is_fed_by(instance: Instance, operators: frozenset[OperatorId]) -> bool:
    return any(_of(incoming.link.source) in operators for incoming in instance.inputs.values())
