"""Decides which tasks are so short that they run on the event loop instead of an executor thread.

`sbon.engine.execution` asks for each task.

A lone message is one row, and processing it takes less than the two wake-ups that a detour over an executor thread costs. Such a task may
run on the event loop (`sbon_agent.host.Host.execute`) if nothing in it can block or take long: no file, no user's function, and no operator
with state, since the next watermark may close a window over all of that state.
"""

from sbon.execution.instance import Instance
from sbon.execution.work import Task
from sbon.query.params.rowwise import FunctionParams

BRIEF_S_MAX = 0.002
"""Longest expected duration of a brief task, in seconds, judged by earlier tasks. On a thread that has to be woken first, such a task takes
about twice as long."""
BRIEF_ROWS_MAX = 1024
BRIEF_BYTES_MAX = 64 * 1024
"""Largest input from a link: one long text may take as long as a thousand short ones. The limit does not apply to sources: they make their
rows on the event loop anyway, or have said how few they will give (`due_rows` of `sbon_agent.connectors.base.SourceConnector`)."""


def is_brief(task: Task) -> bool:
    """Tells whether a task may run on the event loop.

    The first task of its kind may not, because it loads libraries; nor may a poll of a source that wants a thread and has not said how many
    rows it will give.
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
