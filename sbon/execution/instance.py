"""One operator as it runs on this host: its connector or library object, and its inputs and outputs.

The engine and its parts share it. Its measurements are in `Figures`, the batches that wait at it in `Waiting`, the news of a source between
two polls in `Polls`, and its state in `sbon.execution.life`.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from sbon.batching import Cost
from sbon.execution.ends import Input, Output
from sbon.execution.figures import Figures
from sbon.execution.life import Life, State
from sbon.execution.polls import Polls
from sbon.execution.users import Users
from sbon.execution.waiting import Waiting
from sbon.links.link_names import first_name
from sbon.links.origins import numbered
from sbon.links.sender import LinkSender
from sbon.links.unsafe import Mark
from sbon.message_limits import ORIGINS_MAX
from sbon.misfits import Misfits
from sbon.query.params.rowwise import FunctionParams, MapParams, UnnestParams
from sbon.query.params.source import SinkParams, SourceParams
from sbon.query.params.streams import DEALING, MulticastParams, UnionParams
from sbon.query.params.windowed import AssignParams
from sbon.query.plan import Begin, MissRule, OperatorSpec
from sbon.types import LinkId, NodeId, OperatorId
from sbon.watermarks import WATERMARK_END, WATERMARK_MIN

if TYPE_CHECKING:
    from sbon.connectors.interface import Polled, SinkConnector, SourceConnector
    from sbon.deadline_scheduling.on_miss import LateRows
    from sbon.execution.ahead import Ahead
    from sbon.execution.closing import Closing
    from sbon.execution.rows import Rows
    from sbon.execution.work import Task
    from sbon.migration.state_copy import InputLog
    from sbon.operators.operator import Operator
    from sbon.ports import Timer


PASSING = frozenset({MapParams, AssignParams, UnnestParams, UnionParams, MulticastParams, *DEALING})
"""Operators that keep nothing between two batches."""


class Promise(Protocol):
    """A batch that a source has promised; any thread may make it."""

    now: float
    wall: float
    polled: "Polled | None"
    given: "Rows | None"
    ahead: "Sequence[Ahead]"
    """Answers of the operators behind the source to these rows, if a thread has computed them ahead."""
    problem: BaseException | None
    spent_s: float
    cpu_ns: int

    def make(self) -> "Polled": ...
    def begin(self) -> bool: ...
    @property
    def is_made(self) -> bool: ...


class Instance(Life):
    """One operator on this host."""

    def __init__(self, spec: OperatorSpec, epoch: int, state: State = State.BUILDING) -> None:
        super().__init__(state)
        self.spec = spec
        self.id: OperatorId = spec.id
        self.epoch = epoch
        self.users = Users()
        self.inputs: dict[LinkId, Input] = {}
        self.outputs: dict[str, Output] = {}
        self.waiting = Waiting(self.inputs, _misses(spec, spec.on_miss) if isinstance(spec.on_miss, MissRule) else None)
        self.figures = Figures()
        self.polls: Polls[Promise] = Polls()
        self.operator: Operator | None = None
        self.source: SourceConnector | None = None
        self.sink: SinkConnector | None = None
        self.log: InputLog | None = None
        """Log of the operator's input while its state is copied to another host; None at other times."""
        self.watermark_us = WATERMARK_MIN
        self.watermark_out_us = WATERMARK_MIN
        self.busy = False
        """True in the middle of a batch: on an executor thread, or between two slices of the batch or of its answers."""
        self.task: Task | None = None
        """The task on an executor thread that the operator is part of."""
        self.closing: Closing | None = None
        """Answers that are still to be given for the last batch; the operator is busy until then."""
        self.cost = Cost()
        """Cost of tasks that begin with this operator, including those behind it in the same task."""
        self.timer: Timer | None = None
        """Wakes a source to be polled, or a sink that is stalled."""

    @property
    def movable(self) -> bool:
        """True if the operator may run on another host."""
        return self.spec.pinned is None and not isinstance(self.spec.params, SourceParams | SinkParams)

    @property
    def passes(self) -> bool:
        """True if the operator keeps nothing of its inputs. A crash of its host loses only results that are not acknowledged yet, which can
        be made again."""
        params = self.spec.params
        if self.waiting.misses is not None:
            return False  # the rows that it leaves out, or puts off, depend on the moment
        if isinstance(params, FunctionParams):
            return self.operator is not None and self.operator.is_stateless and params.deterministic and 0 < len(self.inputs) <= ORIGINS_MAX
        return type(params) in PASSING and 0 < len(self.inputs) <= ORIGINS_MAX

    def number_inputs(self) -> None:
        """Numbers the inputs of an operator that may have to tell the origins of its rows."""
        if self._may_pass and 1 < len(self.inputs) <= ORIGINS_MAX:
            numbers = numbered(self.inputs)
            for link, incoming in self.inputs.items():
                incoming.origin.number = numbers[first_name(link)]

    def note_origins(self, *, is_noted: bool) -> None:
        """Keeps batches of several origins apart, if the sink notes the origins of the rows that it writes."""
        for incoming in self.inputs.values():
            incoming.origin.is_noted = is_noted

    @property
    def passes_origins(self) -> bool:
        """True if the operator's rows keep the origins of the rows that they are made of: it has one input, and no state."""
        return self._may_pass and len(self.inputs) == 1 and not self.is_multicast and self.waiting.misses is None

    @property
    def _may_pass(self) -> bool:
        return type(self.spec.params) in PASSING or isinstance(self.spec.params, FunctionParams)

    @property
    def made_of_nothing(self) -> tuple[int, ...]:
        """Numbers of rows made of an input that has brought nothing yet; one for each part, if the operator deals its rows."""
        return (0,) * (self.spec.params.instances if isinstance(self.spec.params, DEALING) else 1)

    def is_made_of_input(self, made: tuple[int, ...] | None) -> tuple[int, ...] | None:
        """Returns rows made of an input as another host has told them; None if they do not fit this operator."""
        nothing = self.made_of_nothing
        return made if made is None or len(made) == len(nothing) else None if any(made) else nothing

    @property
    def has_credit(self) -> bool:
        """True if every output would accept another batch."""
        for output in self.outputs.values():  # noqa: SIM110 - asked several times for each batch: without a generator
            if not output.sender.has_credit:
                return False
        return True

    @property
    def stays_for(self) -> str:
        """Describes batches that only this host has; the operator stays until they are processed, or delivered. Empty if there are none."""
        if any(incoming.receiver.processed < incoming.from_former for incoming in self.inputs.values()):
            return "batches that wait at it came from an operator that has crashed, and nobody can send them again"
        spilled = [output for output in self.outputs.values() if output.sender.on_disk]
        return "; ".join(
            f"{output.sender.spilled_batches} batches for {output.link.target} on {output.node} are on disk; it stays here until they are "
            "delivered"
            for output in spilled
        )

    def watermark_without_lost(self, for_good: Callable[[NodeId], bool | None]) -> int | None:
        """Returns the watermark that the operator could advance to without its lost inputs; None if these do not hold it back.

        The operator does not advance to the end of the stream while a lost input may come back (`for_good` returns False for its host).
        """
        if len(self.inputs) < 2 or self.operator is None or self.busy or self.state is not State.RUNNING:
            return None
        least_us = min((i.watermark_us for i in self.inputs.values() if not i.lost), default=self.watermark_us)
        if least_us >= WATERMARK_END and any(i.lost and not i.told_lost and for_good(i.node) is False for i in self.inputs.values()):
            return None
        return least_us if least_us > self.watermark_us else None

    @property
    def watermark_in_us(self) -> int:
        """Least watermark of the inputs, in microseconds."""
        return min((incoming.watermark_us for incoming in self.inputs.values()), default=WATERMARK_MIN)

    @property
    def ended(self) -> bool:
        """True if no input will bring anything more."""
        return self.watermark_us >= WATERMARK_END

    @property
    def is_multicast(self) -> bool:
        """True if the operator only passes on what another one computes."""
        return isinstance(self.spec.params, MulticastParams)

    @property
    def misfits(self) -> Misfits | None:
        """Rows that a source or an operator has left out, and why; None if its kind leaves none out, or does not tell why."""
        if self.operator is not None:
            return self.operator.misfits
        found = getattr(self.source, "misfits", self.figures.misfits)
        return found if isinstance(found, Misfits) else None

    @property
    def dropped_rows(self) -> int:
        """Number of rows left out, whether or not the reason is known."""
        if self.source is not None:
            return self.source.dropped_rows
        return 0 if self.misfits is None else self.misfits.rows

    def drop_operator(self) -> "Operator | None":
        """Removes the operator with its state and returns it, so that the caller can free it on a thread."""
        gone, self.operator = self.operator, None
        if gone is not None:
            self.figures.late_rows, self.figures.misfits = gone.late_rows, gone.misfits
        self.figures.state_bytes = 0
        return gone

    def sample(self, now: float, here: NodeId = "") -> None:
        """Samples all rates, and whether the operator is blocked; called once a second. Learns the bytes of a row from links to other nodes
        than `here`."""
        waiting = self.waiting
        waiting.blocked_samples = waiting.blocked_samples + 1 if waiting.blocked else 0
        self.figures.sample(now)
        for incoming in self.inputs.values():
            incoming.byte_rate.sample(now, incoming.bytes_in)
            incoming.steady_rate.sample(now, incoming.bytes_in)
        for outgoing in self.outputs.values():
            outgoing.byte_rate.sample(now, outgoing.bytes_out)
            outgoing.steady_rate.sample(now, outgoing.bytes_out)
            outgoing.row_rate.sample(now, outgoing.sender.rows_offered)
            if here and outgoing.node != here and outgoing.row_rate.per_s > 0 and outgoing.byte_rate.per_s > 0:
                self.figures.port_costs.sent(round(outgoing.row_rate.per_s), round(outgoing.byte_rate.per_s))


