"""Decides which operators of this host a batch passes through in one task. `sbon.engine.execution` asks before each task.

Rows pass directly from one operator to the next on one thread, without a queue, a change of thread or an encoding. The decision is made
for each task, so nothing has to be undone when an operator moves, is shared, or gets another consumer. The links between the operators
count as if the batches had travelled (`Flow.carried`).
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from sbon.chaining import first_part, passes_on
from sbon.compression import Codec
from sbon.execution.ahead import Behind
from sbon.execution.ends import Input, Output
from sbon.execution.figures import Figures
from sbon.execution.host_links import Links
from sbon.execution.instance import Instance, can_promise
from sbon.execution.life import State
from sbon.execution.work import Stage
from sbon.links.batch import Batch
from sbon.query.params.joined import JoinParams, WindowJoinParams
from sbon.query.plan import Part
from sbon.types import NodeId, OperatorId
from sbon.watermarks import WATERMARK_END

BATCHES_MAX = 256
"""Most batches of one link that are processed as if they were one."""
JOINED_ROWS_MAX = 131_072
"""Most rows of such batches together. Batches are copied to be joined; beyond this size that costs more than the fixed cost that it
saves."""
SOON_S = 0.0002
"""Longest task, in seconds, of a busy operator that is waited for: about the time that a task needs to reach a thread and come back."""


def chain(
    instance: Instance, incoming: Input | None, stimulus_s: float, flow: Links, me: NodeId, instances: Mapping[OperatorId, Instance]
) -> list[Stage]:
    """Returns the stages of a task: the operator, and those behind it that can run in the same task, in order."""
    stages = [_stage(instance, incoming, me)]
    while (found := _behind(stages[-1].instance, stimulus_s, flow, me)) is not None:
        behind, by = found
        if instances.get(behind.id) is not behind or any(stage.instance is behind for stage in stages):
            break
        stages.append(_stage(behind, by, me))
    return stages


def behind_source(source: Instance, flow: Links, me: NodeId) -> list[Behind]:
    """Returns the operators that a batch of a source may pass through before its turn, in order."""
    found: list[Behind] = []
    at = source
    while (consumer := _local_consumer(at, flow, me)) is not None:
        at, incoming = consumer
        operator = at.operator
        if operator is None or not operator.effect_free or operator.spread > 1:
            break
        found.append(Behind(operator, incoming.link.port, at.spec.schema))
    return found


def joins_behind(source: Instance, flow: Links, me: NodeId) -> Iterator[Instance]:
    """Yields the joins on this host that all rows of a source go to, one after the other; no join of a stream with itself."""
    at, seen = source, {source}
    while (consumer := _local_consumer(at, flow, me)) is not None and consumer[0] not in seen:
        at = consumer[0]
        seen.add(at)
        if isinstance(at.spec.params, JoinParams | WindowJoinParams) and at.spec.params.apart:
            yield at


def joins_soon(instance: Instance, flow: Links, me: NodeId) -> bool:
    """Tells whether the next task should wait because an operator behind this one will soon finish earlier batches and can then join the
    chain.

    Without this wait a backlog would never end: each task would find that operator busy with the previous batch, and queue another one.
    """
    seen = [instance]
    while (found := _local_consumer(seen[-1], flow, me)) is not None:
        behind, incoming = found
        if behind in seen or not behind.has_credit or not _takes_whole_batches(behind, incoming):
            return False
        if behind.busy or not _is_empty(_only_output(seen[-1]), incoming):
            task = behind.task
            moves_on = flow.is_carrying if task is None else len(task.stages) == 1 and task.closing is None
            return moves_on and behind.closing is None and behind.cost.is_known and behind.cost.per_batch_s <= SOON_S
        seen.append(behind)
    return False


def first_stages(stages: Sequence[Stage]) -> int:
    """Returns how many stages of a chain one thread should run (`sbon.chaining.first_part`), judged by the recent cost of batches.

    A source that promises batches stays with the operators behind it, because threads make its rows anyway (`sbon.engine.prefetching`). An
    operator that takes fewer batches than the chain, such as the sink behind a window, counts with its share of them.
    """
    quanta = stages[0].instance.figures.accounts.recent_quanta
    return first_part([0.0 if can_promise(stage.instance) else _cost_s(stage.instance.figures, quanta) for stage in stages])


def _cost_s(figures: Figures, quanta: int) -> float:
    """Returns the cost of an operator for a batch of its chain, which has lately had so many."""
    own = figures.accounts.recent_quanta
    return figures.step_cost.per_batch_s * (own / quanta if own < quanta else 1.0)


def _stage(instance: Instance, incoming: Input | None, me: NodeId) -> Stage:
    others_us = WATERMARK_END
    packing: tuple[tuple[Part | None, Codec], ...] = ()
    # A sink with inputs of two plans waits for lost inputs, too: their plan may be the one whose rows are to be written.
    waits = instance.waiting.change is not None and instance.waiting.change.has_both(instance.inputs)
    for other in instance.inputs.values():
        if other is not incoming and (waits or not other.lost):
            others_us = min(others_us, other.watermark_us)
    for output in instance.outputs.values():
        wanted = (output.link.part, output.packing.codec)
        if output.node != me and wanted not in packing:
            packing = (*packing, wanted)
    return Stage(instance, incoming, others_us, packing)


def _behind(instance: Instance, stimulus_s: float, flow: Links, me: NodeId) -> tuple[Instance, Input] | None:
    """Returns the operator that the only output leads to, if it could process a batch of this stimulus time now, before anything else."""
    found = _local_consumer(instance, flow, me)
    if found is None:
        return None
    behind, incoming = found
    if behind.busy or not behind.has_credit or not _is_empty(_only_output(instance), incoming):
        return None
    return found if _takes_whole_batches(behind, incoming) and behind.waiting.earliest_s >= stimulus_s else None


def _local_consumer(instance: Instance, flow: Links, me: NodeId) -> tuple[Instance, Input] | None:
    """Returns the operator on this host that the only output leads to, with its end of the link, if that operator gets all rows."""
    output = next(iter(instance.outputs.values()), None)
    if output is None or not passes_on(len(instance.outputs), is_part=output.link.part is not None):
        return None
    if output.node != me or output.giving.is_due:
        return None
    return flow.ends.takes(output.link.id)


def _only_output(instance: Instance) -> Output:
    return next(iter(instance.outputs.values()))


def _takes_whole_batches(behind: Instance, incoming: Input) -> bool:
    """Tells whether the operator runs, does not hold this input back, and takes batches without slicing."""
    if behind.state is not State.RUNNING or incoming.link.port == behind.waiting.held_port:
        return False
    return behind.operator is None or behind.operator.spread <= 1


def _is_empty(output: Output, incoming: Input) -> bool:
    """Tells whether no batch is in transit on the link and both ends agree on the count."""
    receiver = incoming.receiver
    return output.sender.is_settled and receiver.received == receiver.processed == output.sender.offered


def backlog(incoming: Input, rows_max: int) -> list[Batch]:
    """Returns the first batch of a link and as many of the next ones as fit into the same quantum, `JOINED_ROWS_MAX` rows at most.

    A backlog thus turns into large batches. Operators that pass origins on, and sinks that note them, take batches of one origin only.
    """
    batches, rows_max = [incoming.queue.head], min(rows_max, JOINED_ROWS_MAX)
    if len(incoming.queue) > 1:
        rows, keeps_apart = batches[0].rows, incoming.origin.is_kept_apart
        for batch in islice(incoming.queue, 1, BATCHES_MAX):
            rows += batch.rows
            if rows > rows_max or (keeps_apart and batch.origin != batches[0].origin):
                break
            batches.append(batch)
    return batches
