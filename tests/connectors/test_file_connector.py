"""Files in and out: CSV, NDJSON, Parquet, plain and gzipped, whole and broken."""

import errno
import gzip
import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

import sbon_agent.connectors.file_blocks as file_blocks
import sbon_agent.connectors.parquet_parts as parquet_parts
from sbon.connectors.interface import Congested
from sbon.errors import ConnectorError
from sbon.operators.values import Values
from sbon.watermarks import WATERMARK_END
from tests.connector_world import columns, context, drain, sink, source
from tests.examples import examples

READINGS = columns(ts="time", sensor="text", value="float", ok="bool", n="int", age="interval")
CSV = '''sensor,ts,value,ok,n,age,extra
a,2020-01-01T00:00:00Z,1.5,true,1,60,x
"b, the ""second""",2020-01-01 00:00:01.5,,false,,1.5 minutes,
,1577836802,-2e3,,3,,
'''
ROWS = [
    (datetime(2020, 1, 1), "a", 1.5, True, 1, timedelta(seconds=60)),
    (datetime(2020, 1, 1, 0, 0, 1, 500000), 'b, the "second"', None, False, None, timedelta(seconds=90)),
    (datetime(2020, 1, 1, 0, 0, 2), None, -2000.0, None, 3, None),
]


def read(path: Path, **options: Any) -> tuple[pl.DataFrame, Any]:
    stream = source("file", READINGS, context(path.parent), path=path.name, **options)
    rows, _ = drain(stream)
    return rows, stream


def test_csv_records_become_rows(tmp_path: Path):
    (tmp_path / "r.csv").write_text(CSV)
    rows, stream = read(tmp_path / "r.csv")
    assert rows.rows() == ROWS
    assert stream.dropped_rows == 0


def test_gzip_windows_line_ends_byte_order_marks_and_tabs_are_read_too(tmp_path: Path):
    (tmp_path / "r.csv.gz").write_bytes(gzip.compress(b"\xef\xbb\xbf" + CSV.replace("\n", "\r\n").encode()))
    assert read(tmp_path / "r.csv.gz")[0].rows() == ROWS
    (tmp_path / "r.tsv").write_text(CSV.replace("b, the", "b; the").replace(",", "\t"))
    assert read(tmp_path / "r.tsv")[0]["n"].to_list() == [1, None, 3]


def test_a_csv_without_header_takes_the_columns_in_order(tmp_path: Path):
    (tmp_path / "r.csv").write_text("2020-01-01,a,1.5,true,1,60\n")
    rows, _ = read(tmp_path / "r.csv", header="false")
    assert rows.rows() == ROWS[:1]


def test_ndjson_lines_become_rows(tmp_path: Path):
    lines = [
        {"sensor": "a", "ts": "2020-01-01T00:00:00Z", "value": 1.5, "ok": True, "n": 1, "age": 60, "more": [1]},
        {"sensor": 'b, the "second"', "ts": "2020-01-01 00:00:01.5", "ok": False, "age": "1.5 minutes"},
        {"ts": 1577836802, "value": -2000, "n": 3},
    ]
    (tmp_path / "r.ndjson").write_text("\n\n".join(map(json.dumps, lines)))
    assert read(tmp_path / "r.ndjson")[0].rows() == ROWS


def test_parquet_becomes_rows(tmp_path: Path):
    frame = pl.DataFrame(ROWS, schema=["ts", "sensor", "value", "ok", "n", "age"], orient="row")
    frame.with_columns(pl.col("ts").cast(pl.Datetime("ms")), pl.col("n").cast(pl.Int16), extra=1).write_parquet(tmp_path / "r.parquet")
    assert read(tmp_path / "r.parquet")[0].rows() == ROWS


def test_rows_that_cannot_be_read_are_left_out_and_counted(tmp_path: Path):
    (tmp_path / "r.csv").write_text(CSV + "d,2020-01-01,1,true,1,1,x,too,many\ne,not a time,1,true,1,1,\nf,2020-01-01,one,true,1,1,\n")
    rows, stream = read(tmp_path / "r.csv")
    assert rows.rows() == ROWS
    assert stream.dropped_rows == 3
    good = '{"ts": "2020-01-01", "sensor": "a", "value": 1.5, "ok": true, "n": 1, "age": 60}'
    bad = ["{", "[]", '{"n": 1.5}', '{"n": 99999999999999999999}', '{"value": "x"}', '{"ts": "soon"}', "{}],[{}", '{"sensor": "\\ud800"}']
    (tmp_path / "r.ndjson").write_text("\n".join([good, *bad, good]))
    rows, stream = read(tmp_path / "r.ndjson")
    assert rows.rows() == ROWS[:1] * 2
    assert stream.dropped_rows == len(bad)


