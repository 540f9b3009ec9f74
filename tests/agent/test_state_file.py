"""The file of what an agent remembers across restarts."""

import pytest

from sbon.cost_space.coordinate import Coordinate
from sbon_agent.state import SavedState, StateFile

SAVED = SavedState("ams1", 7, Coordinate((1.0, -2.0, 3.5), 4.0, 0.2))


def test_state_comes_back_as_it_was_saved(tmp_path):
    assert StateFile(tmp_path).save(SAVED) is True
    assert StateFile(tmp_path).load("ams1") == SAVED
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]


def test_nothing_saved_is_no_state(tmp_path):
    assert StateFile(tmp_path).load("ams1") is None


def test_no_directory_remembers_nothing():
    assert StateFile("").save(SAVED) is False
    assert StateFile("").load("ams1") is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b'{"name": "ams1"}',
        b'{"name": "ams1", "incarnation": "7"}',
        b'{"name": "ams1", "incarnation": -1}',
        b'{"name": "ams1", "incarnation": 7, "coordinate": [[1e300, 0.0, 0.0], 0.0, 1.0, 0.0]}',
        b'{"name": "ams1", "incarnation": 7, "coordinate": [[0.0, 0.0], 0.0, 1.0, 0.0]}',
        b" " * (1 << 20) + b"{}",
    ],
)
def test_damaged_file_means_a_fresh_start(tmp_path, content):
    (tmp_path / "state.json").write_bytes(content)

    assert StateFile(tmp_path).load("ams1") is None


def test_state_of_another_agent_is_not_used(tmp_path):
    StateFile(tmp_path).save(SAVED)

    assert StateFile(tmp_path).load("ber1") is None


def test_disk_that_refuses_costs_a_warning_and_no_more(tmp_path, capsys):
    file = StateFile(tmp_path / "missing")

    assert file.save(SAVED) is False
    assert file.save(SAVED) is False
    (tmp_path / "missing").mkdir()
    assert file.save(SAVED) is True
    said = "".join(capsys.readouterr())
    assert said.count("state.not_saved") == 1
