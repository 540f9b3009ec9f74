"""The daemon as a real process: small when idle, graceful, and sole owner of its data."""

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator

import psutil
import pytest

from sbon.cli.client import ControlClient, RefusedError
from sbon.cost_space.coordinate import Coordinate
from sbon.sealing import generate_key
from sbon_agent.state import SavedState, StateFile
from tests.processes import Process, wait_until

HEAVY = ("polars", "scipy", "sqlglot", "typer", "rich", "pandas", "matplotlib", "pyspark")
IDLE_BYTES_MAX = 68 * 2**20
"""Observed: 64.1 to 65.1 MiB with a cluster key; 9 of these are the cryptography library, 11 the modules of sbon and the agent."""


@pytest.fixture
def start(tmp_path) -> Iterator[Callable[..., Process]]:
    started: list[Process] = []

    def make(name: str, *options: str, program: str | None = None) -> Process:
        process = Process(tmp_path, name, "--bind", "127.0.0.1:0", *options, program=program)
        started.append(process)
        return process

    yield make
    for process in started:
        process.end(signal.SIGKILL)


def alive(agent: Process) -> int:
    return agent.ask("status")["members"]["alive"]


def test_idle_agent_is_small_and_loads_nothing_heavy(start, tmp_path):
    """The agent has joined, probes and seals its datagrams, but has no operators."""
    key_file = tmp_path / "cluster.key"
    key_file.write_text(generate_key(os.urandom(32)))
    key_file.chmod(0o600)
    keyed = ("--key-file", str(key_file))
    program = (
        "import sys\nfrom sbon_agent.__main__ import main\ncode = main()\n"
        f"print([m for m in {HEAVY!r} if m in sys.modules])\nsys.exit(code)"
    )
    seed = start("seed", *keyed).wait_until_ready()
    idle = start("idle", *keyed, "--join", seed.ask("status")["address"], program=program).wait_until_ready()
    wait_until(lambda: alive(idle) == 2)
    wait_until(lambda: idle.ask("status")["median_relative_error"] is not None)

    resident = psutil.Process(idle.process.pid).memory_info().rss
    assert idle.end() == 0
    assert idle.said == "[]"
    assert resident < IDLE_BYTES_MAX


def test_terminated_agent_leaves_in_good_order(start):
    first = start("first").wait_until_ready()
    second = start("second", "--join", first.ask("status")["address"]).wait_until_ready()
    wait_until(lambda: alive(first) == 2)

    assert second.end(signal.SIGTERM) == 0
    wait_until(lambda: {m["name"]: m["status"] for m in first.ask("members")} == {"first": "alive", "second": "left"})

    assert not (second.directory / "control.sock").exists()
    assert "agent.leaving" in second.events()
    assert first.end(signal.SIGINT) == 0


def test_agent_comes_back_with_the_coordinate_and_the_incarnation_it_had(start, tmp_path):
    (tmp_path / "a").mkdir()
    StateFile(tmp_path / "a").save(SavedState("a", 41, Coordinate((10.0, -20.0, 30.0), 4.0, 0.2)))

    agent = start("a").wait_until_ready()
    status = agent.ask("status")
    agent.end()

    assert status["coordinate"]["vector"] == [10.0, -20.0, 30.0]
    assert status["incarnation"] >= 41
    left_behind = StateFile(tmp_path / "a").load("a")
    assert left_behind is not None
    assert left_behind.incarnation == status["incarnation"]


@pytest.mark.parametrize("incarnation", [2**53 - 1, 2**53])
def test_an_incarnation_that_somebody_has_driven_to_its_end_does_not_prevent_a_start(start, tmp_path, incarnation):
    (tmp_path / "a").mkdir()
    StateFile(tmp_path / "a").save(SavedState("a", incarnation))

    agent = start("a").wait_until_ready()

    assert agent.ask("status")["incarnation"] == 0
    assert agent.end() == 0


def test_damaged_state_costs_a_warning_and_not_the_start(start, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "state.json").write_text("{damaged")

    agent = start("a").wait_until_ready()

    assert "state.unreadable" in agent.events()