def test_records_larger_than_a_chunk_and_breaks_between_quotes_are_no_trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(file_blocks, "BLOCK_BYTES", 7)
    (tmp_path / "r.csv").write_text(CSV.replace('the ""second""', "the\nsecond"))
    rows, _ = read(tmp_path / "r.csv")
    assert rows["sensor"].to_list() == ["a", "b, the\nsecond", None]


@settings(examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.text(st.characters(codec="utf-8", exclude_characters="\x00\r"), min_size=1), st.integers(-(2**63), 2**63 - 1))),
    st.integers(1, 60),
    st.sampled_from(["csv", "ndjson"]),
)
def test_what_a_sink_writes_a_source_reads(tmp_path: Path, rows: list[Any], chunk: int, kind: str):
    schema = columns(text="text", number="int")
    frame = pl.DataFrame(rows, schema={"text": pl.String, "number": pl.Int64}, orient="row")
    out: Any = sink("file", schema, context(tmp_path), path=f"x.{kind}", mode="replace")
    if frame.height > 1:
        out.write(frame.head(-1))
    if rows:
        out.write_values(Values(1, tuple((value,) for value in rows[-1])))
    out.close()
    before, file_blocks.BLOCK_BYTES = file_blocks.BLOCK_BYTES, chunk
    try:
        stream = source("file", schema, context(tmp_path), path=f"x.{kind}")
        read_back, _ = drain(stream)
    finally:
        file_blocks.BLOCK_BYTES = before
    assert stream.dropped_rows == 0
    assert read_back.rows() == frame.rows()


def test_the_stream_comes_in_batches_and_ends(tmp_path: Path):
    (tmp_path / "r.csv").write_text("ts,sensor,value,ok,n,age\n" + "2020-01-01,a,1,true,1,1\n" * 1000)
    _, answers = drain(source("file", READINGS, context(tmp_path), path="r.csv", batch_rows_max=300, time="ts"))
    assert [answer.frame.height for answer in answers if answer.frame is not None] == [300, 300, 300, 100]
    assert answers[-1].finished
    assert answers[-1].watermark_us == WATERMARK_END


def test_event_time_replay_keeps_the_pace_of_the_events(tmp_path: Path):
    (tmp_path / "r.csv").write_text("ts\n" + "".join(f"2020-01-01T00:00:{s:02}\n" for s in (0, 1, 1, 4)))
    options = {"path": "r.csv", "replay": "event_time", "speed": 2}
    stream = source("file", columns(ts="time"), context(tmp_path), time="ts", delay_us=1_000_000, **options)
    stream.start(lambda: None)
    first = stream.poll(100.0, 0.0)
    assert (first.frame is not None and first.frame.height, first.next_poll) == (1, 100.5)
    assert stream.poll(100.4, 0.0).frame is None
    second = stream.poll(100.5, 0.0)
    assert (second.frame is not None and second.frame.height, second.next_poll) == (2, 102.0)
    assert second.watermark_us == 1_577_836_800_000_000
    third = stream.poll(102.0, 0.0)
    assert third.frame is not None
    assert stream.poll(102.0, 0.0).finished


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.csv", None, "cannot be read: No such file or directory"),
        ("r.csv", b"a,b\n1,2\n", "has no column ts, it has a, b"),
        ("r.csv.gz", b"not gzip", "cannot be read: Not a gzipped file"),
        ("r.csv.gz", gzip.compress(CSV.encode() * 100, mtime=0)[:-20], "cannot be read"),
        ("r.parquet", b"not parquet, whatever the name says", "cannot be read"),
    ],
)
def test_a_file_that_cannot_be_read_gives_one_clear_line(tmp_path: Path, name: str, content: bytes | None, message: str):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ConnectorError) as error:
        read(tmp_path / name)
    assert message in str(error.value)
    assert name in str(error.value)
    assert "\n" not in str(error.value)


def test_an_endless_record_is_an_error_not_a_full_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(file_blocks, "RECORD_BYTES_MAX", 1000)
    monkeypatch.setattr(file_blocks, "BLOCK_BYTES", 100)
    (tmp_path / "r.csv").write_text(CSV + '"' + "never closed\n" * 500)
    with pytest.raises(ConnectorError, match="unclosed"):
        read(tmp_path / "r.csv")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs option path"),
        ({"path": "r.csv", "replay": "slow"}, "expected one of fast, event_time"),
        ({"path": "r.csv", "replay": "event_time"}, "no event time"),
        ({"path": "r.dat"}, "write format = 'csv'"),
        ({"path": "r.csv", "separator": "--"}, "one character"),
        ({"path": "r.csv", "pth": "x"}, "did you mean path"),
    ],
)
def test_bad_options_of_a_source_are_refused(options: dict[str, str], message: str):
    with pytest.raises(ConnectorError, match=message):
        source("file", READINGS, **options)


