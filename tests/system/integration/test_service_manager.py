"""The agent under systemd: its notifications to the service manager, over a real socket, and its unit file."""

import configparser
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sbon.sealing import KeyRing
from tests.processes import WAIT_S, Process

UNIT = Path("deploy/sbon-agent.service")
EXPOSURE_MAX = 2.0
"""Largest exposure level, 0 to 10, by `systemd-analyze security`; observed 1.5."""
OLD, NEW = KeyRing([b"o" * 32]), KeyRing([b"n" * 32])


class Manager:
    """A service manager's socket, which receives notifications."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address)
        self._socket.settimeout(WAIT_S)

    def told(self) -> dict[str, str]:
        """Returns the next message, except those of the watchdog."""
        while True:
            message = self.message()
            if message != {"WATCHDOG": "1"}:
                return message

    def message(self) -> dict[str, str]:
        lines = self._socket.recv(1 << 16).decode().splitlines()
        return dict(line.split("=", 1) for line in lines)

    def rest(self) -> list[dict[str, str]]:
        """Returns all remaining messages of an agent that has ended."""
        self._socket.setblocking(False)
        found = []
        while True:
            try:
                found.append(self.message())
            except BlockingIOError:
                return found

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def started():
    processes = []

    def start(directory, name, *options, **how):
        processes.append(Process(directory, name, "--bind", "127.0.0.1:0", *options, **how))
        return processes[-1]

    yield start
    for process in processes:
        process.end(signal.SIGKILL)


@pytest.fixture(params=["path", "abstract"])
def manager(request, tmp_path, monkeypatch):
    path = str(tmp_path / "notify")
    abstract = f"sbon-test-{os.getpid()}-{tmp_path.name}"
    listening = Manager(path if request.param == "path" else f"\0{abstract}")
    monkeypatch.setenv("NOTIFY_SOCKET", path if request.param == "path" else f"@{abstract}")
    yield listening
    listening.close()


def monotonic_us() -> int:
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000


def test_the_service_manager_hears_of_start_reload_and_end(manager, started, tmp_path):
    config = tmp_path / "agent.toml"
    config.write_text("leaving_s = 2.0\nleave_timeout_s = 3.0\n")
    agent = started(tmp_path, "a", "--config", str(config))

    ready = manager.told()
    assert ready["READY"] == "1"
    assert agent.ask("status")["name"] == "a", "after READY the agent must answer"
    assert ready["STATUS"].startswith("a at 127.0.0.1:")

    for text, said in (("leaving_s = 4.0\nleave_timeout_s = 3.0\n", "applied: leaving_s"), ("leaving_s = -1\n", "old configuration")):
        config.write_text(text)
        before = monotonic_us()
        agent.process.send_signal(signal.SIGHUP)
        reloading = manager.told()
        assert reloading["RELOADING"] == "1"
        assert before <= int(reloading["MONOTONIC_USEC"]) <= monotonic_us()
        ready = manager.told()
        assert ready["READY"] == "1"
        assert said in ready["STATUS"]

    assert agent.end() == 0
    stopping = manager.told()
    assert stopping["STOPPING"] == "1"
    assert int(stopping["EXTEND_TIMEOUT_USEC"]) >= (4 + 3) * 1_000_000
    assert manager.rest() == []


def test_an_agent_that_is_told_to_leave_asks_for_the_time_that_it_was_given(manager, started, tmp_path):
    agent = started(tmp_path, "a")
    assert manager.told()["READY"] == "1"

    agent.ask("leave", within_s=600.0)
    stopping = manager.told()
    assert stopping["STOPPING"] == "1"
    assert int(stopping["EXTEND_TIMEOUT_USEC"]) >= 600_000_000


SBON_AGENT = """import os, sys
from sbon.cli.__main__ import main
os.environ["WATCHDOG_PID"] = str(os.getpid())
main(["agent", *sys.argv[1:]])
"""
"""Runs `sbon agent` with systemd's variables, which say that the watchdog is for the started process."""


def test_a_living_event_loop_feeds_the_watchdog(manager, started, tmp_path, monkeypatch):
    monkeypatch.setenv("WATCHDOG_USEC", "300000")
    agent = started(tmp_path, "a", program=SBON_AGENT)
    assert manager.told()["READY"] == "1"

    assert [manager.message() for _ in range(3)] == [{"WATCHDOG": "1"}] * 3
    assert agent.end() == 0


def test_an_agent_that_does_not_answer_is_not_ready(manager, started, tmp_path):
    (tmp_path / "a" / "control.sock" / "in-the-way").mkdir(parents=True)
    agent = started(tmp_path, "a")

    assert agent.process.wait(WAIT_S) != 0
    assert manager.rest() == []


# -- the unit ---------------------------------------------------------------------------------------------------------------


def unit() -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser(strict=False, interpolation=None)
    parser.optionxform = str
    parser.read_string(UNIT.read_text().replace("\\\n", " "))
    return parser


@pytest.fixture
def installed(tmp_path) -> Path:
    """Returns the unit file, changed to run an existing program."""
    path = tmp_path / UNIT.name
    program = Path(sys.executable).with_name("sbon")
    path.write_text(UNIT.read_text().replace("/opt/sbon/bin/sbon", str(program)))
    return path


needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not on this machine")


@needs_systemd
def test_systemd_finds_nothing_wrong_with_the_unit(installed):
    done = subprocess.run(["systemd-analyze", "verify", str(installed)], capture_output=True, text=True, timeout=WAIT_S)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@needs_systemd
def test_the_unit_leaves_little_exposed(installed):
    threshold = f"--threshold={EXPOSURE_MAX * 10:.0f}"
    command = ["systemd-analyze", "security", "--no-pager", "--offline=true", threshold, str(installed)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd-analyze cannot look at units offline")
    assert done.returncode == 0, done.stdout[-400:]


def test_keys_change_under_the_unit_and_stay_changed(started, tmp_path):
    service = unit()["Service"]
    state, secrets = tmp_path / "a", tmp_path / "credentials"
    secrets.mkdir()
    (secrets / "cluster.key").write_text(OLD.print())
    (secrets / "cluster.key").chmod(0o400)
    secrets.chmod(0o500)
    known = {"${STATE_DIRECTORY}": str(state), "${CREDENTIALS_DIRECTORY}": str(secrets)}
    command = re.sub(r"\$\{\w+\}", lambda found: known[found[0]], service["ExecStart"]).split()
    options = command[command.index("--key-file") :]
    assert options[::2] == ["--key-file", "--initial-key-file"]
    assert service["LoadCredential"].split(":")[0] == "cluster.key"

    agent = started(tmp_path, "a", *options).wait_until_ready()
    kept = state / "cluster.key"
    for action, arguments in (("install", {"key": b"n" * 32}), ("use", {"id": NEW.ids[0]}), ("remove", {"id": OLD.ids[0]})):
        assert [node["error"] for node in agent.ask("keys", action=action, **arguments)["nodes"]] == [None]
    assert agent.end() == 0

    agent = started(tmp_path, "a", *options).wait_until_ready()
    assert [node["ids"] for node in agent.ask("keys", action="list")["nodes"]] == [list(NEW.ids)]
    assert KeyRing.parse(kept.read_text()).ids == NEW.ids
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert (secrets / "cluster.key").read_text() == OLD.print()
