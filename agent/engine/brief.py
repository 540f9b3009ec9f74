"""Which tasks are brief: over before a thread has been woken for them, and has told that they are done.

A lone message is one row, and what operators do to it takes less than the two wake-ups of a hop to an executor thread and back. Such a
task may be done on the event loop (`sbon_agent.host.Host.execute`), if nothing in it can wait or take long: no file, no user's function,
and no state, as the next watermark may close a window over all of it.
"""

from sbon.query.plan import FunctionParams
from sbon_agent.engine.instance import Instance
from sbon_agent.engine.work import Task

BRIEF_S_MAX = 0.002
"""What the task is expected to take at most, by what those before it have taken. On a thread that had to be woken, that was about twice as
long as it is here."""
BRIEF_ROWS_MAX = 1024
BRIEF_BYTES_MAX = 64 * 1024
"""Of what comes by a link: one long text may take as long as a thousand short ones. What a source gives is made on the event loop, or few
rows by a rule that has been tried (`due_rows` of `sbon_agent.connectors.base.SourceConnector`)."""


def is_brief(task: Task) -> bool:
    """It may be done on the event loop.

    Never the first of its kind, which loads libraries, nor to ask a source that wants to be asked on a thread and has not told before how
    many rows it will give.
    """
    if task.stages[0].instance.source is not None and task.polled is None:
        if task.asked_rows is None:
            return False
        rows, size_bytes = task.asked_rows, 0
    elif task.polled is not None:
        rows, size_bytes = task.polled.rows, 0
    else:
        rows, size_bytes = sum([batch.rows for batch in task.batches]), sum([batch.size_bytes for batch in task.batches])
    if rows > BRIEF_ROWS_MAX or size_bytes > BRIEF_BYTES_MAX:
        return False
    if task.stages[0].instance.cost.expected_s(rows) > BRIEF_S_MAX:
        return False
    return not [stage for stage in task.stages if not _is_light(stage.instance)]


def _is_light(instance: Instance) -> bool:
    if instance.sink is not None:
        return bool(getattr(instance.sink, "brief", False))
    if instance.operator is not None:
        return instance.operator.is_stateless and not isinstance(instance.spec.params, FunctionParams)
    return True  # a multicast, or a source that has been asked
