"""A file as a lookup table, without a file: looks, readings and versions step by step."""

import polars as pl
import pytest

from sbon.connectors.table_file import SETTLE_S, Seen, Stamps, Versions
from sbon.errors import ConnectorError
from sbon.watermarks import WATERMARK_END, WATERMARK_MIN
from tests.connector_world import columns

COLUMNS = columns(id="int", name="text")
CHECK_S = 10.0
WALL = 1_600_000_000.0


def rows(*ids: int) -> pl.DataFrame:
    return pl.DataFrame({"id": ids, "name": [f"n{one}" for one in ids]}, schema={"id": pl.Int64, "name": pl.String})


def looking() -> Versions:
    versions = Versions(COLUMNS, 2, CHECK_S)
    assert versions.begins_look(0.0, WALL)
    return versions


def test_the_first_file_is_read_at_once_and_no_second_time():
    stamps = Stamps()
    assert stamps.compare((1, 1)) is Seen.TO_READ
    assert stamps.have_read((1, 1), (1, 1), "")
    assert stamps.compare((1, 1)) is Seen.SAME


def test_a_changed_file_is_read_when_two_looks_find_it_the_same():
    stamps = Stamps()
    stamps.have_read((1, 1), (1, 1), "")
    assert [stamps.compare(stamp) for stamp in ((1, 2), (1, 3), (1, 3))] == [Seen.CHANGING, Seen.CHANGING, Seen.TO_READ]


def test_a_change_that_is_taken_back_leaves_nothing_behind():
    stamps = Stamps()
    stamps.have_read((1, 1), (1, 1), "")
    assert [stamps.compare(stamp) for stamp in ((1, 2), (1, 1), (1, 2))] == [Seen.CHANGING, Seen.SAME, Seen.CHANGING]


def test_a_file_that_changed_while_it_was_read_is_another_file():
    stamps = Stamps()
    assert not stamps.have_read((1, 1), (1, 2), "")
    assert stamps.compare((1, 2)) is Seen.TO_READ


def test_why_a_file_was_refused_is_known_until_another_one_is_read():
    stamps = Stamps()
    stamps.have_read((1, 1), (1, 1), "it is damaged")
    assert (stamps.compare((1, 1)), stamps.refused) == (Seen.SAME, "it is damaged")
    stamps.have_read((1, 2), (1, 2), "")
    assert stamps.refused == ""


def test_there_is_one_look_at_a_time_and_a_pause_between_two():
    versions = looking()
    assert not versions.begins_look(100.0, WALL)
    assert versions.give(0.0, 10).next_poll is None
    versions.looked("")
    assert versions.give(0.0, 10).next_poll == CHECK_S
    assert [versions.begins_look(now, WALL) for now in (CHECK_S - 0.1, CHECK_S)] == [False, True]


def test_a_file_that_is_changing_is_looked_at_again_soon():
    versions = looking()
    versions.changing()
    assert versions.give(0.0, 10).next_poll == SETTLE_S
    assert versions.begins_look(SETTLE_S, WALL)


def test_a_version_is_given_in_batches_and_its_end_lets_the_stream_go():
    versions = looking()
    versions.found(rows(1, 2, 3))
    assert not versions.begins_look(100.0, WALL), "not before the whole version is given"
    given = [versions.give(0.0, 10) for _ in range(2)]
    number = round(WALL * 1e6)
    assert [polled.frame.rows() for polled in given if polled.frame is not None] == [
        [(1, "n1", number, 3), (2, "n2", number, 3)],
        [(3, "n3", number, 3)],
    ]
    assert [polled.watermark_us for polled in given] == [WATERMARK_MIN, WATERMARK_END]
    after = versions.give(0.0, 10)
    assert (after.frame, after.watermark_us, after.next_poll) == (None, WATERMARK_END, CHECK_S)


def test_versions_rise_though_the_clock_goes_back():
    versions = looking()
    versions.found(rows(1))
    versions.give(0.0, 10)
    assert versions.begins_look(CHECK_S, WALL - 3600)
    versions.found(rows(1))
    frame = versions.give(0.0, 10).frame
    assert frame is not None
    assert frame.rows() == [(1, "n1", round(WALL * 1e6) + 1, 1)]


def test_without_a_version_a_failure_is_one_of_the_source():
    versions = looking()
    versions.failed(ConnectorError("it is damaged"))
    with pytest.raises(ConnectorError, match="it is damaged"):
        versions.give(0.0, 10)
    assert not versions.begins_look(100.0, WALL)


def test_with_a_version_a_failure_is_told_until_a_good_file_is_there():
    versions = looking()
    versions.found(rows(1))
    versions.give(0.0, 10)
    versions.begins_look(CHECK_S, WALL)
    versions.failed(ConnectorError("it is gone"))
    assert versions.give(CHECK_S, 10).frame is None
    assert versions.remark == "it is gone; the rows read at 2020-09-13T12:26:40Z are used until then"
    versions.begins_look(2 * CHECK_S, WALL)
    versions.looked("")
    assert versions.remark == ""


def test_once_stopped_no_version_begins():
    versions = looking()
    versions.stop()
    versions.found(rows(1))
    assert versions.give(0.0, 10).frame is None
