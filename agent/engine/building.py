"""Makes the object that does an operator's work: an operator of the library, or a connector of the agent."""

from collections.abc import Callable

import msgspec

from sbon.connectors.interface import SinkConnector
from sbon.errors import ConnectorError
from sbon.execution.dealt_turns import take_up
from sbon.execution.instance import Instance, begin_at
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
        begin_at(instance.operator, instance.spec, is_whole=True)
        if instance.watermark_us > WATERMARK_MIN:
            for _ in instance.operator.advance_in_steps(instance.watermark_us):
                pass  # an empty operator gives no rows
        if taken_up is not None:
            instance.operator.begins_again()
            take_up(instance, taken_up)
