"""The daemon's own decisions about keys, addresses, reload and leave, with an agent that only records calls."""

import os

import msgspec
import pytest

from sbon.control import ControlReply, ControlRequest
from sbon.cost.store import OperatorsTime
from sbon.errors import ConfigError
from sbon.reloading import reload_of
from sbon.sealing import KeyRing, generate_key
from sbon_agent.__main__ import main, overrides, parser
from sbon_agent.config import AgentConfig
from sbon_agent.daemon import Daemon, processor_times, read_key_ring, resolved
from sbon_agent.logs import LogConfig


class Recorder:
    """An agent that records calls, and leaves when the test says so."""

    def __init__(self, config: AgentConfig) -> None:
        self.config = config
        self.reloaded: list[AgentConfig] = []
        self.passed_on: list[ControlRequest] = []
        self.key_ring: KeyRing | None = None
        self.rings: list[KeyRing] = []
        self.told_to_leave = 0
        self.left = None
        self.shutdown = self

    def reload(self, fresh):
        self.reloaded.append(fresh)
        change = reload_of(self.config, fresh)
        self.config = change.config
        return change

    def use_keys(self, key_ring):
        self.key_ring = key_ring
        self.rings.append(key_ring)

    def when_leaving(self, call):
        self.leaving = call

    def when_left(self, call):
        self.left = call

    def leave(self, done):
        self.told_to_leave += 1

    def control(self, request, reply):
        self.passed_on.append(request)
        if request.command == "status":
            reply(ControlReply(request.id, final=True, result={"name": "ams1", "counters": {"late": 1}}))
        return lambda: None


class Silent:
    """Stands for a missing service manager."""

    def ready(self, status): ...

    def reloading(self): ...

    def stopping(self, within_s): ...


def daemon_with(config: AgentConfig, fresh: AgentConfig) -> tuple[Daemon, Recorder]:
    agent = Recorder(config)
    return Daemon(agent, lambda: fresh, Silent()), agent


CONFIG = resolved(AgentConfig(name="ams1", log=LogConfig(level="error")))


def test_beyond_loopback_no_key_means_no_start():
    for config in (AgentConfig(bind="0.0.0.0:7946"), AgentConfig(advertise="192.0.2.1:7946"), AgentConfig(bind="[::]:7946")):
        with pytest.raises(ConfigError, match="there is no cluster key: make one with `sbon keygen"):
            read_key_ring(config)
    assert read_key_ring(AgentConfig(bind="127.0.0.1:0")) is None


def test_key_file_is_read_and_one_that_others_can_read_is_warned_of(tmp_path, capsys):
    path = tmp_path / "cluster.key"
    path.write_text(generate_key(os.urandom(32)))
    path.chmod(0o600)
    assert len(read_key_ring(AgentConfig(bind="0.0.0.0:7946", key_file=str(path))).ids) == 1
    assert capsys.readouterr().out == ""

    path.chmod(0o644)
    read_key_ring(AgentConfig(key_file=str(path)))
    said = "".join(capsys.readouterr())
    assert "key_file.readable_by_others" in said
    assert path.read_text().strip() not in said


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe", b"c2hvcnQ=\n"])
def test_key_file_of_no_use_is_refused(tmp_path, content):
    path = tmp_path / "cluster.key"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(ConfigError):
        read_key_ring(AgentConfig(key_file=str(path)))


def test_name_and_directories_are_resolved(monkeypatch, tmp_path):
    monkeypatch.setattr("socket.gethostname", lambda: "My_Host(1).local")
    monkeypatch.setenv("HOME", str(tmp_path))

    config = resolved(AgentConfig(key_file="~/k"))

    assert (config.name, config.data_dir, config.key_file) == ("My_Host-1-.local", f"{tmp_path}/.local/state/sbon", f"{tmp_path}/k")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (AgentConfig(bind="0.0.0.0:7946", name="a"), "give one of its addresses with --advertise HOST:7946"),
        (AgentConfig(bind="[::]:9", name="a"), "give one of its addresses with --advertise HOST:9"),
        (AgentConfig(data_dir="", name="a"), "data_dir is empty"),
    ],
)
def test_what_only_the_user_can_say_must_be_said(config, message):
    with pytest.raises(ConfigError, match=message):
        resolved(config)


def test_options_become_a_layer_over_the_file():
    options = parser().parse_args(["--join", "a:1", "--join", "b:2", "--label", "x=1", "--label", "y=a=b", "--log-level", "debug"])

    assert overrides(options) == {"join": ["a:1", "b:2"], "labels": {"x": "1", "y": "a=b"}, "log": {"level": "debug"}}


