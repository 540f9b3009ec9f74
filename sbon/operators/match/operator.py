"""Finds the matches of a pattern: MATCH_RECOGNIZE.

Rows wait until the watermark has passed them; then `matcher` takes them in steps. Matches leave in the order of the instants at which they
are known. These depend on rows and watermarks, not on batches.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Self

import numpy as np
import polars as pl

from sbon.dealing.owners import Known
from sbon.errors import RemoteProtocolError
from sbon.operators.compile import columns_of
from sbon.operators.match.answers import Answers
from sbon.operators.match.log import ROW, TIME
from sbon.operators.match.matcher import Matcher
from sbon.operators.operands import one_zero
from sbon.operators.patient import PatientOperator
from sbon.operators.snapshots import Parts
from sbon.query.params.matched import ROW_LABEL, MatchParams
from sbon.query.params.streams import told_column
from sbon.query.row_pattern import may_be_empty
from sbon.schema import ColumnType
from sbon.watermarks import WATERMARK_END

_KNOWN = {"turn": pl.Int64(), "owner": pl.Int64(), "whole": pl.Boolean()}
STEP_ROWS = 65_536
"""Rows examined in one step."""
ANSWER_ROWS = 16_384
"""Rows answered in one step."""


class MatchRows(PatientOperator[MatchParams]):
    """Answers the matches of a pattern. A row behind the watermark, or without an event time, is late."""

    _time = TIME

    def __init__(self, params: MatchParams) -> None:
        super().__init__(params)
        bare = params.known or params.unmatched or params.timeouts or may_be_empty(params.pattern)
        if params.dealt is not None and (params.within_us is None or params.partition or bare):
            raise RemoteProtocolError(
                "pattern for windows dealt to instances, expected WITHIN, no partitions, and answers that are matches only"
            )
        self._matcher: Matcher | None = None
        opens = None if params.dealt is None else params.dealt.opens
        self._noted = None if opens is None else told_column(opens)
        self._known = Known()
        """The owners of turns, as far as the splitter has told."""

    def process(self, port: int, frame: pl.DataFrame) -> Sequence[pl.DataFrame]:
        """Keeps rows until the watermark has passed them, and notes what the splitter tells with them."""
        if self._noted is not None:
            for note in notes_of(frame, self._noted):
                self._known.take(note)
            frame = frame.drop(self._noted)
        return super().process(port, frame)

    @property
    def state_rows(self) -> int:
        """Returns the number of waiting rows and of rows that may still be in a match."""
        return self._waiting.rows + (0 if self._matcher is None else self._matcher.rows)

    def output_watermark(self, watermark_us: int) -> int:
        """Returns the event time of the first row that may still be in a match, if that is below the watermark. For an instance, whose
        event time is the instant at which matches are known, returns the watermark.
        """
        return watermark_us if self._matcher is None or self._params.known else min(watermark_us, self._matcher.waits_since_us)

    def advance_in_steps(self, watermark_us: int) -> Iterable[Sequence[pl.DataFrame]]:
        """Emits the matches that the watermark settles."""
        self._watermark = max(watermark_us, self._watermark)
        rows = self._waiting.take(self._watermark)
        if rows is None:
            if not self._is_time_up():
                return ()
            rows = self._empty()
        return self._settled(rows)

    # ---------------------------------------------------------------------------------------------------------- recovery

    def known(self) -> tuple[dict[int, int], bool] | None:
        """Returns the turns whose owners the splitter has told, and whether these are all that were decided before others of them; None
        if no splitter tells any. Any thread may ask.
        """
        return None if self._noted is None else (dict(self._known.of), self._known.is_whole)

    def begins_again(self) -> None:
        """Learns that it was made again, empty, and does not know the turns that its former copy knew."""
        self._known.add((), is_whole=False)

    def takes_up(self, turns: Sequence[tuple[int, int]], skips: Callable[[int], bool], *, is_whole: bool) -> None:
        """Goes on after a crash of its former copy, with the owners of turns that its neighbours know; as `AskingSplitter.takes_up`."""
        self._known = Known()
        self._known.add(turns, is_whole=is_whole)

    # ---------------------------------------------------------------------------------------------------------- partitions

    def _is_time_up(self) -> bool:
        """Tells whether the watermark alone settles something."""
        since = WATERMARK_END if self._matcher is None else self._matcher.waits_since_us
        if since >= WATERMARK_END:
            return False
        within = self._params.within_us
        return self._watermark >= WATERMARK_END or (within is not None and since + within <= self._watermark)

    def _settled(self, rows: pl.DataFrame) -> Iterator[Sequence[pl.DataFrame]]:
        """Yields the matches that are known now, in their order."""
        matcher = self._matcher
        assert matcher is not None
        for piece, mark in self._pieces(rows):
            matches = matcher.take(piece, mark)
            yield ()
            if matches.lanes.size:
                yield from self._answers.frames(matches, matcher.keys, ANSWER_ROWS)
            matcher.compact()

    def _pieces(self, rows: pl.DataFrame) -> Iterator[tuple[pl.DataFrame, int]]:
        """Yields rows in steps by event time, and a watermark that has passed each."""
        if rows.height > STEP_ROWS:
            rows = rows.sort(TIME, maintain_order=True)
            times = rows[TIME].to_numpy()
            begin = 0
            while rows.height - begin > STEP_ROWS:
                mark = int(times[begin + STEP_ROWS])
                end = int(np.searchsorted(times, mark))
                if end == begin:  # rows of one instant are one piece
                    end = int(np.searchsorted(times, mark, side="right"))
                    mark = int(times[end]) if end < rows.height else self._watermark
                yield rows[begin:end], mark
                begin = end
            rows = rows[begin:]
        yield rows, self._watermark

    # -------------------------------------------------------------------------------------------------------------- state

    def _kept(self) -> dict[str, pl.DataFrame]:
        """Returns the partitions with their rows. Attempts are not kept: they can be repeated from the rows."""
        return {} if self._matcher is None else self._matcher.state()

    def _kept_columns(self, prepared: pl.DataFrame) -> dict[str, pl.Schema | None]:
        return {"kept": prepared.schema, "lanes": None}

    def parts(self) -> Parts:
        """Returns the columns of the input, the waiting rows, the partitions, and the owners of turns that are known."""
        parts, known = super().parts(), self._known
        if known.of:
            turns = pl.DataFrame([(*one, known.is_whole) for one in known.of.items()], schema=_KNOWN, orient="row")
            parts.frames["known"] = turns
        return parts

    def adopt(self, parts: Parts) -> None:
        """Continues from a snapshot."""
        self._matcher, self._known = None, Known()
        told = dict(parts.frames)
        if (known := told.pop("known", None)) is not None:
            if known.schema != _KNOWN or known.null_count().sum_horizontal().item():
                raise RemoteProtocolError("an instance's snapshot with other columns than those of turns and owners")
            self._known.add(known.drop("whole").rows(), is_whole=bool(known["whole"].all()))
        frames = self._adopted(Parts(parts.head, told))
        if "lanes" in frames and self._matcher is not None:
            self._matcher.adopt(frames["lanes"], frames.get("kept", self._empty()), self._watermark)

    def fork(self) -> Self:
        """Returns an operator in the same state."""
        other = type(self)(self._params)
        other.adopt(self.parts())
        return other

    def _compile(self, frame: pl.DataFrame) -> None:
        """Compiles prepared rows: the event time, then the columns of the input as they are named there."""
        params, columns = self._params, columns_of(frame)
        missing = [name for name in (params.time_column, *params.partition, *params.ties, *(params.passed or ())) if name not in columns]
        if missing:
            raise RemoteProtocolError(f"column {missing[0]!r} is not among the input columns {', '.join(columns)}")
        if frame.schema[params.time_column] != pl.Datetime("us"):
            raise RemoteProtocolError(f"event time {params.time_column!r} is no time column of the input")
        taken = next((name for name in (TIME, ROW, ROW_LABEL) if name in columns), None)
        if taken is not None:
            raise RemoteProtocolError(f"input column {taken!r} has the name of a column that the operator adds")
        self._prepared = [pl.col(params.time_column).cast(pl.Int64).alias(TIME)]
        self._prepared += [one_zero(pl.col(name), kind).alias(name) for name, kind in columns.items()]
        if params.dealt is not None:
            self._prepared.append(pl.lit(0, pl.Int64).alias(ROW))  # until the rows are put in order
        empty = frame.clear().select_seq(self._prepared)
        read = {**columns, ROW_LABEL: ColumnType.TEXT}
        self._matcher = Matcher(params, read, empty.schema)
        self._answers = Answers(params, read, self._matcher.log)


def notes_of(frame: pl.DataFrame, column: str) -> list[str]:
    """Returns the notes of a splitter in rows of an instance.

    Raises
    ------
    RemoteProtocolError
        The rows have no such column.
    """
    if frame.schema.get(column) != pl.String:
        raise RemoteProtocolError(f"rows of an instance without the text column {column!r}")
    return frame[column].drop_nulls().to_list()
