"""A file as a lookup table: it gives whole versions, reads a changed file again, and keeps the former version if the new one is bad."""

import os
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import sbon_agent.connectors.file_table as file_table
from sbon.connectors.interface import Polled
from sbon.connectors.reading import is_read_whole
from sbon.errors import ConnectorError
from sbon.query.params.source import SourceParams
from sbon.watermarks import WATERMARK_END, WATERMARK_MIN
from sbon_agent.connectors.registry import build_source
from tests.connector_world import WALL, columns, context

SITES = columns(id="int", name="text")


def params(not_null: tuple[str, ...] = (), connector: str = "file", **options: str) -> SourceParams:
    given = tuple(sorted({"path": "sites.csv", **options}.items()))
    return SourceParams("sites", connector, given, SITES, None, not_null=not_null, is_table=True)


class Reader:
    """Polls a table, with a clock of its own."""

    def __init__(self, folder: Path, *, not_null: tuple[str, ...] = (), **options: str) -> None:
        self.file = folder / "sites.csv"
        self.table: Any = build_source(params(not_null, **options), context(folder))
        self.now = 0.0

    def write(self, text: str) -> None:
        """Replaces the file."""
        fresh = self.file.with_suffix(".new")
        fresh.write_text(f"id,name\n{text}")
        os.replace(fresh, self.file)

    def begin(self) -> "Reader":
        """Opens and starts the table as the engine does."""
        self.table.open()
        self.table.start(lambda: None)
        return self

    def ask(self, seconds: float = 0.0) -> list[Polled]:
        """Advances the clock and returns all that the table gives at that instant."""
        self.now += seconds
        answers: list[Polled] = []
        while True:
            polled = self.table.poll(self.now, WALL + self.now)
            if polled.frame is None and (polled.next_poll is None or polled.next_poll > self.now):
                return answers
            answers.append(polled)

    def rows(self, seconds: float = 0.0) -> list[tuple[Any, ...]]:
        """Advances the clock and returns the rows without the columns of the version."""
        return [row[:-2] for polled in self.ask(seconds) if polled.frame is not None for row in polled.frame.rows()]


def test_the_first_version_is_given_at_once_and_its_end_lets_the_stream_go(tmp_path: Path) -> None:
    reader = Reader(tmp_path, batch_rows_max="2")
    reader.write("1,a\n2,b\n3,c\n")
    given = [polled for polled in reader.begin().ask() if polled.frame is not None]
    assert [polled.frame.rows() for polled in given if polled.frame is not None] == [
        [(1, "a", round(WALL * 1e6), 3), (2, "b", round(WALL * 1e6), 3)],
        [(3, "c", round(WALL * 1e6), 3)],
    ]
    assert [polled.watermark_us for polled in given] == [WATERMARK_MIN, WATERMARK_END]
    assert not any(polled.finished for polled in given)
    assert reader.rows(10) == []
    assert is_read_whole(params())
    assert is_read_whole(params(replay="event_time")), "a later query needs the whole table, whatever the pace of the replay"


def test_a_file_without_rows_is_a_version_too(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    reader.write("")
    (polled,) = (one for one in reader.begin().ask() if one.frame is not None)
    assert polled.frame is not None
    assert (polled.frame.rows(), polled.watermark_us) == ([(None, None, round(WALL * 1e6), 0)], WATERMARK_END)


def test_a_changed_file_is_read_when_it_has_stood_still_for_a_second(tmp_path: Path) -> None:
    reader = Reader(tmp_path, check_every="30 s")
    reader.write("1,a\n")
    assert reader.begin().rows() == [(1, "a")]
    reader.write("1,b\n")
    assert reader.rows(29) == []
    assert reader.rows(1) == []
    with reader.file.open("a") as file:  # somebody is still writing
        file.write("2,half")
    assert reader.rows(1) == []
    with reader.file.open("a") as file:
        file.write(" and whole\n")
    assert reader.rows(1) == []
    assert reader.rows(1) == [(1, "b"), (2, "half and whole")]
    assert reader.rows(30) == []


def test_a_file_that_changes_while_it_is_read_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Reader(tmp_path)
    reader.write("1,a\n")
    read = file_table.FileTable._read

    def meanwhile(self: Any, source: Any) -> pl.DataFrame:
        rows = read(self, source)
        with reader.file.open("a") as file:
            file.write("2,b\n")
        return rows

    monkeypatch.setattr(file_table.FileTable, "_read", meanwhile)
    assert reader.begin().rows() == []
    monkeypatch.undo()
    assert reader.rows(1) == [(1, "a"), (2, "b")]


def test_a_file_that_is_gone_or_damaged_leaves_the_former_version_and_says_so(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    reader.write("1,a\n")
    assert reader.begin().rows() == [(1, "a")]
    reader.file.rename(tmp_path / "away.csv")
    assert reader.rows(10) == []
    assert "cannot be read: No such file or directory; the rows read at 2020-09-13T12:26:40Z are used until then" in reader.table.remark
    (tmp_path / "away.csv").rename(reader.file)
    assert reader.rows(10) == []
    assert reader.table.remark == ""
    reader.write("1,b\nx,c\n")
    assert reader.rows(10) + reader.rows(1) == []
    assert "has 1 rows that cannot be read: column id" in reader.table.remark
    assert reader.rows(10) == []
    assert "has 1 rows that cannot be read" in reader.table.remark
    reader.write("1,b\n")
    assert reader.rows(10) + reader.rows(1) == [(1, "b")]
    assert reader.table.remark == ""


def test_a_first_file_that_is_missing_or_damaged_is_refused(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    with pytest.raises(ConnectorError, match=r"sites\.csv cannot be read: No such file"):
        reader.begin()
    reader.write("1,a\nx,b\n")
    with pytest.raises(ConnectorError, match="has 1 rows that cannot be read: column id"):
        reader.begin().ask()


def test_a_file_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Reader(tmp_path)
    reader.write("1,a\n2,b\n")
    reader.begin()
    monkeypatch.setattr(file_table, "ROWS_MAX", 1)
    with pytest.raises(ConnectorError, match="is too large: more than 1 rows"):
        reader.ask()
    monkeypatch.setattr(file_table, "ROWS_MAX", 2)
    monkeypatch.setattr(file_table, "BYTES_MAX", 5)
    with pytest.raises(ConnectorError, match="is too large"):
        Reader(tmp_path).begin().ask()


def test_rows_with_null_where_none_may_be_are_left_out_and_counted(tmp_path: Path) -> None:
    reader = Reader(tmp_path, not_null=("id",))
    reader.write("1,a\n,b\n")
    assert reader.begin().rows() == [(1, "a")]
    reader.write(",c\n3,d\n,e\n")
    assert reader.rows(10) + reader.rows(1) == [(3, "d")]
    assert reader.table.dropped_rows == 3
    assert [(kind.column, kind.rows) for kind in reader.table.misfits.told()] == [("id", 3)]


def test_what_is_no_table_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConnectorError, match="connector 'tcp' reads no tables"):
        build_source(params(connector="tcp"), context(tmp_path))
    for span in ("1 ms", "2 days"):
        with pytest.raises(ConnectorError, match=r"check_every = .*, expected a span from '100 ms' to '1 day'"):
            Reader(tmp_path, check_every=span)
