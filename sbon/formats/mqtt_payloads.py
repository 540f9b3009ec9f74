"""Converts payloads of MQTT messages: those of a source to lines of JSON, which `json_rows` reads, those of a sink from lines of JSON.

json : a source takes one object, an array of objects, or NDJSON; a sink writes one object a message
msgpack : a source takes one map or an array of maps; a sink writes one map a message. Times are as in JSON, or MessagePack's own
text : the whole payload, UTF-8, is the value of the one column that no topic fills; a sink writes its one column
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from sbon.errors import ConnectorError
from sbon.formats.json_documents import NO_LINES, Lines, dense, of_array, of_object
from sbon.formats.mqtt_topics import TopicTemplate, column_names, json_value
from sbon.misfits import Misfits
from sbon.options import Options
from sbon.schema import Schema

FORMATS = ("json", "msgpack", "text")
Message = tuple[str, bytes]
"""Topic and payload."""
_REFUSED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError, OverflowError)


class PayloadReader:
    """Converts payloads of one source to lines of JSON.

    Parameters
    ----------
    schema : the columns that no topic fills
    misfits : counts payloads that cannot be used at all
    """

    def __init__(self, what: str, options: Options, schema: Schema, misfits: Misfits) -> None:
        self._kind = options.choice("format", FORMATS, "json")
        self._misfits = misfits
        readers = {"json": _json_lines, "msgpack": self._msgpack_lines, "text": self._text_line}
        self.lines: Callable[[bytes], Lines] = readers[self._kind]
        """Returns the rows of a payload, one a line."""
        if self._kind == "text" and len(schema) != 1:
            names = ", ".join(field.name for field in schema)
            raise ConnectorError(
                f"{what}: format = 'text' fills one column, and the source has {names} beside those of the topic", option="format"
            )
        self._text = schema[0]

    def rows_max(self, payload: bytes) -> int:
        """Returns a bound on the rows of a payload, found without reading it."""
        if self._kind == "text":
            return 1
        return len(payload) if self._kind == "msgpack" else payload.count(b"{") + payload.count(b"\n") + 1

    def _msgpack_lines(self, payload: bytes) -> Lines:
        try:
            given = msgspec.msgpack.decode(payload)
        except _REFUSED as problem:
            detail = "it is nested too deep" if isinstance(problem, RecursionError) else str(problem)
            self._misfits.add("", "is not MessagePack", text=f"the payload is not MessagePack: {detail}", line=payload)
            return NO_LINES
        lines = []
        for row in given if isinstance(given, list) else [given]:
            try:
                lines.append(msgspec.json.encode(row))
            except (*_REFUSED, TypeError):
                self._misfits.add("", "has a value that is no column's", text="the payload has a value that is no column's", line=payload)
        return Lines(b"\n".join(lines), len(lines))

    def _text_line(self, payload: bytes) -> Lines:
        try:
            text = payload.decode()
        except UnicodeDecodeError:
            self._misfits.add(self._text.name, "is not UTF-8 (TEXT)", line=payload)
            return NO_LINES
        return Lines(b"{" + msgspec.json.encode(self._text.name) + b":" + json_value(text, self._text.type) + b"}", 1)


def _json_lines(payload: bytes) -> Lines:
    """Returns the rows of a payload. Text that is not JSON is left to the reader of lines, which reports it."""
    text = payload.strip()
    try:
        if text.startswith(b"["):
            return of_array(text)
        if b"\n" not in text:
            return Lines(text, 1) if text else NO_LINES
        return Lines(of_object(text), 1)
    except _REFUSED:
        return Lines(text.replace(b"\n", b" "), 1) if text.startswith(b"[") else dense(text)


class PayloadWriter:
    """Makes messages of one sink's rows."""

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
        """Rows that the last call of `messages` left out, because their topics would be too long."""

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