def mark_of(instance: Instance, incoming: Input) -> Mark[tuple[LinkSender, int]]:
    """Returns what an operator without state has made and sent of all batches of an input up to the last processed one."""
    mark = _mark_of(instance, incoming)
    return mark._replace(is_level=False) if any(output.giving.is_due for output in instance.outputs.values()) else mark


def _mark_of(instance: Instance, incoming: Input) -> Mark[tuple[LinkSender, int]]:
    senders = [output.sender for output in instance.outputs.values()]
    given = tuple([(sender, sender.offered) for sender in senders])
    parts: tuple[int, ...] = ()
    if incoming.origin.number:
        own = incoming.origin.made
        parts = own or () if isinstance(instance.spec.params, DEALING) else ()
        return Mark(incoming.receiver.processed, None if own is None else sum(own), parts, given)
    if isinstance(instance.spec.params, DEALING):
        dealt = sorted((o.link.part.index, o.sender.rows_offered - o.giving.rows) for o in instance.outputs.values() if o.link.part)
        parts = tuple([rows for _, rows in dealt])
    made = None if instance.is_multicast else instance.figures.rows_out
    return Mark(incoming.receiver.processed, made, parts, given, incoming.origin.by_origin())


def defers(instance: Instance) -> bool:
    """Tells whether rows that would be late are put off, not left out."""
    return bool(getattr(instance.spec.params, "defers", False))


