"""Makes the object that does an operator's work: an operator of the library, or a connector of the agent.

The engine calls it when an operator is instantiated.
"""

from collections.abc import Callable

from sbon.connectors.interface import SinkConnector
from sbon.execution.instance import Instance
from sbon.query.plan import SinkParams, SourceParams
from sbon_agent.connectors.base import ConnectorContext


def build(instance: Instance, context: ConnectorContext, make_sink: Callable[[Instance, SinkParams], SinkConnector | None]) -> None:
    """Gives an instance its operator, source or sink. Runs on an executor thread, because it imports heavy libraries.

    Parameters
    ----------
    context : carries what this source or sink may access
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
    """Returns the call that opens the files of a source or sink, which may block; None if there is nothing to open."""
    found: Callable[[], None] | None = getattr(instance.source or instance.sink, "open", None)
    return found
