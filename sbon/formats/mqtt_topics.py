"""Topics of MQTT: filters of sources, columns filled from topics, and the topics that a sink makes from its rows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import quote

import msgspec

from sbon.arrays import nested_text
from sbon.errors import ConnectorError
from sbon.formats.json_rows import JsonRows
from sbon.formats.time_format import TimeFormat
from sbon.misfits import Misfit, Misfits
from sbon.options import Options
from sbon.schema import ColumnType, Schema, held_type

TOPIC_BYTES_MAX = 65_535
FILTERS_MAX = 64
TOPICS_KNOWN_MAX, TOPIC_BYTES_KNOWN_MAX = 4096, 1024
"""Most topics whose values are remembered, and their greatest length."""
NULL_LEVEL = "%NULL"
"""Text for NULL in a topic. No other value gives this text, as `%` is written `%25`."""
_PLACE = re.compile(r"\{([^{}]*)\}")
_NO_CHARACTERS = "".join(chr(plane << 16 | last) for plane in range(17) for last in (0xFFFE, 0xFFFF))
_TO_ESCAPE = re.compile(rf"[%+#/\x00-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef{_NO_CHARACTERS}]")
"""Characters with a meaning in a topic, or that brokers refuse there."""
_JSON_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,17})?")


def topic_filters(options: Options) -> list[str]:
    """Returns the filters of the option `topics`.

    Raises
    ------
    ConnectorError
        There is no filter, or one is invalid.
    """
    options.required("topics", "plant/+/temp, plant/press/#")
    filters = list(dict.fromkeys(options.words("topics")))
    if len(filters) > FILTERS_MAX:
        raise options.refuse("topics", f"{len(filters)} filters", f"at most {FILTERS_MAX}")
    for one in filters:
        problem = _filter_problem(one)
        if problem:
            raise options.refuse("topics", one, f"topic filters separated by commas, such as 'plant/+/temp, plant/press/#': {problem}")
    return filters


def _filter_problem(one: str) -> str:
    levels = one.split("/")
    if not one:
        return "this one is empty"
    if _is_unfit(one):
        return "this one is too long, or has a character that topics must not have"
    if one.startswith("$share/"):
        return "write shared_group = 'name' for a shared subscription"
    if any("#" in level and level != "#" for level in levels) or "#" in levels[:-1]:
        return "'#' stands alone, as the last level"
    return "'+' stands alone in its level" if any("+" in level and level != "+" for level in levels) else ""


def _is_unfit(topic: str) -> bool:
    try:
        return "\0" in topic or len(topic.encode()) > TOPIC_BYTES_MAX
    except UnicodeEncodeError:
        return True


def plain_topic(options: Options, key: str, example: str) -> str | None:
    """Returns a topic to publish to, from an option; None if it is not given.

    Raises
    ------
    ConnectorError
        The topic has wildcards, or is invalid.
    """
    topic = options.optional(key)
    if topic is not None and (not topic or _is_unfit(topic) or "+" in topic or "#" in topic):
        raise options.refuse(key, topic, f"a topic without '+' and '#', such as '{example}'")
    return topic


class TopicColumns:
    """Columns that a source fills from the topic of a message: the options `topic_column` and `topic_columns`.

    Raises
    ------
    ConnectorError
        An option names an unknown column, or one twice.
    """

    def __init__(self, options: Options, schema: Schema, times: TimeFormat) -> None:
        types = {field.name: field.type for field in schema}
        self._levels: list[tuple[int, str, ColumnType]] = []
        self._whole = options.optional("topic_column")
        if self._whole is not None and types.get(self._whole) is not ColumnType.TEXT:
            texts = [name for name, kind in types.items() if kind is ColumnType.TEXT]
            raise options.refuse("topic_column", self._whole, f"a column of type TEXT ({', '.join(texts) or 'there is none'})")
        names = options.words("topic_columns")
        for place, name in enumerate(names):
            if name == "_":
                continue
            if name not in types:
                raise options.refuse(
                    "topic_columns", name, f"columns of the source ({', '.join(types)}), or _ for a level that is not wanted"
                )
            self._levels.append((place, name, types[name]))
        self.names = {name for _, name, _ in self._levels} | ({self._whole} if self._whole is not None else set())
        if len(self.names) < len(self._levels) + (self._whole is not None):
            raise options.refuse("topic_columns", ", ".join(names), "each column once")
        if len(self.names) == len(schema):
            raise options.refuse("topic_columns", ", ".join(names), "a column that is left for the payload")
        self.schema = tuple(field for field in schema if field.name in self.names)
        self._misfits = Misfits()
        self._rows = JsonRows(self.schema, times, self._misfits)
        self._known = lru_cache(TOPICS_KNOWN_MAX)(self._read)

    def values(self, topic: bytes) -> tuple[Any, ...] | Misfit:
        """Returns the values of the columns in `schema`, as `sbon.operators.values` has them, or why a level does not fit its column."""
        return self._known(topic) if len(topic) <= TOPIC_BYTES_KNOWN_MAX else self._read(topic)

    def _read(self, topic: bytes) -> tuple[Any, ...] | Misfit:
        line = self._line(topic.decode("utf-8", "replace"))
        values = self._rows.read_few([line])
        if values is not None:
            return tuple(column[0] for column in values.columns)
        frame = self._rows.read([line])
        if frame.is_empty():
            [misfit] = self._misfits.told()
            self._misfits.clear()
            return misfit
        return tuple(column.to_physical()[0] for column in frame)

    def _line(self, topic: str) -> bytes:
        """Returns the columns of a topic as JSON."""
        found: list[tuple[str, bytes]] = [] if self._whole is None else [(self._whole, msgspec.json.encode(topic))]
        levels = topic.split("/")
        for place, name, kind in self._levels:
            found.append((name, json_value(levels[place] if place < len(levels) else None, kind)))
        return b"{" + b",".join(msgspec.json.encode(name) + b":" + value for name, value in found) + b"}"


def json_value(text: str | None, kind: ColumnType) -> bytes:
    """Returns a text as JSON for a column: as a number, truth, JSON or array if column and text allow it, else as a string."""
    if text is None:
        return b"null"
    if kind in (ColumnType.INT, ColumnType.FLOAT) and _JSON_NUMBER.fullmatch(text):
        return text.encode()
    if kind is ColumnType.BOOL and text in ("true", "false"):
        return text.encode()
    if held_type(kind) is not kind and (nested := nested_text(text, kind)) is not None:
        return nested.encode()
    return msgspec.json.encode(text)


class TopicTemplate:
    """Makes the topics of a sink from a template such as `alerts/{site}/{kind}`, with the values of the columns in braces.

    In values, characters that have a meaning in a topic, or that brokers refuse, are percent-encoded as in URLs (`a/b` becomes `a%2Fb`). So
    is a `$` at the beginning of a topic, because such topics are the broker's own. NULL is `%NULL`.

    Raises
    ------
    ConnectorError
        A name in braces is no column, or the rest is no topic.
    """

    def __init__(self, what: str, options: Options, schema: Schema) -> None:
        text = options.required("topic", "alerts/{site}")
        pieces = _PLACE.split(text)
        self._fixed, self.columns = pieces[0::2], pieces[1::2]
        rest = "".join(self._fixed)
        if "+" in rest or "#" in rest or "{" in rest or "}" in rest or _is_unfit(rest):
            raise options.refuse("topic", text, "a topic without '+' and '#', such as 'alerts/{site}', with columns in braces")
        names = [field.name for field in schema]
        for column in self.columns:
            if column not in names:
                raise ConnectorError(
                    f"{what}: option topic = '{text}' has {{{column}}}, expected a column of the query: {', '.join(names)}", option="topic"
                )

    def topic(self, row: Mapping[str, Any]) -> str:
        """Returns the topic of a row of JSON values; empty if it would be empty or too long."""
        if not self.columns:
            return self._fixed[0]
        parts = [self._fixed[0]]
        for column, fixed in zip(self.columns, self._fixed[1:], strict=True):
            parts += (level_of(row.get(column)), fixed)
        topic = "".join(parts)
        if topic.startswith("$") and not self._fixed[0]:
            topic = "%24" + topic[1:]
        return topic if topic and len(topic.encode()) <= TOPIC_BYTES_MAX else ""


def level_of(value: object) -> str:
    """Returns a value as part of a level of a topic.

    Examples
    --------
    >>> level_of("a/b"), level_of(None), level_of(7), level_of("50 %")
    ('a%2Fb', '%NULL', '7', '50 %25')
    """
    if value is None:
        return NULL_LEVEL
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return _TO_ESCAPE.sub(lambda match: quote(match[0], safe="", errors="surrogatepass"), text)


def column_names(schema: Schema, without: Sequence[str] | set[str] = ()) -> list[str]:
    """Returns the names of the columns except those in `without`."""
    return [field.name for field in schema if field.name not in without]
