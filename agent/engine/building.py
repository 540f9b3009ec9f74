"""From what an operator is to the object that does its work: an operator of the library, or a connector of the agent."""

from collections.abc import Callable

from sbon.query.plan import SinkParams, SourceParams
from sbon_agent.connectors.base import ConnectorContext, SinkConnector
from sbon_agent.engine.instance import Instance


def build(instance: Instance, context: ConnectorContext, make_sink: Callable[[Instance, SinkParams], SinkConnector | None]) -> None:
    """Give an instance its operator, source or sink; on an executor thread, as what it imports is heavy.

    Parameters
    ----------
    context : with what this source or sink may touch
    make_sink : a sink of the agent's own, or None for one of the connectors

    Raises
    ------
    SbonError
        Its parameters make no sense here.
    """
    params = instance.spec.params
    if isinstance(params, SourceParams):
        from sbon_agent.connectors.registry import build_source

        instance.source = build_source(params, context)
    elif isinstance(params, SinkParams):
        from sbon_agent.connectors.registry import build_sink

        own = make_sink(instance, params)
        instance.sink = own if own is not None else build_sink(params, instance.spec.schema, context)
    else:
        from sbon.operators.registry import build as build_operator

        instance.operator = build_operator(params, context.extensions())


def opening(instance: Instance) -> Callable[[], None] | None:
    """What takes hold of the files of a source or sink, and may hang in doing so; None where there is nothing to take hold of."""
    found: Callable[[], None] | None = getattr(instance.source or instance.sink, "open", None)
    return found