def deferred_rows(instance: Instance) -> int:
    """Returns the rows that were put off and have not been worked on yet."""
    return int(getattr(instance.operator, "deferred_rows", 0))


def _misses(spec: OperatorSpec, rule: MissRule) -> "LateRows":
    from sbon.deadline_scheduling.on_miss import LateRows

    has_keys = isinstance(spec.params, FunctionParams) and bool(spec.params.partition)
    return LateRows(rule.latency_ms / 1000, rule.fairness, classes=2 if has_keys else 1)


def is_threaded(instance: Instance) -> bool:
    """Tells whether the source may be polled on an executor thread."""
    return bool(getattr(instance.source, "threaded", False))


def can_promise(instance: Instance) -> bool:
    """Tells whether the source promises batches that any thread may make (`prefetch`)."""
    return is_threaded(instance) and hasattr(instance.source, "prefetch")


def begin_at(operator: "Operator | None", spec: OperatorSpec, *, is_whole: bool) -> None:
    """Tells an operator from which instant on its answers count, if rows after that depend on it, too.

    Parameters
    ----------
    is_whole : True if the operator has no row from before that instant
    """
    begins_at = getattr(operator, "begins_at", None)
    if begins_at is not None and isinstance(spec.begin, Begin):
        begins_at(spec.begin.us, is_whole=is_whole)
