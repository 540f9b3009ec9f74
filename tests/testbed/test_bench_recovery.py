"""`sbon bench recovery`: which rows count as correct, and the summary of its times."""

from pathlib import Path

import pytest

from sbon.errors import UsageError
from sbon_testbed.bench.recovery import Follower, Time, measure, summary


def test_a_number_of_kills_out_of_range_is_refused() -> None:
    with pytest.raises(UsageError, match="--kills 0, expected"):
        measure(0, 1)


def test_only_whole_rows_of_whole_windows_are_correct(tmp_path: Path) -> None:
    path = tmp_path / "k.csv"
    follower = Follower(path, rows_of_window=10)
    follower.look()
    path.write_text("window_start,n\n1970-01-01T00:00:01.000000Z,10\n1970-01-01T00:00:02.000000Z,9\n1970-01-01T00:0")
    follower.look()
    assert [began for _, began in follower.correct] == [1.0]
    with path.open("a") as file:
        file.write("0:03.000000Z,10\n1970-01-01T00:00:03.000000Z,10\n")
    follower.look()
    assert [began for _, began in follower.correct] == [1.0, 3.0, 3.0]
    assert (follower.fewer, follower.repeated) == (1, 1)


def test_the_next_row_is_of_a_window_that_began_after_the_kill_and_silence_is_the_longest_pause(tmp_path: Path) -> None:
    follower = Follower(tmp_path / "k.csv", 10)
    follower.correct += [(100.0, 99.0), (105.0, 103.0), (106.0, 105.5), (108.0, 107.0)]
    assert follower.next_after(104.0, 104.0) == 106.0
    assert follower.next_after(108.5, 104.0) is None
    assert follower.longest_silence_s(101.0, 109.0) == 4.0


def test_times_are_told_apart_by_what_was_killed() -> None:
    told = summary([Time("movable", "intermediate", seconds) for seconds in (4.0, 5.0, 9.0)] + [Time("pinned", "sink", 2.0)])
    assert told["movable"] == {"times": 3, "median_s": 5.0, "p99_s": None, "max_s": 9.0}
    assert set(told) == {"movable", "pinned"}
