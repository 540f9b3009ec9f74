"""The Java runtime for Spark is found, or one line reports that there is none."""

import subprocess

import pytest

from sbon.analysis import java
from sbon.analysis.session import settings
from sbon.errors import SbonError


def fake_java(folder, version, code=0):
    """Makes a `java` that prints a version on `-version`, and otherwise its arguments."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        f'#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "{version}" 2026-01-01\' >&2 && exit {code}\nprintf "%s\\n" "$@"\n'
    )
    program.chmod(0o755)
    return folder


@pytest.mark.parametrize(("text", "major"), [("17.0.15", 17), ("25", 25), ("1.8.0_292", 8)])
def test_version_is_read_from_what_java_says(tmp_path, text, major):
    assert java.version_of(fake_java(tmp_path, text) / "bin" / "java") == major


def test_program_that_fails_or_is_missing_is_no_java(tmp_path):
    assert java.version_of(fake_java(tmp_path / "a", "17", code=1) / "bin" / "java") is None
    assert java.version_of(tmp_path / "nothing") is None


def test_launcher_passes_everything_on_but_the_flag(tmp_path):
    home = fake_java(tmp_path / "jdk 17", "17.0.1")

    found = java.java_home({"JAVA_HOME": str(home), "XDG_CACHE_HOME": str(tmp_path / "cache"), "PATH": ""})
    arguments = ["-Xmx1g", java.VECTOR_FLAG, "-cp", "a b:*", "", "Main"]
    said = subprocess.run([found / "bin" / "java", *arguments], capture_output=True, text=True, check=True).stdout

    assert said.split("\n")[:-1] == ["-Xmx1g", "-cp", "a b:*", "", "Main"]


def test_old_java_is_passed_over_for_the_next(tmp_path):
    old, new = fake_java(tmp_path / "old", "11.0.2"), fake_java(tmp_path / "new", "21.0.2")
    environment = {"JAVA_HOME": str(old), "PATH": str(new / "bin"), "XDG_CACHE_HOME": str(tmp_path / "cache")}

    assert str(new) in (java.java_home(environment) / "bin" / "java").read_text()


def test_without_any_java_the_line_says_what_was_found_and_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(java.importlib.util, "find_spec", lambda name: None)
    old = fake_java(tmp_path / "old", "11.0.2")

    with pytest.raises(SbonError, match=r"no Java 17 or newer \(.*is Java 11\): set JAVA_HOME, or pip install"):
        java.java_home({"JAVA_HOME": str(old), "PATH": str(tmp_path)})
    with pytest.raises(SbonError, match="no Java 17 or newer: set JAVA_HOME"):
        java.java_home({"PATH": str(tmp_path)})


def test_nothing_listens_beyond_loopback_with_a_local_master_and_other_masters_are_left_alone():
    assert settings("local[*]", 2)["spark.driver.bindAddress"] == settings("local[4]", 2)["spark.driver.host"] == "127.0.0.1"
    assert "spark.driver.bindAddress" not in settings("spark://a:7077", 2)
    assert settings("local[*]", 2)["spark.ui.enabled"] == "false"


def test_launcher_of_an_earlier_analysis_is_not_started_by_itself(tmp_path):
    """A process started by an analysis inherits the JAVA_HOME of the analysis."""
    real = fake_java(tmp_path / "jdk", "17.0.1")
    environment = {"JAVA_HOME": str(real), "XDG_CACHE_HOME": str(tmp_path / "cache"), "PATH": str(real / "bin")}
    first = java.java_home(environment)

    second = java.java_home({**environment, "JAVA_HOME": str(first)})

    assert str(real) in (second / "bin" / "java").read_text()
