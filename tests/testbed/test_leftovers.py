"""A run removes its folders when it ends; the next run removes those of a killed run."""

import errno
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import sbon_testbed
from sbon.errors import SbonError
from sbon_testbed import leftovers
from sbon_testbed.leftovers import memory_folder, remove_leftovers, run_directory


@pytest.fixture(autouse=True)
def _temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(leftovers, "MEMORY", tmp_path / "memory")


def test_folder_goes_with_its_run(tmp_path):
    with run_directory() as directory:
        (directory / "state").write_text("x")
        assert directory.parent == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_folder_goes_when_its_run_fails(tmp_path):
    with pytest.raises(ValueError, match="failed"), run_directory():
        raise ValueError("failed")
    assert list(tmp_path.iterdir()) == []


def test_folders_in_memory_are_found_where_there_is_room(tmp_path, monkeypatch):
    assert memory_folder() == ""
    (tmp_path / "memory" / "sbon-testbed-x").mkdir(parents=True)
    (tmp_path / "memory" / "sbon-testbed-x" / "owner.lock").touch()
    monkeypatch.setattr(leftovers, "MEMORY_BYTES_MIN", 2**62)
    assert memory_folder() == ""
    monkeypatch.setattr(leftovers, "MEMORY_BYTES_MIN", 0)
    with run_directory(memory_folder()) as directory:
        assert directory.parent == tmp_path / "memory"
        assert remove_leftovers() == [tmp_path / "memory" / "sbon-testbed-x"]


def test_folder_in_use_stays():
    with run_directory() as directory:
        assert remove_leftovers() == []
        assert directory.is_dir()


def test_folder_is_removed_by_its_own_run_alone(monkeypatch):
    remove, removed = shutil.rmtree, []

    def slowly(directory):
        removed.extend(remove_leftovers())
        remove(directory)

    with run_directory():
        monkeypatch.setattr(shutil, "rmtree", slowly)
    assert removed == []


def test_folder_of_a_killed_run_is_removed(tmp_path):
    script = f"""
import sys, tempfile
tempfile.tempdir = {str(tmp_path)!r}
import sbon_testbed
from sbon.errors import SbonError
from sbon_testbed.leftovers import run_directory
with run_directory() as directory:
    print(directory, flush=True)
    sys.stdin.read()
"""
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        left = run.stdout.readline().strip()
        os.kill(run.pid, signal.SIGKILL)
    assert [str(directory) for directory in remove_leftovers()] == [left]
    assert list(tmp_path.iterdir()) == []


def test_folder_that_cannot_be_removed_is_named(tmp_path, monkeypatch):
    (tmp_path / "sbon-testbed-x").mkdir()
    (tmp_path / "sbon-testbed-x" / "owner.lock").touch()
    monkeypatch.setattr("shutil.rmtree", lambda directory: _refuse())

    with pytest.raises(SbonError, match="sbon-testbed-x, left by a killed run: Permission denied"):
        remove_leftovers()


def _refuse():
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def test_folders_that_are_not_ours_stay(tmp_path):
    """Only the lock file shows that a folder belongs to a run."""
    (tmp_path / "sbon-testbed-foreign").mkdir()
    (tmp_path / "sbon-testbed-link").symlink_to(tmp_path)
    (tmp_path / "sbon-testbed-file").write_text("x")

    assert remove_leftovers() == []
    assert len(list(tmp_path.iterdir())) == 3


def test_no_run_makes_folders_in_another_way():
    """Folders of runs hold keys, and only those made by `leftovers` are found again after a kill."""
    root = Path(sbon_testbed.__file__).parent
    others = [path for path in root.rglob("*.py") if {"TemporaryDirectory", "mkdtemp"} & set(re.findall(r"\w+", path.read_text()))]
    assert [path.relative_to(root).name for path in others] == ["leftovers.py"]
