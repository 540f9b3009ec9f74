"""From the spool to tables and back: nothing is lost, damage is counted, old hours go."""

from datetime import UTC, datetime
from pathlib import Path

import msgspec
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbon.telemetry.frames import Recorded, frame_of, rows_of
from sbon.telemetry.layout import CLOSED, folder, hour_of
from sbon.telemetry.rows import VERSION, Load, Probe
from sbon.telemetry.schema import TABLES, VERSION_KEY
from sbon_agent.telemetry.spool import Header, Spool, encode_line, read_piece
from sbon_agent.telemetry.writer import convert, convert_all, main, prune
from tests.examples import examples

HOUR_US = 3_600_000_000
SEVEN_US = int(datetime(2026, 11, 21, 7, tzinfo=UTC).timestamp()) * 1_000_000


def values_of(annotation) -> st.SearchStrategy:
    """Returns a strategy for all values that a field may have."""
    name = str(annotation)
    if "NoneType" in name or "None" in name:
        return st.none() | values_of(annotation.__args__[0])
    if "Instant" in name or "instant" in name:
        return st.integers(0, 4 * 10**15)
    if annotation in (str, int, float, bool):
        integers = st.integers(-(2**63), 2**63 - 1)
        return {str: st.text(), int: integers, float: st.floats(allow_nan=False, allow_infinity=False), bool: st.booleans()}[annotation]
    if name.startswith("tuple"):
        return st.lists(values_of(annotation.__args__[0]), max_size=3).map(tuple)
    return rows_of_kind(annotation)


def rows_of_kind(kind) -> st.SearchStrategy:
    from typing import get_type_hints

    hints = get_type_hints(kind, include_extras=True)
    return st.builds(kind, **{name: values_of(hints[name]) for name in kind.__struct_fields__})


@pytest.mark.parametrize("kind", TABLES)
@examples(15)
@given(data=st.data())
def test_rows_come_back_from_tables_as_they_were(kind, data, tmp_path_factory):
    table = TABLES[kind]
    some = data.draw(st.lists(rows_of_kind(table.row), max_size=4))
    recorded = [Recorded(SEVEN_US + index, "a:1", "00c0ffee", index, row) for index, row in enumerate(some, 1)]
    file = tmp_path_factory.mktemp("table") / "t.parquet"

    frame, refused = frame_of(table, recorded)
    frame.write_parquet(file)
    read = pl.read_parquet(file, hive_partitioning=False)

    assert refused == 0
    assert read.schema == table.polars_schema()
    assert rows_of(table, read) == recorded


@pytest.mark.parametrize("kind", TABLES)
@examples(10)
@given(data=st.data())
def test_rows_come_back_from_the_spool_as_they_were(kind, data, tmp_path_factory):
    rows = data.draw(st.lists(rows_of_kind(TABLES[kind].row), min_size=1, max_size=4))
    directory = spooled(tmp_path_factory.mktemp("spool"), [(SEVEN_US, row) for row in rows])

    (path,) = (directory / "spool").iterdir()
    piece = read_piece(path)

    assert piece is not None
    assert piece.damaged == 0
    assert piece.header == Header("a:1", "00c0ffee", 1, VERSION)
    assert [line.row for line in piece.lines] == rows


