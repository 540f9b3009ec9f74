"""Joins a stream with a lookup table: each row with its matches in the newest complete version of the table.

Port 0 takes the stream, port 1 versions of the table (`sbon.query.table_versions`). A version takes effect as a whole, when all of its rows
have come. Until the first version takes effect, rows of the stream and the watermark wait. The watermark of a table's source is the least
one until its first version is sent, and then the greatest, so that from then on the stream alone moves the watermark.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import polars as pl

from sbon.errors import RemoteProtocolError
from sbon.operators.compile import columns_of, compile_column
from sbon.operators.frames import computed, evaluated, polars_type
from sbon.operators.operator import Operator
from sbon.operators.snapshots import Parts, opened, parts_of
from sbon.operators.table_version import TableVersion
from sbon.operators.two_sided import condition_on_pairs
from sbon.query.expression import Expression
from sbon.query.params.joined import LookupParams
from sbon.query.table_versions import ROWS_MAX
from sbon.schema import ColumnType
from sbon.watermarks import WATERMARK_END, WATERMARK_MIN

FRAME_ROWS_MAX = 65_536
"""Most pairs made at a time, unless a single row has more."""
_FRAMES = ("stream input", "table input", "table", "coming", "waiting")


class _Port:
    """One input: its columns, and how its keys and output columns are computed."""

    def __init__(self, keys: tuple[Expression, ...], columns: list[tuple[str, str]]) -> None:
        self._keys, self._columns = keys, columns
        self.input: pl.DataFrame | None = None
        """An empty frame with the columns of the input."""
        self.key_types: list[ColumnType] = []
        self._prepared: list[pl.Expr] = []

    def check(self, frame: pl.DataFrame) -> bool:
        """Compiles for the first frame and returns True; refuses later frames that differ."""
        if self.input is not None:
            if self.input.schema != frame.schema:
                raise RemoteProtocolError(f"lookup input with columns {dict(frame.schema)}, expected {dict(self.input.schema)}")
            return False
        columns = columns_of(frame)
        missing = [name for _, name in self._columns if name not in columns]
        if missing:
            raise RemoteProtocolError(f"lookup column {missing[0]!r} is not among the input columns {', '.join(columns)}")
        compiled = [compile_column(key, columns) for key in self._keys]
        self.key_types = [kind for _, kind, _ in compiled]
        self._prepared = [
            *(value.alias(f"k{i}") for i, (value, _, _) in enumerate(compiled)),
            *(pl.col(name).alias(own) for own, name in self._columns),
        ]
        self.input = frame.clear()
        return True

    def prepared(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Returns the keys, then the columns of the output."""
        return computed(frame, self._prepared)


