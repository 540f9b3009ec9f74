"""Which operators a batch goes through in one task: those behind each other on this host that have nothing else to do.

Rows then pass from one to the next as they are, on one thread, without a queue, a hop or an encoding. It is decided anew for each task, so
that nothing needs to be undone when an operator moves, is shared, or gets another consumer. The links between them go on to count as if
the batches had travelled (`Flow.carried`).
"""

from collections.abc import Mapping
from itertools import islice

from agent.engine.ends import Input, Output
from agent.engine.flow import Flow
from agent.engine.instance import Instance, State
from agent.engine.work import Stage
from sbon.compression import Codec
from sbon.links import Batch
from sbon.query.plan import WATERMARK_END
from sbon.types import NodeId, OperatorId

BATCHES_MAX = 256
"""So many batches of one link are worked on as if they were one."""


def chain(
    instance: Instance, incoming: Input | None, stimulus_s: float, flow: Flow, me: NodeId, instances: Mapping[OperatorId, Instance]
) -> list[Stage]:
    """The operator, and those behind it that can be run in the same task, in order."""
    stages = [_stage(instance, incoming, me)]
    while (found := _behind(stages[-1].instance, stimulus_s, flow, me)) is not None:
        behind, by = found
        if instances.get(behind.id) is not behind or any(stage.instance is behind for stage in stages):
            break
        stages.append(_stage(behind, by, me))
    return stages


def _stage(instance: Instance, incoming: Input | None, me: NodeId) -> Stage:
    others_us = WATERMARK_END
    packing: tuple[Codec, ...] = ()
    for other in instance.inputs.values():
        if other is not incoming and not other.lost:
            others_us = min(others_us, other.watermark_us)
    for output in instance.outputs.values():
        if output.node != me and output.packing.codec not in packing:
            packing = (*packing, output.packing.codec)
    return Stage(instance, incoming, others_us, packing)


def _behind(instance: Instance, stimulus_s: float, flow: Flow, me: NodeId) -> tuple[Instance, Input] | None:
    """The operator that the only output leads to, if it could take a batch of this stimulus time now, before anything else."""
    if len(instance.outputs) != 1:
        return None
    output = next(iter(instance.outputs.values()))
    if output.node != me:
        return None
    found = flow.consumer(output.link.id)
    if found is None:
        return None
    behind, incoming = found
    if behind.state is not State.RUNNING or behind.busy or not behind.has_credit or not _is_empty(output, incoming):
        return None
    if incoming.link.port == behind.held_port or (behind.operator is not None and behind.operator.spread > 1):
        return None  # the latter is given slices of its own
    return found if behind.earliest_s >= stimulus_s else None


def _is_empty(output: Output, incoming: Input) -> bool:
    """Nothing is under way on the link, and both ends have counted alike."""
    receiver = incoming.receiver
    return output.sender.is_settled and receiver.received == receiver.processed == output.sender.offered


def backlog(incoming: Input, rows_max: int) -> list[Batch]:
    """The first batch of a link, and what waits behind it and fits into the same quantum: a backlog turns into large batches by itself."""
    batches = [incoming.queue.head]
    if len(incoming.queue) > 1:
        rows = batches[0].rows
        for batch in islice(incoming.queue, 1, BATCHES_MAX):
            rows += batch.rows
            if rows > rows_max:
                break
            batches.append(batch)
    return batches