def test_wrong_options_and_settings_end_with_code_2_and_one_line(capsys, tmp_path):
    assert main(["--label", "region"]) == 2
    assert main(["--bind", "nowhere"]) == 2
    assert main(["--config", str(tmp_path / "none.toml")]) == 2
    assert main(["--bind", "0.0.0.0:0", "--data-dir", str(tmp_path)]) == 2
    with pytest.raises(SystemExit) as ended:
        main(["--lable", "region=eu"])
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert [line.partition(":")[0] for line in said.err.splitlines()] == ["sbon agent"] * 5
    assert said.out == ""


def test_reload_says_what_took_effect_and_what_waits():
    fresh = msgspec.structs.replace(CONFIG, labels={"a": "b"}, bind="127.0.0.1:1", log=LogConfig(level="warning"))
    daemon, agent = daemon_with(CONFIG, fresh)

    assert daemon.reload() == {"applied": ["log.level"], "restart_needed": ["bind", "labels"]}
    assert agent.reloaded == [fresh]
    assert daemon.reload() == {"applied": [], "restart_needed": ["bind", "labels"]}


def test_keys_added_to_the_file_are_taken_over_by_a_reload(tmp_path):
    path = tmp_path / "cluster.key"
    path.write_text(generate_key(b"a" * 32))
    path.chmod(0o600)
    config = msgspec.structs.replace(CONFIG, key_file=str(path))
    agent = Recorder(config)
    agent.key_ring = read_key_ring(config)
    daemon = Daemon(agent, lambda: config, Silent())

    assert daemon.reload()["applied"] == []
    path.write_text(generate_key(b"b" * 32) + "\n" + generate_key(b"a" * 32))
    assert daemon.reload()["applied"] == ["key_file"]
    assert daemon.reload()["applied"] == []
    assert [len(ring.ids) for ring in agent.rings] == [2]


def test_wrong_configuration_changes_nothing_on_reload(capsys):
    def wrong() -> AgentConfig:
        raise ConfigError("agent.toml:1: nonsense")

    agent = Recorder(CONFIG)
    daemon = Daemon(agent, wrong, Silent())
    said: list[ControlReply] = []

    daemon.hang_up()
    daemon.control(ControlRequest(1, "reload"), said.append)

    assert agent.reloaded == []
    assert said == [ControlReply(1, final=True, error="agent.toml:1: nonsense")]


def test_daemon_ends_when_its_agent_has_left_whoever_told_it_to():
    daemon, agent = daemon_with(CONFIG, CONFIG)

    daemon.leave()
    daemon.leave()
    daemon.control(ControlRequest(1, "leave", {"within_s": 7}), lambda reply: None)
    assert not daemon.ended.is_set()
    assert (agent.told_to_leave, agent.passed_on) == (2, [ControlRequest(1, "leave", {"within_s": 7})])
    agent.left()

    assert daemon.ended.is_set()


async def test_other_commands_are_the_agent_s_and_shaping_is_the_testbed_s():
    daemon, agent = daemon_with(CONFIG, CONFIG)
    requests = [ControlRequest(1, "status"), ControlRequest(2, "shape", {"delays_ms": {}})]

    for request in requests:
        daemon.control(request, lambda reply: None)

    assert agent.passed_on == requests


async def test_status_counts_what_happens_around_the_agent_too():
    daemon, _ = daemon_with(CONFIG, CONFIG)
    daemon.counters.append({"requests_bad": 2})
    said: list[ControlReply] = []

    daemon.control(ControlRequest(1, "status"), said.append)

    counted = {"late": 1, "requests_bad": 2}
    assert said == [ControlReply(1, final=True, result={"name": "ams1", "loop_lag": None, "processor_s": None, "counters": counted})]


def test_the_processor_time_of_the_process_is_told_by_what_it_was_for() -> None:
    """Operators took 1 of 5 s on the event loop and 2 s on threads; the threads took 0.5 s for themselves."""
    spent = OperatorsTime()
    spent.operators_ns, spent.on_loop_ns = 3 * 10**9, 10**9
    threads_s = {"process": 5.0, "event_loop_thread": 2.25, "operator_threads": 2.0, "polars_threads": 0.5}

    told = processor_times(threads_s, spent)

    assert told == {"process": 5.0, "operators": 3.0, "event_loop": 1.25, "threads": 0.5, "other": 0.25}
    assert sum(told.values()) == 2 * told["process"]