def spooled(directory: Path, records, start: str = "00c0ffee", piece_bytes_max: int = 2**20) -> Path:
    """Writes a closed spool with these rows (time, row); returns its folder."""
    spool = Spool(directory, "a:1", start, piece_bytes_max, 2**30)
    for number, (time_us, row) in enumerate(records, 1):
        spool.append([(time_us // HOUR_US, encode_line(time_us, number, row))])
    spool.close()
    return directory


def table(directory: Path, kind: str) -> pl.DataFrame:
    return pl.concat([pl.read_parquet(path, hive_partitioning=False) for path in sorted(directory.glob(f"kind={kind}/*/*/*.parquet"))])


def test_pieces_become_a_file_for_each_kind_and_hour(tmp_path):
    records = [(SEVEN_US + i * HOUR_US // 2, Probe(f"n{i}", float(i), 1.0)) for i in range(4)] + [(SEVEN_US, Load(0.5, 0.1, 1.0, 2, 3, 0))]
    directory = spooled(tmp_path, records)

    outcome = convert(directory)

    assert (outcome.rows, outcome.lines_damaged, outcome.pieces) == (5, 0, 3)
    files = sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*.parquet"))
    assert files == [
        "kind=load/date=2026-11-21/hour=07/a-1-00c0ffee-000003.parquet",
        "kind=probes/date=2026-11-21/hour=07/a-1-00c0ffee-000001.parquet",
        "kind=probes/date=2026-11-21/hour=08/a-1-00c0ffee-000002.parquet",
    ]
    probes = table(directory, "probes")
    assert probes["peer"].to_list() == ["n0", "n1", "n2", "n3"]
    assert probes["sequence"].to_list() == [1, 2, 3, 4]
    assert set(probes["version"]) == {VERSION}
    assert pl.read_parquet_metadata(directory / files[0])[VERSION_KEY] == str(VERSION)
    assert [path.name for path in (directory / "spool").iterdir()] == [".lock"]


def test_writing_a_piece_again_changes_nothing(tmp_path):
    """A piece is written again if the writer was killed before it could delete the piece."""
    directory = spooled(tmp_path, [(SEVEN_US + i, Probe("n", float(i), 1.0)) for i in range(50)])
    (piece,) = (directory / "spool").iterdir()
    data = piece.read_bytes()
    convert(directory)
    piece.write_bytes(data)

    convert(directory)

    assert table(directory, "probes")["sequence"].to_list() == list(range(1, 51))


def test_damaged_lines_are_counted_and_the_others_kept(tmp_path):
    directory = spooled(tmp_path, [(SEVEN_US + i, Probe("n", float(i), 1.0)) for i in range(4)])
    (piece,) = (directory / "spool").iterdir()
    good = piece.read_bytes().splitlines()
    strange = [
        b'[1,2,["unheard",1]]',
        b"\xff\xfe",
        b"[" * 5000,
        b'[1,2,["probes","n",1.0]]',
        good[1][:20],
        b'[5,99999999999999999999999,["probes","n",1.0,1.0]]',
    ]
    piece.write_bytes(b"\n".join([*good[:3], *strange, *good[3:], good[1][:-5]]))

    outcome = convert(directory)

    assert (outcome.rows, outcome.lines_damaged) == (4, len(strange) + 1)
    assert sorted(table(directory, "probes")["sequence"].to_list()) == [1, 2, 3, 4]


@pytest.mark.parametrize("header", [b"", b"nonsense\n", msgspec.json.encode(Header("a", "1", 1, VERSION + 1)) + b"\n"])
def test_pieces_of_unknown_origin_are_set_aside(tmp_path, header):
    directory = spooled(tmp_path, [(SEVEN_US, Probe("n", 1.0, 1.0))])
    (directory / "spool" / f"x-1-000001{CLOSED}").write_bytes(header + encode_line(SEVEN_US, 1, Probe("n", 1.0, 1.0)))

    outcome = convert(directory)

    assert (outcome.rows, outcome.pieces_unreadable) == (1, 1)
    assert (directory / "spool" / "x-1-000001.unreadable").exists()


def test_spools_of_ended_agents_are_written_open_pieces_too(tmp_path):
    for name in ("a", "b"):
        spool = Spool(tmp_path / name, name, "0badcafe", 2**20, 2**30)
        spool.append([(SEVEN_US // HOUR_US, encode_line(SEVEN_US, 1, Probe("n", 1.0, 1.0)))])

    assert main([str(tmp_path / "a")]) == 0
    outcome = convert_all([tmp_path / "a", tmp_path / "b", tmp_path / "none"])

    assert outcome.rows == 1
    assert [table(tmp_path / name, "probes").height for name in ("a", "b")] == [1, 1]


def test_old_hours_go_first_by_age_then_by_size_and_strangers_stay(tmp_path):
    now_us = SEVEN_US + HOUR_US // 2
    hours = {-49: 10, -2: 1000, -1: 1000, 0: 5000}
    for hour, size in hours.items():
        place = tmp_path / folder("probes", hour_of(now_us + hour * HOUR_US))
        place.mkdir(parents=True)
        (place / "a.parquet").write_bytes(b"x" * size)
    mine = tmp_path / folder("probes", hour_of(now_us - 49 * HOUR_US)) / "notes.txt"
    mine.write_text("mine")
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool" / "x.unreadable").write_bytes(b"x" * 10)

    deleted = prune(tmp_path, keep_hours=24, total_bytes_max=6000, wall_s=now_us / 1e6)

    assert deleted == 3
    left = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file())
    assert left == [
        "kind=probes/date=2026-11-19/hour=06/notes.txt",
        "kind=probes/date=2026-11-21/hour=06/a.parquet",
        "kind=probes/date=2026-11-21/hour=07/a.parquet",
    ]
    assert not (tmp_path / folder("probes", hour_of(now_us - 2 * HOUR_US))).exists()