def test_second_agent_in_one_data_directory_is_refused_and_the_first_goes_on(start):
    first = start("only").wait_until_ready()
    second = start("only")

    assert second.process.wait(timeout=120) == 2
    assert f"belongs to a running agent (process {first.process.pid})" in first.log.read_text()
    assert first.ask("status")["name"] == "only"


def test_address_that_is_taken_is_refused_in_one_line(start, tmp_path):
    first = start("first").wait_until_ready()
    taken = first.ask("status")["address"]
    second = Process(tmp_path, "second", "--bind", taken)

    assert second.process.wait(timeout=120) == 2
    said = second.log.read_text().splitlines()
    assert len(said) == 1
    assert said[0].startswith("sbon agent: ")
    assert taken in said[0]


def test_hang_up_reloads_what_can_be_and_names_what_waits(start, tmp_path):
    config = tmp_path / "agent.toml"
    config.write_text('[log]\nlevel = "info"\n')
    agent = start("a", "--config", str(config)).wait_until_ready()

    config.write_text('data_dir = "/elsewhere"\n[log]\nlevel = "warning"\n[membership]\ninterval_s = 0.5\n[links]\nwindow_batches = 9\n')
    assert agent.ask("reload") == {"applied": ["log.level", "membership.interval_s"], "restart_needed": ["links.window_batches"]}

    config.write_text("nonsense = 1\n")
    agent.process.send_signal(signal.SIGHUP)
    wait_until(lambda: "config.refused" in agent.events())
    assert agent.ask("status")["name"] == "a"


def test_agent_told_over_its_socket_leaves(start):
    agent = start("a").wait_until_ready()

    assert agent.ask("leave") == {"left": True, "moved": 0, "stayed": []}
    assert agent.process.wait(timeout=120) == 0


def test_cluster_key_is_exchanged_without_a_pause_and_strangers_stay_outside(start, tmp_path):
    old, new = generate_key(b"o" * 32), generate_key(b"n" * 32)

    def key_file(name: str, *keys: str) -> str:
        path = tmp_path / f"{name}.key"
        path.write_text("\n".join(keys))
        path.chmod(0o600)
        return str(path)

    agents = [start("a", "--key-file", key_file("a", old)).wait_until_ready()]
    address = agents[0].ask("status")["address"]
    agents.append(start("b", "--join", address, "--key-file", key_file("b", old)).wait_until_ready())
    wait_until(lambda: alive(agents[0]) == 2)

    for keys in ((old, new), (new, old), (new,)):
        for name, agent in zip("ab", agents, strict=True):
            key_file(name, *keys)
            assert agent.ask("reload") == {"applied": ["key_file"], "restart_needed": []}
    late = start("c", "--join", address, "--key-file", key_file("c", new)).wait_until_ready()
    stranger = start("d", "--join", address, "--key-file", key_file("d", old)).wait_until_ready()
    wait_until(lambda: alive(late) == 3)
    wait_until(lambda: stranger.ask("status")["counters"]["dials_failed"] > 0)

    assert sorted(m["name"] for m in agents[0].ask("members")) == ["a", "b", "c"]
    assert {m["status"] for m in agents[0].ask("members")} == {"alive"}
    assert alive(stranger) == 1


def test_noise_on_the_agent_s_port_is_counted_and_survived(start):
    agent = start("a").wait_until_ready()
    host, _, port = agent.ask("status")["address"].rpartition(":")
    address = (host, int(port))
    noise = random.Random(7)

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for size in (0, 1, 5, 60, 1200, 9000):
            for _ in range(20):
                sender.sendto(noise.randbytes(size), address)
    for size in (1, 100, 100_000):
        # The agent closes at the first nonsense, sometimes before all is sent; the error then is not always a `ConnectionError`.
        with socket.create_connection(address, timeout=120) as stream, contextlib.suppress(OSError):
            stream.sendall(noise.randbytes(size))
            stream.shutdown(socket.SHUT_WR)
            while stream.recv(1 << 16):
                pass

    def refused() -> bool:
        counters = agent.ask("status")["counters"]
        return sum(count for name, count in counters.items() if "bad" in name or "refused" in name or "failed" in name) >= 100

    wait_until(refused)
    assert agent.ask("status")["members"]["alive"] == 1
    assert agent.end() == 0


