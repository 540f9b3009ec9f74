"""Payloads of MQTT messages: a source's into lines of JSON, which `json_rows` reads, and a sink's from lines of JSON.

json : a source takes one object, an array of objects, or NDJSON; a sink writes one object a message
msgpack : a source takes one map or an array of maps; a sink writes one map a message. Times are as in JSON, or MessagePack's own
text : the whole payload, UTF-8, is the value of the one column that no topic fills; a sink writes its one column
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from sbon.errors import ConnectorError
from sbon.misfits import Misfits
from sbon.query.schema import Schema
from sbon_agent.connectors.mqtt_topics import TopicColumns, TopicTemplate, column_names, json_value
from sbon_agent.connectors.options import Options

FORMATS = ("json", "msgpack", "text")
Message = tuple[str, bytes]
"""Topic and payload."""
_REFUSED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError, OverflowError)


class PayloadReader:
    """Payloads of one source, as lines of JSON that have the members of the topic's columns, too.

    Parameters
    ----------
    misfits : counts payloads that are of no use as a whole
    """

    def __init__(self, what: str, options: Options, schema: Schema, misfits: Misfits) -> None:
        self._kind = options.choice("format", FORMATS, "json")
        self._topics = TopicColumns(options, schema)
        self._misfits = misfits
        readers = {"json": _json_lines, "msgpack": self._msgpack_lines, "text": self._text_line}
        self._lines: Callable[[bytes], list[bytes]] = readers[self._kind]
        left = [field for field in schema if field.name not in self._topics.names]
        if self._kind == "text" and len(left) != 1:
            names = ", ".join(field.name for field in left)
            raise ConnectorError(
                f"{what}: format = 'text' fills one column, and the source has {names} beside those of the topic", option="format"
            )
        self._text = left[0]

    def rows_max(self, payload: bytes) -> int:
        """Returns a bound on the rows of a payload, found without reading it."""
        if self._kind == "text":
            return 1
        return len(payload) if self._kind == "msgpack" else payload.count(b"{") + payload.count(b"\n") + 1

    def lines(self, topic: str, payload: bytes) -> list[bytes]:
        """Returns the rows of a message."""
        lines = self._lines(payload)
        members = self._topics.members(topic) if self._topics.names else b""
        return [_with_members(line, members) for line in lines] if members else lines

    def _msgpack_lines(self, payload: bytes) -> list[bytes]:
        try:
            given = msgspec.msgpack.decode(payload)
        except _REFUSED as problem:
            detail = "it is nested too deep" if isinstance(problem, RecursionError) else str(problem)
            self._misfits.add("", "is not MessagePack", text=f"the payload is not MessagePack: {detail}", line=payload)
            return []
        lines = []
        for row in given if isinstance(given, list) else [given]:
            try:
                lines.append(msgspec.json.encode(row))
            except (*_REFUSED, TypeError):
                self._misfits.add("", "has a value that is no column's", text="the payload has a value that is no column's", line=payload)
        return lines

    def _text_line(self, payload: bytes) -> list[bytes]:
        try:
            text = payload.decode()
        except UnicodeDecodeError:
            self._misfits.add(self._text.name, "is not UTF-8 (TEXT)", line=payload)
            return []
        return [b"{" + msgspec.json.encode(self._text.name) + b":" + json_value(text, self._text.type) + b"}"]


def _json_lines(payload: bytes) -> list[bytes]:
    """Returns the rows of a payload as they stand there; what is no JSON is left to the reader of lines, which says so."""
    stripped = payload.strip()
    try:
        if stripped.startswith(b"["):
            return [bytes(row) for row in msgspec.json.decode(stripped, type=list[msgspec.Raw])]
        if b"\n" not in stripped:
            return [stripped]
        msgspec.json.decode(stripped, type=msgspec.Raw)
    except _REFUSED:
        return [stripped] if stripped.startswith(b"[") else stripped.split(b"\n")
    return [stripped]  # one object, written over several lines


def _with_members(line: bytes, members: bytes) -> bytes:
    """Returns an object with further members behind its own; they count where it has some of the same name. What is no object stays so."""
    line = line.strip()
    if not (line.startswith(b"{") and line.endswith(b"}")):
        return line
    own = line[1:-1].strip()
    return b"{" + (own + b"," if own else b"") + members + b"}"


class PayloadWriter:
    """Rows of one sink as messages."""

    def __init__(self, what: str, options: Options, schema: Schema) -> None:
        self._kind = options.choice("format", FORMATS, "json")
        self._template = TopicTemplate(what, options, schema)
        left = column_names(schema, self._template.columns)
        if self._kind == "text" and len(left) != 1:
            raise ConnectorError(
                f"{what}: format = 'text' writes one column, and the query has {', '.join(left) or 'none'} beside those of the topic",
                option="format",
            )
        self._column = left[0] if left else ""
        self.too_long = 0
        """Rows left out of the messages made last, as their topic would be too long."""

    def messages(self, lines: Iterable[bytes]) -> list[Message]:
        """Returns a message for each line of JSON."""
        self.too_long = 0
        made = []
        for line in lines:
            row: dict[str, Any] = msgspec.json.decode(line) if self._template.columns or self._kind != "json" else {}
            topic = self._template.topic(row)
            if topic:
                made.append((topic, self._payload(line, row)))
            else:
                self.too_long += 1
        return made

    def _payload(self, line: bytes, row: dict[str, Any]) -> bytes:
        if self._kind == "json":
            return line
        if self._kind == "msgpack":
            return msgspec.msgpack.encode(row)
        value = row[self._column]
        return b"" if value is None else value.encode() if isinstance(value, str) else msgspec.json.encode(value)
