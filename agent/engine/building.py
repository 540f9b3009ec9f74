"""Makes the object that does an operator's work: an operator of the library, or a connector of the agent."""

from collections.abc import Callable

import msgspec

from sbon.connectors.interface import SinkConnector
from sbon.errors import ConnectorError
from sbon.execution.instance import Instance
from sbon.query.params.source import SinkParams, SourceParams
from sbon.state.room import StateRoom
from sbon.watermarks import WATERMARK_MIN
from sbon.wire.deployment import TakenUp
from sbon_agent.connectors.base import ConnectorContext


def load() -> None:
    """Imports the heavy libraries that operators need. Runs on an executor thread."""
    import sbon_agent.connectors.registry  # noqa: F401


def build(
    instance: Instance,
    context: ConnectorContext,
    make_sink: Callable[[Instance, SinkParams], SinkConnector | None],
    taken_up: TakenUp | None = None,
    room: StateRoom | None = None,
) -> None:
    """Gives an instance its operator, source or sink. Runs on an executor thread, because it imports heavy libraries.

    Parameters
    ----------
    context : parts of the agent that this source or sink may use
    make_sink : makes one of the agent's own sinks; returns None for a sink of the connectors
    taken_up : known facts about an operator that begins again after a crash
    room : memory and disk for states that may be larger than memory

    Raises
    ------
    SbonError
        The operator's parameters cannot be used here.
    """
    params = instance.spec.params
    if isinstance(params, SourceParams):
        from sbon_agent.connectors.registry import build_source

        instance.source = build_source(params, context)
        resume = getattr(instance.source, "resume", None)
        if taken_up is not None and resume is not None:
            resume(taken_up.seconds)
        if taken_up is not None and taken_up.begins_behind is not msgspec.UNSET:
            if (places := getattr(instance.source, "places", None)) is None:
                raise ConnectorError(f"source {params.name} cannot begin after {taken_up.begins_behind:,} rows")
            places.begin_behind(taken_up.begins_behind)
    elif isinstance(params, SinkParams):
        from sbon_agent.connectors.registry import build_sink

        instance.sink = make_sink(instance, params) or build_sink(params, instance.spec.schema, context)
        instance.note_origins(is_noted=hasattr(instance.sink, "next_of"))
    else:
        from sbon.operators.registry import build as build_operator

        instance.operator = build_operator(params, context.extensions(), room)
        if instance.watermark_us > WATERMARK_MIN:
            for _ in instance.operator.advance_in_steps(instance.watermark_us):
                pass  # an empty operator gives no rows


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
    match_rows = getattr(instance.sink, "match_rows", None) if taken_up.matches else None

    def open_again() -> None:
        opened()
        rows = rows_since(begun_at)
        if is_fresh:
            begin_here()
        elif match_rows is not None and match_rows():
            instance.waiting.is_found = True
        else:
            instance.waiting.had_written(rows, lost, getattr(instance.sink, "rows_by_origin", None))

    return open_again