def test_a_stopped_source_lets_go_of_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(file_blocks, "BLOCK_BYTES", 7)
    (tmp_path / "r.csv").write_text(CSV)

    def is_open() -> bool:
        return str(tmp_path / "r.csv") in {file.path for file in psutil.Process().open_files()}

    stream = source("file", READINGS, context(tmp_path), path="r.csv")
    stream.start(lambda: None)
    assert is_open()
    stream.stop()
    assert not is_open()
    stream.stop()  # a second call does nothing

    early = source("file", READINGS, context(tmp_path), path="r.csv")
    early.stop()
    early.start(lambda: None)
    assert not is_open()


# --------------------------------------------------------------------------------------------------------------- sinks

FRAME = pl.DataFrame(ROWS, schema=["ts", "sensor", "value", "ok", "n", "age"], orient="row")


@pytest.mark.parametrize("kind", ["csv", "ndjson"])
def test_every_write_is_in_the_file_at_once_and_appending_goes_on(tmp_path: Path, kind: str):
    for expected in (3, 6):
        out = sink("file", READINGS, context(tmp_path), path=f"deep/er/out.{kind}")
        out.write(FRAME)
        assert_frame_equal(read(tmp_path / f"deep/er/out.{kind}")[0].tail(3), FRAME)
        out.close()
        out.close()
        assert read(tmp_path / f"deep/er/out.{kind}")[0].height == expected


def test_replacing_leaves_the_old_file_until_the_end(tmp_path: Path):
    (tmp_path / "out.csv").write_text("old")
    out = sink("file", READINGS, context(tmp_path), path="out.csv", mode="replace")
    out.write(FRAME)
    assert (tmp_path / "out.csv").read_text() == "old"
    out.close()
    assert read(tmp_path / "out.csv")[0].height == 3
    assert [path.name for path in tmp_path.iterdir()] == ["out.csv"]


def test_abandoned_sink_leaves_the_old_file_and_what_it_has_written(tmp_path: Path):
    (tmp_path / "out.csv").write_text("old")
    for rows in (False, True):
        out: Any = sink("file", READINGS, context(tmp_path), path="out.csv", mode="replace")
        if rows:
            out.write(FRAME)
        assert out.remains == f"{tmp_path}/out.csv is as it was" + (
            f", rows written so far are in {tmp_path}/.out.csv.unfinished" if rows else ""
        )
        out.abandon()
        out.abandon()
        out.close()
        assert (tmp_path / "out.csv").read_text() == "old"
        assert sorted(path.name for path in tmp_path.iterdir()) == [*([".out.csv.unfinished"] if rows else []), "out.csv"]
    assert (tmp_path / ".out.csv.unfinished").read_text().count("\n") == 4


def test_abandoned_sink_that_appends_has_its_rows_in_the_file(tmp_path: Path):
    out: Any = sink("file", READINGS, context(tmp_path), path="out.csv")
    out.write(FRAME)
    assert out.remains == ""
    out.abandon()
    assert read(tmp_path / "out.csv")[0].height == 3


def test_what_an_interrupted_sink_has_written_is_taken_up(tmp_path: Path):
    (tmp_path / "out.csv").write_text("old")
    sink("file", READINGS, context(tmp_path), path="out.csv", mode="replace").write(FRAME)  # never closed
    for height in (6, 9):
        out = sink("file", READINGS, context(tmp_path), path="out.csv", mode="resume")
        out.write(FRAME)
        assert read(tmp_path / "out.csv")[0].height == height
        out.close()
        assert [path.name for path in tmp_path.iterdir()] == ["out.csv"]
    for _ in range(2):
        sink("file", READINGS, context(tmp_path), path="out.parquet", mode="resume").write(FRAME)
    assert_frame_equal(pl.read_parquet(tmp_path / "out.parquet" / "*.parquet"), pl.concat([FRAME] * 2))


