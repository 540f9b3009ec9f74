"""RTT matrices from files, good and bad."""

from pathlib import Path

import numpy as np
import pytest

from sbon.errors import ConfigError
from sbon_testbed.matrix import load_matrix


def test_an_archive_keeps_missing_values_and_loses_impossible_ones(tmp_path: Path):
    rtt = np.array([[5.0, 10.0, np.nan], [-1.0, 0.0, np.inf], [30.0, 0.0, 0.0]], dtype=np.float32)
    np.savez(tmp_path / "m.npz", rtt=rtt)

    np.testing.assert_array_equal(load_matrix(tmp_path / "m.npz"), [[0.0, 10.0, np.nan], [np.nan, 0.0, np.nan], [30.0, np.nan, 0.0]])


def test_slices_over_time_stay_apart(tmp_path: Path):
    np.savez(tmp_path / "m.npz", rtt=np.full((3, 4, 4), 7.0))

    assert load_matrix(tmp_path / "m.npz").shape == (3, 4, 4)


def test_text_takes_white_space_commas_comments_and_dashes(tmp_path: Path):
    (tmp_path / "m.txt").write_text("# three nodes\n0 10 -\n10,0,2.5\n\nnan\t2.5\t0\n")

    np.testing.assert_array_equal(load_matrix(tmp_path / "m.txt"), [[0.0, 10.0, np.nan], [10.0, 0.0, 2.5], [np.nan, 2.5, 0.0]])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0 1\n1 zero\n", "line 2.*zero"),
        ("0 1 2\n1 0\n", "line 2: 2 values, expected 3"),
        ("0 1 2\n1 0 2\n", r"shape \[2, 3\]"),
        ("", "shape"),
        ("0 0\n0 0\n", "no RTT above 0"),
        ("5\n", "1 nodes"),
    ],
)
def test_bad_text_is_refused_with_the_place(tmp_path: Path, text: str, words: str):
    path = tmp_path / "m.txt"
    path.write_text(text)

    with pytest.raises(ConfigError, match=words):
        load_matrix(path)


def test_an_archive_without_the_key_says_which_it_has(tmp_path: Path):
    np.savez(tmp_path / "m.npz", latency=np.zeros((2, 2)))

    with pytest.raises(ConfigError, match=r"keys \['latency'\], expected a key rtt"):
        load_matrix(tmp_path / "m.npz")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 broken", b"\x93NUMPY", b"words"])
def test_a_broken_archive_is_one_clear_error(tmp_path: Path, content: bytes):
    path = tmp_path / "m.npz"
    path.write_bytes(content)

    with pytest.raises(ConfigError, match="cannot be read"):
        load_matrix(path)


def test_objects_in_an_archive_are_never_unpickled(tmp_path: Path):
    np.savez(tmp_path / "m.npz", rtt=np.array([{"a": 1}], dtype=object))

    with pytest.raises(ConfigError, match="cannot be read"):
        load_matrix(tmp_path / "m.npz")


def test_a_missing_file_is_one_clear_error(tmp_path: Path):
    with pytest.raises(ConfigError, match="cannot be read as text"):
        load_matrix(tmp_path / "none.txt")
