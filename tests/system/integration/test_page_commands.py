"""Commands of the pages that need no agent, typed into a shell as they stand there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sbon_agent.config import AgentConfig, read_config
from tests.documents import ROOT, Command, commands_run_by
from tests.page_player import unsaid
from tests.processes import WAIT_S

SOAK_WAIT_S = 3600.0


def typed(command: Command, folder: Path, timeout_s: float = WAIT_S) -> str:
    """Runs a command line in a folder that has the project's scenarios, and returns what it prints; demands what the page says of that."""
    if not (folder / "testbed").exists():
        (folder / "testbed").symlink_to(ROOT / "testbed")
        (folder / "etc").mkdir()
    environment = {**os.environ, "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
    line = command.text.replace("/etc/sbon/", "etc/")
    done = subprocess.run(line, shell=True, cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False)
    is_refusal = command.output.startswith("sbon")
    assert (done.returncode != 0) == is_refusal, (command, done.returncode, done.stderr[-2000:])
    said = done.stderr if is_refusal else done.stdout
    assert unsaid(command.output, said) == [], f"{command.page}:{command.line}: `{command.text}` has printed:\n{said}"
    return said


def once(commands: list[Command]) -> list[Command]:
    """Returns the commands without those that another page has too."""
    return list({command.text: command for command in commands}.values())


def test_commands_that_need_no_agent(tmp_path: Path) -> None:
    mistake_of_the_page = 'name = "ams"\n\n[membership]\nprobe_interval = 1.0\n'
    (tmp_path / "agent.toml").write_text(mistake_of_the_page)

    for command in once(commands_run_by("tests/system/integration/test_page_commands.py::test_commands_that_need_no_agent")):
        said = typed(command, tmp_path)
        assert said or ">" in command.text

    assert read_config(str(tmp_path / "etc" / "agent.toml"), {}) == AgentConfig()


@pytest.mark.soak
def test_commands_of_some_minutes(tmp_path: Path) -> None:
    for command in once(commands_run_by("tests/system/integration/test_page_commands.py::test_commands_of_some_minutes")):
        typed(command, tmp_path, SOAK_WAIT_S)