class Lookup(Operator):
    """Joins a stream with a table. Answers come in the order of the stream's rows, then of the table's."""

    def __init__(self, params: LookupParams) -> None:
        self._params = params
        named = [[(f"c{i}", column) for i, (_, side, column) in enumerate(params.columns) if side == port] for port in (0, 1)]
        self._ports = _Port(params.left_keys, named[0]), _Port(params.right_keys, named[1])
        self._keys = [f"k{i}" for i in range(len(params.left_keys))]
        self._table: TableVersion | None = None
        self._coming: list[pl.DataFrame] = []
        """Rows of an incomplete version, in order of arrival."""
        self._waiting: list[pl.DataFrame] = []
        self._residual: pl.Expr | None = None
        self._watermark = WATERMARK_MIN

    @property
    def state_rows(self) -> int:
        """Returns the number of rows of the table, of an incomplete version, and of stream rows that wait for the first version."""
        whole = 0 if self._table is None else self._table.rows.height
        return whole + _height(self._coming) + _height(self._waiting)

    def rows_ahead(self) -> Sequence[int]:
        """Returns the number of stream rows that wait for the table's first version."""
        return () if self._table is not None else (_height(self._waiting), 0)

    def process(self, port: int, frame: pl.DataFrame) -> Sequence[pl.DataFrame]:
        """Looks up rows of the stream, or takes rows of the table."""
        if port not in (0, 1):
            raise RemoteProtocolError(f"lookup input on port {port}, expected 0 or 1")
        if self._ports[port].check(frame):
            self._input_known()
        if port == 0:
            if self._table is not None:
                return self._answers(self._table, frame)
            self._waiting.append(frame)
            return ()
        for version in _by_version(frame):
            self._take(version)
        if self._table is None or not self._waiting:
            return ()
        waiting, self._waiting = self._waiting, []
        return [answer for one in waiting for answer in self._answers(self._table, one)]

    def advance_in_steps(self, watermark_us: int) -> Iterable[Sequence[pl.DataFrame]]:
        """Event times do not matter here; but at the end of the input, rows must stop waiting for a table."""
        self._watermark = max(self._watermark, watermark_us)
        if watermark_us >= WATERMARK_END and self._waiting:
            raise RemoteProtocolError(f"the stream has ended and its table has not come: {_height(self._waiting)} rows wait for it")
        return ()

    def output_watermark(self, watermark_us: int) -> int:
        """Returns the input's watermark, or the least one while rows wait, because these may be of any age."""
        return WATERMARK_MIN if self._waiting else watermark_us

    def parts(self) -> Parts:
        """Returns the table, the rows of an incomplete version, and the rows that wait."""
        frames: dict[str, pl.DataFrame] = {}
        for name, port in zip(_FRAMES, self._ports, strict=False):
            if port.input is not None:
                frames[name] = port.input
        if self._table is not None:
            frames["table"] = self._table.rows
        if self._coming:
            frames["coming"] = pl.concat(self._coming, rechunk=True)
        if self._waiting:
            frames["waiting"] = pl.concat(self._waiting, rechunk=True)
        return parts_of(self._params, self._watermark, 0, frames)

    def adopt(self, parts: Parts) -> None:
        """Continues from a snapshot."""
        snapshot, frames = opened(parts, self._params)
        if unknown := set(frames).difference(_FRAMES):
            raise RemoteProtocolError(f"lookup snapshot with frames {sorted(unknown)}, expected some of {', '.join(_FRAMES)}")
        for name, port in zip(_FRAMES, self._ports, strict=False):
            port.input = None
            if name in frames:
                port.check(frames[name].clear())
        self._input_known()
        stream, table = (port.input for port in self._ports)
        expected = {
            "table": None if table is None else self._ports[1].prepared(table),
            "coming": table,
            "waiting": stream,
        }
        for name, like in expected.items():
            if name in frames and (like is None or frames[name].schema != like.schema):
                raise RemoteProtocolError(
                    f"{name} of a lookup snapshot has columns {dict(frames[name].schema)}, expected those of its input"
                )
        self._table, self._coming, self._waiting = None, [], []
        if "table" in frames:
            self._set(frames["table"])
        for version in _by_version(frames["coming"]) if "coming" in frames else ():
            self._take(version)
        if "waiting" in frames:
            self._waiting = [frames["waiting"]]
        self._watermark = snapshot.watermark_us

    def _input_known(self) -> None:
        """Checks, once both inputs are known, that keys have one type and that the NULLs of a left join have the table's types."""
        left, right = self._ports
        if left.input is None or right.input is None:
            return
        if left.key_types != right.key_types:
            raise RemoteProtocolError(f"lookup keys of types {left.key_types}, expected those of the table, {right.key_types}")
        inputs = columns_of(left.input), columns_of(right.input)
        types = {name: inputs[side][column] for name, side, column in self._params.columns}
        found = tuple(types[name] for name, side, _ in self._params.columns if side == 1)
        if self._params.outer is not None and found != self._params.outer:
            raise RemoteProtocolError(f"table of a left lookup with types {found}, expected {self._params.outer}")
        self._residual = condition_on_pairs(self._params.residual, types)

    def _take(self, rows: pl.DataFrame) -> None:
        """Takes rows of one version: they add to the incomplete version, or begin another one, which replaces it."""
        version, count = _version_of(rows)
        if self._coming and _version_of(self._coming[0]) != (version, count):
            self._coming = []
        self._coming.append(rows)
        come = _height(self._coming)
        if come > max(1, count):
            raise RemoteProtocolError(f"{come} rows of a version of a table, expected {max(1, count)}")
        if come == max(1, count):
            whole = pl.concat(self._coming, rechunk=True).head(count)
            self._coming = []
            self._set(self._ports[1].prepared(whole))

    def _set(self, rows: pl.DataFrame) -> None:
        self._table = TableVersion(rows, self._keys)
        self.spread = max(1, self._table.most)

    def _answers(self, table: TableVersion, frame: pl.DataFrame) -> list[pl.DataFrame]:
        rows = self._ports[0].prepared(frame)
        pieces = (self._joined(table, piece) for piece in rows.iter_slices(max(1, FRAME_ROWS_MAX // self.spread)))
        return [piece for piece in pieces if not piece.is_empty()]

    def _joined(self, table: TableVersion, rows: pl.DataFrame) -> pl.DataFrame:
        """Returns the pairs, and for a left join the rows without a partner, in the order of the rows."""
        mine, theirs = table.pairs(rows)
        answer = self._columns(table, rows, mine, theirs)
        if self._residual is not None and mine.size:
            true = evaluated(answer, self._residual.fill_null(False))
            answer, mine = answer.filter(true), mine[true.to_numpy()]
        if self._params.outer is None:
            return answer
        alone = np.ones(rows.height, np.bool_)
        alone[mine] = False
        places = np.flatnonzero(alone)
        if not places.size:
            return answer
        both = pl.concat([answer, self._columns(table, rows, places, None)], rechunk=True)
        return both[pl.Series(np.argsort(np.concatenate([mine, places]), kind="stable"))]

    def _columns(
        self, table: TableVersion, rows: pl.DataFrame, mine: "np.typing.NDArray[np.int64]", theirs: "np.typing.NDArray[np.int64] | None"
    ) -> pl.DataFrame:
        """Returns the output for pairs of rows of the stream (`mine`) and the table (`theirs`; None: NULLs)."""
        nulls = iter(self._params.outer or ())
        columns = []
        for i, (name, side, _) in enumerate(self._params.columns):
            if side == 0:
                columns.append(rows[f"c{i}"][pl.Series(mine)].alias(name))
            elif theirs is not None:
                columns.append(table.rows[f"c{i}"][pl.Series(theirs)].alias(name))
            else:
                columns.append(pl.Series(name, [None], dtype=polars_type(next(nulls))).new_from_index(0, mine.size))
        return pl.DataFrame(columns)


def _height(frames: Sequence[pl.DataFrame]) -> int:
    return sum(frame.height for frame in frames)


def _version_of(rows: pl.DataFrame) -> tuple[int, int]:
    """Returns the version of the first row, and the number of rows that it announces."""
    version, count = rows.row(0)[-2:]
    if not isinstance(version, int) or not isinstance(count, int) or not 0 <= count <= ROWS_MAX:
        raise RemoteProtocolError(f"table row of version {version!r} with {count!r} rows, expected 0 to {ROWS_MAX}")
    return version, count


def _by_version(frame: pl.DataFrame) -> Iterable[pl.DataFrame]:
    """Yields rows of a table by version, in order of arrival."""
    while not frame.is_empty():
        version, count = _version_of(frame)
        same = (frame.to_series(-2) == version) & (frame.to_series(-1) == count)
        end = frame.height if same.fill_null(False).all() else int((~same.fill_null(False)).arg_max() or 0)
        yield frame.head(end)
        frame = frame.slice(end)