def test_agent_goes_on_when_nothing_can_be_written(start, tmp_path):
    """As on a full disk, the kernel refuses writes of log, telemetry and state."""
    config = tmp_path / "agent.toml"
    config.write_text("[telemetry]\nflush_interval_s = 0.1\n")
    program = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
        "from sbon_agent.__main__ import main\n"
        "code = main()\n"
        "sys.exit(code)"
    )
    seed = start("seed").wait_until_ready()
    agent = start("full", "--config", str(config), "--join", seed.ask("status")["address"], program=program).wait_until_ready()

    wait_until(lambda: agent.ask("status")["counters"]["telemetry_write_failures"] >= 2)
    counters = agent.ask("status")["counters"]

    assert counters["log_lines_lost"] > 0
    assert counters["callbacks_failed"] == 0
    assert alive(agent) == alive(seed) == 2
    assert agent.end() == 0
    assert agent.log.read_text() == ""


def test_exit_code_is_the_agents_though_its_last_words_cannot_be_written(tmp_path):
    """The interpreter flushes standard error at its end, and changes the exit code to 120 if that fails."""
    program = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
        "from sbon_agent.__main__ import main\n"
        "sys.exit(main(['--bind', 'nonsense']))"
    )
    with (tmp_path / "log").open("wb") as log:
        ended = subprocess.run([sys.executable, "-c", program], stderr=log, timeout=120)

    assert ended.returncode == 2


def test_a_named_pipe_for_a_file_neither_stops_the_agent_nor_runs(start, tmp_path):
    """Opening a pipe blocks until another process opens its other end."""
    os.mkfifo(tmp_path / "pipe.csv")
    agent = start("a").wait_until_ready()
    agent.ask("submit", sql=f"CREATE SOURCE s (a BIGINT) WITH (connector = 'file', path = '{tmp_path}/pipe.csv')")
    expected = "it is a named pipe, expected a regular file"
    with pytest.raises(RefusedError, match=f"pipe.csv cannot be read: {expected}"):
        agent.ask("submit", sql="SELECT a FROM s")
    for mode in ("append", "replace"):
        sink = f"CREATE SINK k FROM (SELECT cpu FROM sys.load) WITH (connector = 'file', path = '{tmp_path}/pipe.csv', mode = '{mode}')"
        assert agent.ask("explain", sql=sink)["operators"]
        with pytest.raises(RefusedError, match=f"pipe.csv cannot be written: {expected}"):
            agent.ask("submit", sql=sink)
    assert (agent.ask("operators"), agent.ask("queries")) == ([], [])


def test_a_deleted_control_socket_is_made_again_and_a_deleted_data_directory_is_owned_again(start):
    agent = start("a").wait_until_ready()
    with ControlClient(agent.directory / "control.sock") as before:
        (agent.directory / "control.sock").unlink()
        agent.wait_until_ready()
        assert "control.socket_made_again" in agent.events()
        assert before.ask("status")["name"] == "a", "an earlier connection must stay open"

    shutil.rmtree(agent.directory)
    agent.wait_until_ready()
    second = Process(agent.directory.parent, "a", "--bind", "127.0.0.1:0")
    assert second.end(0) == 2
    assert agent.ask("status")["name"] == "a"
    assert agent.end() == 0
    assert not (agent.directory / "control.sock").exists()


def test_an_agent_leaves_a_data_directory_alone_that_another_one_owns_by_now(start):
    first = start("a").wait_until_ready()
    shutil.rmtree(first.directory)
    first.process.send_signal(signal.SIGSTOP)  # so that the second agent comes first
    second = start("a").wait_until_ready()
    first.process.send_signal(signal.SIGCONT)
    wait_until(lambda: "control.socket_lost" in first.events())
    assert second.ask("status")["address"] != ""
    assert first.end() == 0
    assert second.ask("status")["name"] == "a"
