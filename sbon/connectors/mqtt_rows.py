"""Turns messages of a broker into rows of a source. Payloads are joined to one block and decoded in columns; the topics' columns are added.

A few simple rows become plain values instead, as in every source.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from sbon.connectors.ahead import AheadGuard
from sbon.connectors.row_batches import Rows, no_rows
from sbon.formats.json_documents import Lines
from sbon.formats.json_rows import JsonRows
from sbon.formats.mqtt_payloads import PayloadReader
from sbon.formats.mqtt_topics import TopicColumns
from sbon.formats.time_format import TimeFormat
from sbon.misfits import Misfit, Misfits
from sbon.operators.frames import frame_of_values
from sbon.operators.values import FEW_ROWS, Values
from sbon.options import Options
from sbon.query.params.source import SourceParams

LINE_BYTES = 1024
"""Most bytes shown of a message that is too large."""


class MessageRows:
    """Takes messages one by one, and then gives their rows.

    Parameters
    ----------
    options : has `format`, `topic_column`, `topic_columns`, `message_bytes_max`, `time_format`, `time_unit` and `ahead_max`
    misfits : counts messages that cannot be read, and rows that do not fit
    """

    def __init__(self, what: str, params: SourceParams, options: Options, misfits: Misfits) -> None:
        self._schema, self._misfits = params.columns, misfits
        self._message_bytes_max = options.integer("message_bytes_max", 1 << 20, 16, 16 << 20)
        times = TimeFormat.read(options)
        self._topic_columns = TopicColumns(options, self._schema, times)
        own = tuple(field for field in self._schema if field.name not in self._topic_columns.names)
        self._payloads = PayloadReader(what, options, own, misfits)
        self._json = JsonRows(own, times, misfits)
        self._places = [own.index(field) if field in own else None for field in self._schema]
        time_place = next((place for place, field in enumerate(self._schema) if field.name == params.time_column), None)
        self._ahead = AheadGuard(options, self._schema, time_place, misfits)
        self._topics: list[bytes] = []
        self._lines: list[Lines] = []
        self.rows = 0
        """Rows of the messages that have been taken, if all fit."""

    @property
    def remark(self) -> str:
        """Returns the note about rows from the future; empty if there were none."""
        return self._ahead.remark

    def rows_max(self, payload: bytes) -> int:
        """Returns a bound on the rows of a payload, found without reading it."""
        return self._payloads.rows_max(payload)

    def take(self, topic: bytes, payload: bytes) -> None:
        """Takes a message."""
        if len(payload) > self._message_bytes_max:
            text = f"the message is larger than {self._message_bytes_max} bytes (message_bytes_max)"
            self._misfits.add("", "is too large", text=text, line=payload[:LINE_BYTES])
            return
        lines = self._payloads.lines(payload)
        if lines.rows:
            self._topics.append(topic)
            self._lines.append(lines)
            self.rows += lines.rows

    def given(self, wall: float) -> Rows:
        """Returns the rows of the messages that have been taken, maybe none, in their order, and forgets them.

        Parameters
        ----------
        wall : unix seconds
        """
        topics, lines, rows = self._topics, self._lines, self.rows
        self._topics, self._lines, self.rows = [], [], 0
        if not rows:
            return no_rows(self._schema)
        data = b"\n".join([one.data for one in lines])
        few = self._json.read_few(data.split(b"\n")) if rows <= FEW_ROWS else None
        values = None if few is None else self._with_topics(few, topics, lines)
        if values is not None:
            return self._ahead.taken(values, wall)
        return self._ahead.taken_of_many(self._frame(data, topics, lines), wall)

    def _with_topics(self, values: Values, topics: Sequence[bytes], lines: Sequence[Lines]) -> Values | None:
        """Returns few rows with the columns of their topics; None if a topic does not fit these columns."""
        if not self._topic_columns.names:
            return values
        beside: list[tuple[Any, ...]] = []
        for topic, one in zip(topics, lines, strict=True):
            found = self._topic_columns.values(topic)
            if isinstance(found, Misfit):
                return None
            beside += [found] * one.rows
        columns = iter(zip(*beside, strict=True))
        return Values(values.rows, tuple(next(columns) if place is None else values.columns[place] for place in self._places))

    def _frame(self, data: bytes, topics: Sequence[bytes], lines: Sequence[Lines]) -> pl.DataFrame:
        """Returns many rows with the columns of their topics."""
        frame, kept = self._json.read_block_placed(data)
        columns = self._topic_columns
        if not columns.names:
            return frame
        numbers: dict[bytes, int] = {}
        for topic in topics:
            numbers.setdefault(topic, len(numbers))
        found = [columns.values(topic) for topic in numbers]
        none = (None,) * len(columns.names)
        fitting = [none if isinstance(one, Misfit) else one for one in found]
        of_line = np.repeat([numbers[topic] for topic in topics], [one.rows for one in lines])
        of_row = of_line if kept is None else of_line[kept.to_numpy()]
        beside = frame_of_values(Values(len(fitting), tuple(zip(*fitting, strict=True))), columns.schema)
        whole = frame.hstack(beside[of_row]).select_seq([field.name for field in self._schema])
        unfit = {number: one for number, one in enumerate(found) if isinstance(one, Misfit)}
        if not unfit:
            return whole
        rows_of = np.bincount(of_row, minlength=len(numbers))
        for (topic, number), one in zip(numbers.items(), found, strict=True):
            if isinstance(one, Misfit):
                self._misfits.add(one.column, one.cause, rows=int(rows_of[number]), text=one.text, line=topic)
        return whole.filter(pl.Series(~np.isin(of_row, list(unfit))))
