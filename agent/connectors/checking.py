"""Checks the options of sources and sinks in statements, as far as their connectors are installed here, without starting them."""

from __future__ import annotations

from collections.abc import Mapping

from sbon.errors import ConnectorError
from sbon.extensions import Extensions
from sbon.query.params.source import SinkParams
from sbon.query.plan import Plan
from sbon.query.system import SourceDefinition
from sbon.supervision.deployment import refused_sink
from sbon.types import NodeId, OperatorId
from sbon_agent.connectors.base import ConnectorContext
from sbon_agent.connectors.registry import check_sink, check_source, is_known, is_known_sink


class InstalledConnectors:
    """The connectors of one agent; implements `sbon.supervision.statements.Connectors`."""

    def __init__(self, context: ConnectorContext) -> None:
        self._context = context

    def extensions(self) -> Extensions:
        """Returns the extensions installed here."""
        return self._context.extensions()

    def check_source(self, source: SourceDefinition, runs_here: bool) -> str:
        """Checks the options of a source's connector; returns a note if they cannot be checked here, otherwise "".

        Raises
        ------
        ConnectorError
            An option is wrong.
        """
        if not runs_here and not is_known(source.connector, self._context):
            return f"; connector '{source.connector}' is not installed here, so its options are checked there, when a query uses it"
        check_source(source.params, self._context)
        return ""

    def check_sinks(self, plan: Plan, nodes: Mapping[OperatorId, NodeId]) -> None:
        """Checks the options of sinks as their hosts would when the query begins, without making the sinks.

        Parameters
        ----------
        nodes : hosts of the operators

        Raises
        ------
        ConnectorError
            An option is wrong; the message is that of `sbon.supervision.deployment`.
        """
        here = self._context.node
        for spec in plan.operators:
            node = nodes.get(spec.id, here)
            if not isinstance(spec.params, SinkParams) or spec.params.connector == "tail":
                continue
            if node != here and not is_known_sink(spec.params.connector, self._context):
                continue  # its host may have the connector
            try:
                check_sink(spec.params, spec.schema, self._context)
            except ConnectorError as problem:
                raise refused_sink(spec.id, node, problem, here) from problem