def test_parquet_parts_are_whole_after_every_write(tmp_path: Path):
    out = sink("file", READINGS, context(tmp_path), path="out.parquet", rows_per_file=4)
    counts = []
    for _ in range(3):
        out.write(FRAME)
        counts.append([pl.read_parquet(part).height for part in sorted((tmp_path / "out.parquet").iterdir())])
    assert counts == [[3], [4, 2], [4, 4, 1]]
    out.close()
    again = sink("file", READINGS, context(tmp_path), path="out.parquet")
    again.write(FRAME)
    assert_frame_equal(pl.read_parquet(tmp_path / "out.parquet" / "*.parquet"), pl.concat([FRAME] * 4))
    sink("file", READINGS, context(tmp_path), path="out.parquet", mode="replace").write(FRAME)
    assert_frame_equal(pl.read_parquet(tmp_path / "out.parquet" / "*.parquet"), FRAME)


def test_a_part_takes_the_whole_batch_that_fills_it_unless_its_rows_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(parquet_parts, "PART_ROWS", 4)
    for options, expected in (({}, [[3], [6], [6, 3]]), ({"rows_per_file": 7}, [[3], [6], [7, 2]])):
        folder = tmp_path / f"out{len(options)}.parquet"
        out = sink("file", READINGS, context(tmp_path), path=folder.name, **options)
        counts = []
        for _ in range(3):
            out.write(FRAME)
            counts.append([pl.read_parquet(part).height for part in sorted(folder.iterdir())])
        out.close()
        assert counts == expected
        assert_frame_equal(pl.read_parquet(folder / "*.parquet"), pl.concat([FRAME] * 3))


class Full:
    """A file on a disk with room for `room` more bytes; None: unlimited."""

    def __init__(self, file: Any, room: int | None) -> None:
        self._file = file
        self.room = room

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, data: memoryview) -> int:
        if self.room == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        count = int(self._file.write(data if self.room is None else data[: self.room]))
        if self.room is not None:
            self.room -= count
        return count


@pytest.mark.parametrize("mode", ["append", "replace"])
def test_a_write_that_fails_half_way_is_taken_back_and_may_be_made_again(tmp_path: Path, mode: str):
    (tmp_path / "expected.csv").write_bytes(b"")
    expected: Any = sink("file", READINGS, context(tmp_path), path="expected.csv")
    for _ in range(3):
        expected.write(FRAME)
    expected.close()

    out: Any = sink("file", READINGS, context(tmp_path), path="out.csv", mode=mode)
    out.write(FRAME)
    written = tmp_path / ("out.csv" if mode == "append" else ".out.csv.unfinished")
    whole = written.read_bytes()
    out._file = full = Full(out._file, 10)
    for _ in range(2):
        with pytest.raises(Congested, match=r"out\.csv cannot be written: No space left on device"):
            out.write(FRAME)
        assert written.read_bytes() == whole
    full.room = None
    out.write(FRAME)
    full.room = 0
    with pytest.raises(Congested):
        out.write(FRAME)
    full.room = None
    out.write(FRAME)
    out.finish()
    assert (tmp_path / "out.csv").read_bytes() == (tmp_path / "expected.csv").read_bytes()


def test_what_could_not_be_taken_back_is_before_the_next_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    out: Any = sink("file", READINGS, context(tmp_path), path="out.csv")
    real = out._file

    class Stubborn(Full):
        truncatable = False

        def truncate(self, size: int) -> int:
            if not self.truncatable:
                raise OSError(errno.ENOSPC, "No space left on device")
            return int(real.truncate(size))

    out._file = full = Stubborn(real, 10)
    for _ in range(2):
        with pytest.raises(Congested):
            out.write(FRAME)
    full.room, full.truncatable = None, True
    out.write(FRAME)
    out.finish()
    assert read(tmp_path / "out.csv")[0].rows() == ROWS


def test_any_other_error_of_a_disk_is_the_end(tmp_path: Path):
    out: Any = sink("file", READINGS, context(tmp_path), path="out.csv")

    class Broken(Full):
        def write(self, data: memoryview) -> int:
            raise OSError(errno.EIO, "Input/output error")

    out._file = Broken(out._file, 0)
    with pytest.raises(ConnectorError, match=r"out\.csv cannot be written: Input/output error") as error:
        out.write(FRAME)
    assert not isinstance(error.value, Congested)


def test_a_place_that_cannot_be_written_is_refused_when_the_sink_is_made(tmp_path: Path):
    (tmp_path / "file").write_text("")
    for name in ("file/out.csv", "file/out.parquet"):
        with pytest.raises(ConnectorError, match=r"cannot be written: (Not a directory|File exists)"):
            sink("file", READINGS, context(tmp_path), path=name)


def test_discard_counts_what_it_forgets():
    out: Any = sink("discard", READINGS)
    out.write(FRAME)
    out.close()
    assert out.rows == 3
    with pytest.raises(ConnectorError, match="option path is unknown"):
        sink("discard", READINGS, path="x")
