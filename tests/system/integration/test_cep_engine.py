"""A very short run of `sbon testbed cep --engine` with a real agent; its answers are checked in the run, window by window."""

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from sbon.cli.__main__ import run
from sbon_testbed.cep.stories import INSTANCES
from tests.examples import seeds


@pytest.mark.parametrize("name", seeds(["faces"], ["traffic"]))
def test_a_story_runs_on_an_agent_and_is_compared_with_virtual_time(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing here depends on how fast the machine is."""
    where = tmp_path / "engine.json"
    words = ["--story", name, "--seconds", "60", "--bound", "2", "--seed", "3", "--json", str(where), "--quiet"]

    assert run(["testbed", "cep", "--engine", *words]) in (0, None)

    found = json.loads(where.read_text())["engine"]
    (story,) = found.values()
    assert set(found) == {name}
    assert (story["speed"], story["instances"], story["recogniser"]) == (20, INSTANCES, "waits")
    (ran,) = story["bounds"].values()
    assert ran["answers"] == story["windows"] > 0
    assert 0 < ran["events_sent"] <= INSTANCES * story["rows"]
    assert ran["saved"] == pytest.approx(1 - ran["events_sent"] / ran["virtual"]["round-robin"]["events_sent"])
    assert ran["peak_s"] >= ran["median_s"] > 0
    assert 0 <= ran["over_twice_bound"] <= ran["over_bound"] <= 1
    assert set(ran["virtual"]) == {"round-robin", "ours", "auto", "one-copy"}
    out = capsys.readouterr().out
    assert "waits instead of computing" in out
    assert "on the agent" in out


FEEDS = """
import numpy as np
import polars
from sbon_testbed.mace.feeding import feed_lines
feed_lines({port}, np.array([0.0, 1e6]), lambda start_us: [b"first\\n", b"much later\\n"])
"""


def test_ctrl_c_ends_a_run_that_waits_for_the_next_row() -> None:
    """polars is there, as in a run: its own handler restarts system calls that a signal interrupts."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        text = FEEDS.format(port=server.getsockname()[1])
        with subprocess.Popen([sys.executable, "-c", text], stderr=subprocess.PIPE) as process:
            connection, _ = server.accept()
            try:
                with connection:
                    assert connection.recv(100) == b"first\n"
                    process.send_signal(signal.SIGINT)
                    _, told = process.communicate(timeout=60)
            finally:
                process.kill()
    assert told.splitlines()[-1] == b"KeyboardInterrupt"
    assert process.returncode == -signal.SIGINT
