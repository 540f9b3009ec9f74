"""A wheel of the checkout works beside foreign packages named `agent` and `testbed`."""

import importlib.metadata
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOLDERS = {"sbon": "sbon", "sbon_agent": "agent", "sbon_testbed": "testbed"}
"""Import names and their folders."""
SETUPTOOLS_MIN = 77
"""First version that supports the form of the licence in `pyproject.toml`."""
WAIT_S = 300.0
FOREIGN = re.compile(r"^[ \t]*(?:from|import)[ \t]+(?:agent|testbed)\b.*$", re.MULTILINE)
"""Imports by the names of the folders."""

CONNECTOR = """
from sbon.errors import ConnectorError
from sbon_agent.connectors import Connector

def refuse(params, context):
    raise ConnectorError("reached the connector of the user")

CONNECTOR = Connector(source=refuse)
"""


def files(folder: str) -> set[str]:
    """Returns the files of a folder, without compiled ones."""
    found = (path.relative_to(ROOT / folder) for path in (ROOT / folder).rglob("*") if path.is_file())
    return {str(path) for path in found if "__pycache__" not in path.parts}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds the wheel from a copy, as setuptools writes beside the sources."""
    place = tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        (place / "tree" / name).parent.mkdir(exist_ok=True)
        (place / "tree" / name).write_bytes((ROOT / name).read_bytes())
    for folder in FOLDERS.values():
        for file in files(folder):
            (place / "tree" / folder / file).parent.mkdir(parents=True, exist_ok=True)
            (place / "tree" / folder / file).write_bytes((ROOT / folder / file).read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-input", "--wheel-dir", str(place), str(place / "tree")]
    is_new = int(importlib.metadata.version("setuptools").partition(".")[0]) >= SETUPTOOLS_MIN
    built = subprocess.run([*command, *(["--no-build-isolation"] if is_new else [])], capture_output=True, text=True, timeout=WAIT_S)
    if built.returncode and not is_new and "No matching distribution found for setuptools" in built.stderr:
        pytest.skip(f"needs setuptools {SETUPTOOLS_MIN} or newer, or a package index to install it from")
    assert built.returncode == 0, built.stderr[-3000:]
    (found,) = place.glob("sbon-*.whl")
    return found


@pytest.fixture(scope="module")
def path(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Returns folders for PYTHONPATH: the foreign packages first, then a connector of a user, then the wheel's contents."""
    foreign, user, installed = (tmp_path_factory.mktemp(name) for name in ("foreign", "user", "installed"))
    for name in ("agent", "testbed"):
        (foreign / name).mkdir()
        (foreign / name / "__init__.py").write_text("raise ImportError('this is not sbon')\n")
    (user / "their_connector.py").write_text(CONNECTOR)
    info = user / "their_connector-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-connector\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[sbon.connectors]\ntheirs = their_connector:CONNECTOR\n")
    options = ["--no-deps", "--no-index", "--no-input", "--quiet", "--target", str(installed)]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(wheel)], check=True, timeout=WAIT_S)
    return [str(foreign), str(user), str(installed)]


def run(path: list[str], tmp_path: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Runs a command without the checkout's own installation, whose finder comes after PYTHONPATH."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=WAIT_S)


def test_wheel_has_our_names_alone_and_every_file_of_the_folders(wheel: Path):
    with zipfile.ZipFile(wheel) as packed:
        names = [name for name in packed.namelist() if ".dist-info/" not in name]
    assert {name.partition("/")[0] for name in names} == set(FOLDERS)
    for package, folder in FOLDERS.items():
        assert {name.removeprefix(f"{package}/") for name in names if name.startswith(f"{package}/")} == files(folder)


@pytest.mark.parametrize("command", ["agent", "testbed", "bench", "collect", "testbed run", "bench nexmark"])
def test_commands_are_there_beside_foreign_packages(path: list[str], tmp_path: Path, command: str):
    done = run(path, tmp_path, sys.executable, "-m", "sbon.cli", *command.split(), "--help")

    assert done.returncode == 0, done.stderr
    assert f"sbon {command}" in done.stdout


def test_modules_of_the_wheel_are_those_that_run(path: list[str], tmp_path: Path):
    program = "import sbon, sbon_agent, sbon_testbed; print(*(one.__file__ for one in (sbon, sbon_agent, sbon_testbed)))"
    done = run(path, tmp_path, sys.executable, "-c", program)

    assert done.stdout.split() == [f"{path[-1]}/{package}/__init__.py" for package in FOLDERS]


def test_processes_that_others_start_run_beside_foreign_packages(path: list[str], tmp_path: Path):
    for module, arguments in (("sbon_agent", ["--print-config"]), ("sbon_agent.telemetry.writer", ["--help"])):
        done = run(path, tmp_path, sys.executable, "-P", "-m", module, *arguments)
        assert done.returncode == 0, done.stderr


def test_a_scenario_runs_as_processes_beside_foreign_packages(path: list[str], tmp_path: Path):
    scenario = tmp_path / "two.toml"
    scenario.write_text("name = 'two'\nduration_s = 2\nnodes = 2\nstart_spread_s = 0\n")
    command = ["testbed", "run", str(scenario), "--backend", "local", "--out", str(tmp_path / "out")]
    done = run(path, tmp_path, sys.executable, "-m", "sbon.cli", *command)

    assert done.returncode == 0, done.stdout + done.stderr
    logs = [path.read_text() for path in (tmp_path / "out").rglob("agent.log")]
    assert ["agent.started" in log for log in logs] == [True, True]


def test_a_connector_of_a_user_is_found_by_its_entry_point(path: list[str], tmp_path: Path):
    program = (
        "from sbon_agent.extensions import load_connector\n"
        "try:\n    load_connector('theirs').source(None, None)\nexcept Exception as problem:\n    print(problem)"
    )
    done = run(path, tmp_path, sys.executable, "-c", program)

    assert done.stdout.strip() == "reached the connector of the user", done.stderr


def test_folders_are_imported_by_their_own_names_alone():
    """`import agent` works only if the checkout is the current folder."""
    found = []
    for folder in (*FOLDERS.values(), "tests"):
        for file in (ROOT / folder).rglob("*.py"):
            text = file.read_text(encoding="utf-8")
            found += [f"{file.relative_to(ROOT)}: {match[0].strip()}" for match in FOREIGN.finditer(text)]
    assert found == [], "write sbon_agent and sbon_testbed"
