"""Opens the files of a source or sink; a sink that begins again after a crash compares what is there with what it had acknowledged."""

from collections.abc import Callable

from sbon.execution.instance import Instance
from sbon.links.origins import short
from sbon.wire.deployment import TakenUp


def opening(instance: Instance, taken_up: TakenUp | None = None) -> Callable[[], None] | None:
    """Returns the call that opens the files of a source or sink, which may block; None if there is nothing to open.

    A sink that begins again after a crash finds out which rows its earlier copy wrote without acknowledging them, or took without writing
    them.
    """
    found: Callable[[], None] | None = getattr(instance.source or instance.sink, "open", None)
    rows_since = getattr(instance.sink, "rows_since", None)
    if found is None or rows_since is None or taken_up is None or taken_up.begun_at is None:
        return found
    opened, begun_at, lost = found, taken_up.begun_at, taken_up.lost_rows or 0
    is_fresh, begin_here = bool(taken_up.is_fresh), getattr(instance.sink, "begin_here", lambda: None)
    fresh, begin_inputs = frozenset(map(short, taken_up.fresh)), getattr(instance.sink, "begin_inputs", lambda links: None)
    match_rows = getattr(instance.sink, "match_rows", None) if taken_up.matches else None

    def open_again() -> None:
        opened()
        rows = rows_since(begun_at)
        if is_fresh:
            begin_here()
        elif match_rows is not None and match_rows():
            instance.waiting.is_found = True
        else:
            begin_inputs(fresh)
            instance.waiting.had_written(rows, lost, getattr(instance.sink, "rows_by_origin", None))

    return open_again
