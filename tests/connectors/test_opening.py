"""Statements of other agents open only files that the settings allow, whatever links lead there, and only regular files."""

import os
import time
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from sbon.errors import ConnectorError
from sbon.query.params.source import SinkParams
from sbon.reach import ConnectorsConfig, FileConfig
from sbon_agent.connectors import ConnectorContext, SystemStreams
from sbon_agent.connectors.opening import Folder
from sbon_agent.connectors.reaches import Reaches
from tests.connector_world import InlineHost, columns, drain, sink, source

SCHEMA = columns(a="int")
ROWS = pl.DataFrame({"a": [1, 2]})


def others(data_dir: Path, *allow: str) -> ConnectorContext:
    """Returns the context of a connector that another agent asks for."""
    config = ConnectorsConfig(file=FileConfig(allow=allow)) if allow else ConnectorsConfig()
    reach = Reaches(config, str(data_dir), "n1").of(SinkParams("k", "file", ()))
    host: Any = InlineHost()
    return ConnectorContext(host=host, node="n1", labels={}, data_dir=str(data_dir), reach=reach, system=SystemStreams())


def read(path: Path | str, where: ConnectorContext, **options: str) -> list[int]:
    return drain(source("file", SCHEMA, where, path=path, **options))[0]["a"].to_list()


def write(path: Path | str, where: ConnectorContext, **options: str) -> None:
    out: Any = sink("file", SCHEMA, where, path=path, **options)
    out.write(ROWS)
    out.close()


def touch(use: str, path: str, where: ConnectorContext, **options: str) -> None:
    """Reads or writes a file, as `use` says."""
    if use == "read":
        read(path, where, **options)
    else:
        write(path, where, **({"format": "parquet"} if use == "parquet" else {"mode": use}), **options)


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Returns a data directory with `files/in.csv`; `secret.csv` is beside it, where others may not read."""
    (tmp_path / "data" / "files").mkdir(parents=True)
    (tmp_path / "data" / "files" / "in.csv").write_text("a\n7\n")
    (tmp_path / "secret.csv").write_text("a\n42\n")
    return tmp_path / "data"


def test_relative_paths_of_others_start_in_a_folder_of_their_own(data_dir: Path):
    where = others(data_dir)
    assert read("in.csv", where) == [7]
    write("deep/er/out.csv", where)
    assert (data_dir / "files/deep/er/out.csv").read_text() == "a\n1\n2\n"
    write("part", where, format="parquet")
    assert pl.read_parquet(data_dir / "files/part/part-000000.parquet")["a"].to_list() == [1, 2]
    write("out.csv", where, mode="replace")
    assert sorted(path.name for path in (data_dir / "files").iterdir()) == ["deep", "in.csv", "out.csv", "part"]


OUTSIDE = ["{above}/secret.csv", "../../secret.csv", "link.csv", "folder/secret.csv", "chain.csv", "~/secret.csv", "../agent.lock.csv"]


@pytest.fixture
def _links(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = data_dir / "files"
    (files / "link.csv").symlink_to(data_dir.parent / "secret.csv")
    (files / "folder").symlink_to(data_dir.parent)
    (files / "chain.csv").symlink_to("link.csv")
    monkeypatch.setenv("HOME", str(data_dir.parent))


@pytest.mark.usefixtures("_links")
@pytest.mark.parametrize("path", OUTSIDE)
@pytest.mark.parametrize("use", ["read", "append", "replace", "parquet"])
def test_what_is_outside_is_refused_with_the_setting_to_change(data_dir: Path, path: str, use: str):
    before = sorted(data_dir.parent.rglob("*"))
    given = path.format(above=data_dir.parent)
    with pytest.raises(ConnectorError) as refused:
        touch(use, given, others(data_dir))
    assert "add its folder to connectors.file.allow in the configuration of n1" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert sorted(data_dir.parent.rglob("*")) == before
    assert (data_dir.parent / "secret.csv").read_text() == "a\n42\n"


@pytest.mark.usefixtures("_links")
def test_links_are_followed_to_what_is_allowed(data_dir: Path):
    where = others(data_dir, "files", str(data_dir.parent))
    assert read("link.csv", where) == read("folder/secret.csv", where) == [42]
    write("chain.csv", where, mode="replace")
    assert (data_dir.parent / "secret.csv").read_text() == "a\n1\n2\n"
    assert (data_dir / "files/link.csv").is_symlink()


def test_a_link_that_takes_the_place_of_a_folder_behind_the_check_is_refused(data_dir: Path):
    """A resolved path is walked without following any link."""
    files = data_dir / "files"
    (files / "folder").symlink_to(data_dir.parent)
    with pytest.raises(OSError, match="Not a directory"):
        Folder(files / "folder", make=True)
    folder = Folder(files, make=False)
    (files / "link.csv").symlink_to(data_dir.parent / "secret.csv")
    for flags in (os.O_RDONLY, os.O_WRONLY | os.O_APPEND | os.O_CREAT):
        with pytest.raises(OSError, match="symbolic link"):
            folder.open("link.csv", flags)
    moved = files.rename(data_dir / "moved")
    files.symlink_to(data_dir.parent)
    with folder.create("secret.csv") as file:
        file.write(b"x")
    assert (moved / "secret.csv").read_text() == "x"
    assert (data_dir.parent / "secret.csv").read_text() == "a\n42\n"
    folder.close()
    folder.close()


@pytest.mark.parametrize("whose", ["ours", "others"])
@pytest.mark.parametrize("use", ["read", "append", "replace"])
@pytest.mark.parametrize(("name", "is_what"), [("pipe.csv", "a named pipe"), ("folder.csv", "a folder")])
def test_only_regular_files_are_opened_and_nothing_waits(data_dir: Path, whose: str, use: str, name: str, is_what: str):
    """Opening a pipe for reading would wait for a writer."""
    from tests.connector_world import context

    files = data_dir / "files"
    os.mkfifo(files / "pipe.csv")
    (files / "folder.csv").mkdir()
    where = context(files) if whose == "ours" else others(data_dir)
    began = time.monotonic()
    with pytest.raises(ConnectorError, match=f"{name} cannot be (read|written): it is {is_what}, expected a regular file"):
        touch(use, name, where)
    assert time.monotonic() - began < 5
    with pytest.raises(ConnectorError, match="it is a device"):
        touch(use, "/dev/zero", context(files), format="csv")


@pytest.mark.parametrize("path", ["a\0b.csv", "~no-user-of-this-name/a.csv", "x" * 300 + ".csv"])
def test_what_is_no_path_is_refused_in_one_line(data_dir: Path, path: str):
    for use in (read, write):
        with pytest.raises(ConnectorError) as refused:
            use(path, others(data_dir))
        assert "\n" not in str(refused.value)


def test_a_connector_that_is_stopped_while_it_opens_lets_go(data_dir: Path):
    import psutil

    def is_open(name: str) -> bool:
        folder = str(data_dir.resolve())  # earlier tests may have left files of these names open in other folders
        return any(file.path.startswith(folder) and file.path.endswith(name) for file in psutil.Process().open_files())

    from sbon.query.params.source import SourceParams
    from sbon_agent.connectors import build_sink, build_source

    where = others(data_dir)
    stopped: Any = build_source(SourceParams("s", "file", (("path", "in.csv"),), SCHEMA, None), where)
    stopped.stop()
    stopped.open()
    closed: Any = build_sink(SinkParams("k", "file", (("path", "out.csv"),)), SCHEMA, where)
    closed.close()
    closed.open()
    assert not is_open("in.csv")
    assert not is_open("out.csv")
