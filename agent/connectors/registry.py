"""Finds the connector that a source or sink names, and imports it only when needed. The engine and the planner of statements use it."""

from __future__ import annotations

import difflib
import importlib
from typing import Any, Literal

from sbon.connectors.interface import SinkConnector, SourceConnector
from sbon.errors import ConnectorError
from sbon.query.params.source import SinkParams, SourceParams
from sbon.schema import Schema
from sbon_agent.connectors.base import ConnectorContext

_SOURCES = {
    "datagen": "sbon.connectors.datagen:DatagenSource",
    "file": "sbon_agent.connectors.file_source:FileSource",
    "http": "sbon_agent.connectors.http_source:build_http_source",
    "mqtt": "sbon_agent.connectors.mqtt_source:MqttSource",
    "tcp": "sbon_agent.connectors.tcp:build_tcp_source",
    "system": "sbon.connectors.system_source:SystemSource",
}
_SINKS = {
    "file": "sbon_agent.connectors.file_sink:build_file_sink",
    "http": "sbon_agent.connectors.http_sink:HttpSink",
    "mqtt": "sbon_agent.connectors.mqtt_sink:MqttSink",
    "sse": "sbon_agent.connectors.sse:build_sse_sink",
    "tcp": "sbon_agent.connectors.tcp:build_tcp_sink",
    "discard": "sbon.connectors.discard:DiscardSink",
    "websocket": "sbon_agent.connectors.websocket:build_websocket_sink",
}
_SINK_CHECKS = {
    "file": "sbon_agent.connectors.file_sink:check_file_sink",
    "http": "sbon_agent.connectors.http_sink:check_http_sink",
    "mqtt": "sbon_agent.connectors.mqtt_sink:check_mqtt_sink",
    "sse": "sbon_agent.connectors.sse:check_sse_sink",
    "tcp": "sbon_agent.connectors.tcp:check_tcp_sink",
    "discard": "sbon.connectors.discard:DiscardSink",
    "websocket": "sbon_agent.connectors.websocket:check_websocket_sink",
}
"""Functions that check the options of these sinks without access to files and sockets."""


def build_source(params: SourceParams, context: ConnectorContext) -> SourceConnector:
    """Makes the connector of a physical source, without starting it.

    Raises
    ------
    ConnectorError
        There is no such connector, or an option is unknown or out of range; the message, one line, names it and the allowed values.
    """
    if params.is_table:
        return _build_table(params, context)
    made: SourceConnector = _find("source", params.name, params.connector, _SOURCES, context)(params, context)
    if params.not_null:
        from sbon.connectors.required import RequiredColumns

        made = RequiredColumns(made, params)
    if params.idle_after_us:
        from sbon.connectors.idle import IdleSource

        made = IdleSource(made, params)
    return made


def _build_table(params: SourceParams, context: ConnectorContext) -> SourceConnector:
    if params.connector != "file":
        raise ConnectorError(f"table {params.name}: connector '{params.connector}' reads no tables, expected 'file'", option="connector")
    from sbon_agent.connectors.file_table import FileTable

    return FileTable(params, context)


def check_source(params: SourceParams, context: ConnectorContext) -> None:
    """Refuses options that the source's connector would not accept, as far as that can be known before it starts.

    Raises
    ------
    ConnectorError
        As for `build_source`.
    """
    build_source(params, context).stop()


def is_known(connector: str, context: ConnectorContext) -> bool:
    """Tells whether the connector of a source is built in, or installed here."""
    return connector in _SOURCES or connector in context.extensions().connectors


def is_known_sink(connector: str, context: ConnectorContext) -> bool:
    """Tells whether the connector of a sink is built in, or installed here."""
    return connector in _SINKS or connector in context.extensions().connectors


def build_sink(params: SinkParams, schema: Schema, context: ConnectorContext) -> SinkConnector:
    """Makes the connector of a sink, except `tail`, which the agent makes itself.

    Raises
    ------
    ConnectorError
        As for `build_source`.
    """
    made: SinkConnector = _find("sink", params.name, params.connector, _SINKS, context)(params, schema, context)
    return made


def check_sink(params: SinkParams, schema: Schema, context: ConnectorContext) -> None:
    """Refuses options that the sink's connector would not accept, as far as that can be known without files and sockets.

    The connector of a package is not checked, because that would need making the sink.

    Raises
    ------
    ConnectorError
        As for `build_sink`.
    """
    if params.connector in _SINK_CHECKS:
        _find("sink", params.name, params.connector, _SINK_CHECKS, context)(params, schema, context)
    else:
        _find("sink", params.name, params.connector, _SINKS, context)


def _find(kind: Literal["source", "sink"], name: str, connector: str, table: dict[str, str], context: ConnectorContext) -> Any:
    if connector in table:
        module, _, attribute = table[connector].partition(":")
        return getattr(importlib.import_module(module), attribute)
    added = context.extensions().connectors
    if connector in added:
        from sbon_agent.extensions import load_connector

        try:
            made = getattr(load_connector(connector), kind)
        except ConnectorError as problem:
            raise ConnectorError(f"{kind} {name}: {problem}", option="connector") from problem
        if made is None:
            raise ConnectorError(f"{kind} {name}: connector '{connector}' is no {kind}", option="connector")
        return made
    known = sorted({*table, *context.extensions().connectors_of(kind)} - {"system"})  # `system` is not for statements
    near = difflib.get_close_matches(connector, known, n=1)
    hint = f"; did you mean '{near[0]}'?" if near else "; or install the package that has it on this agent's machine"
    message = f"{kind} {name}: connector '{connector}' is unknown, expected one of {', '.join(known)}{hint}"
    raise ConnectorError(message, option="connector")
