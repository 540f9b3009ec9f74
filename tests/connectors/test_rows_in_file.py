"""A file sink leaves out the rows that its file has already, in whatever order they come again."""

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbon.connectors.interface import Congested
from sbon.connectors.rows_in_file import RowsInFile, lines_of
from sbon.execution.instance import Instance
from sbon.execution.opening import opening
from sbon.formats.formatting import LineFormat
from sbon.query.params.source import SinkParams
from sbon.query.plan import OperatorSpec
from sbon.reach import Reach
from sbon.schema import ColumnType, Field
from sbon.wire.deployment import TakenUp
from sbon_agent.connectors import line_file, parquet_parts
from sbon_agent.connectors.line_file import LineSink
from sbon_agent.connectors.parquet_parts import ParquetSink

SCHEMA = (Field("v", ColumnType.INT), Field("t", ColumnType.TEXT))
KINDS = ["csv", "ndjson", "parquet"]


def opened(folder: Path, kind: str) -> Any:
    sink: Any = (
        ParquetSink("sink k", folder / "k", Reach("a", None), SCHEMA, False, 3)
        if kind == "parquet"
        else LineSink("sink k", folder / f"k.{kind}", Reach("a", None), LineFormat(kind, SCHEMA), "append")
    )
    sink.open()
    return sink


def frame(*rows: tuple[int, str]) -> pl.DataFrame:
    return pl.DataFrame(rows, {"v": pl.Int64, "t": pl.String}, orient="row")


def again_after(folder: Path, kind: str, *rows: tuple[int, str]) -> tuple[Any, int]:
    """Returns a sink that begins again behind the rows of a crashed one, and the place where these begin."""
    first = opened(folder, kind)
    begun_at: int = first.begun_at
    first.write(frame(*rows))
    again = opened(folder, kind)
    assert again.rows_since(begun_at) == len(rows)
    return again, begun_at


def rows_of(folder: Path, kind: str) -> list[tuple[Any, ...]]:
    if kind == "parquet":
        return pl.concat([pl.read_parquet(part) for part in sorted((folder / "k").glob("part-*"))]).rows()
    return (pl.read_csv if kind == "csv" else pl.read_ndjson)(folder / f"k.{kind}").rows()


@given(st.lists(st.integers(0, 5)), st.lists(st.lists(st.integers(0, 5))))
def test_each_row_of_the_file_is_left_out_once(there: list[int], batches: list[list[int]]) -> None:
    rows, left = RowsInFile([np.array(there, np.int64)]), Counter(there)
    for batch in batches:
        wanted = []
        for value in batch:
            wanted.append(not left[value])
            left[value] -= bool(left[value])
        hashes = np.array(batch, np.int64)
        found = rows.new(hashes)
        rows.put_back(hashes[~found])
        assert rows.new(hashes).tolist() == found.tolist() == wanted, "rows of a failed write come once more"
        assert rows.left == left.total()


@given(st.lists(st.text('a"\n', max_size=5)), st.integers(1, 7))
def test_lines_are_whole_wherever_the_text_is_cut(values: list[str], size: int) -> None:
    lines = ["{}\n".format('"{}"'.format(value.replace('"', '""'))).encode() for value in values]
    data = b"".join(lines) + b'"a'
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    assert [line for some in lines_of(pieces, quoted=True) for line in some] == lines


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_come_again_in_another_order_are_written_once(tmp_path: Path, kind: str) -> None:
    other = opened(tmp_path, kind)
    other.write(frame((2, "of another query")))
    other.close()
    again, begun_at = again_after(tmp_path, kind, (1, "a"), (2, "x\ny"), (2, "x\ny"), (3, ""))
    assert again.match_rows()
    assert again.begun_at is None
    again.write(frame((2, "x\ny"), (2, "of another query"), (3, "")))
    again.write(frame((2, "x\ny"), (5, "b")))
    assert again.begun_at is None
    again.write(frame((2, "x\ny"), (1, "a"), (1, "a")))
    assert again.begun_at == begun_at
    again.close()
    assert again.unmatched_rows == 0
    ours = Counter(rows_of(tmp_path, kind)) - Counter([(2, "of another query")])
    wanted = [(1, "a"), (1, "a"), (2, "x\ny"), (2, "x\ny"), (2, "x\ny"), (2, "of another query"), (3, ""), (5, "b")]
    assert ours == Counter(wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_do_not_come_again_are_noticed_at_the_end(tmp_path: Path, kind: str) -> None:
    again, _ = again_after(tmp_path, kind, (1, "a"), (2, "b"))
    assert again.match_rows()
    again.write(frame((2, "b"), (3, "c")))
    assert again.unmatched_rows == 0, "it may still come"
    again.close()
    assert again.unmatched_rows == 1


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_a_failed_write_come_once_more(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    again, _ = again_after(tmp_path, kind, (1, "a"), (2, "b"))
    assert again.match_rows()

    def full(*_: object) -> None:
        raise OSError(28, "no space left")

    with monkeypatch.context() as disk:
        disk.setattr(again, "_replace" if kind == "parquet" else "_append", full)
        with pytest.raises(Congested):
            again.write(frame((2, "b"), (3, "c")))
    again.write(frame((2, "b"), (3, "c")))
    again.write(frame((1, "a")))
    again.close()
    assert sorted(rows_of(tmp_path, kind)) == [(1, "a"), (2, "b"), (3, "c")]


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_with_too_many_rows_is_not_compared(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    again, begun_at = again_after(tmp_path, kind, (1, "a"), (2, "b"), (3, "c"))
    for module in (line_file, parquet_parts):
        monkeypatch.setattr(module, "ROWS_MAX", 2)
    assert not again.match_rows()
    assert again.begun_at == begun_at


@pytest.mark.parametrize("compares", [True, False])
def test_a_sink_says_whether_it_compares_rows(compares: bool) -> None:
    instance = Instance(OperatorSpec("q.2", SinkParams("k", "file", ()), SCHEMA, None, None, ""), 0)
    instance.sink = SimpleNamespace(open=lambda: None, rows_since=lambda begun_at: 5, match_rows=lambda: compares)  # type: ignore[assignment]
    work = opening(instance, TakenUp(65_536, begun_at=2, matches=True))
    assert work is not None
    work()
    assert instance.waiting.is_found is compares
