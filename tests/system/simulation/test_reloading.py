"""A running agent applies exactly the settings that it reports as applied, in all its parts."""

import gc
import io
import math
import types
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from sbon.config import load
from sbon.errors import ConfigError
from sbon.reloading import EFFECTS, Effect, effect_of, reload_of, settings
from sbon.types import NodeId
from sbon_agent import logs
from sbon_agent.config import AgentConfig
from sbon_agent.node import Agent
from sbon_testbed.simulator.harness import World
from tests.worlds import settled_world

OTHER = {
    "name": "other",
    "bind": "127.0.0.1:1",
    "advertise": "127.0.0.1:2",
    "join": ("127.0.0.1:3",),
    "data_dir": "/elsewhere",
    "key_file": "/other.key",
    "labels": {"region": "eu"},
    "log.level": "debug",
    "log.format": "console",
    "membership.interval_s": 0.7,
    "membership.timeout_s_min": 0.21,
    "membership.timeout_s_max": 0.51,
    "engine.take_over": False,
    "telemetry.mqtt": "mqtt://127.0.0.1/prefix",
    "telemetry.mqtt_user": "other",
    "telemetry.mqtt_password_file": "/other",
    "telemetry.mqtt_ca_file": "/other",
    "links.compression": "zstd",
    "links.spill_bytes": 2**30,
}
"""Other values for settings for which a slightly larger value is invalid."""


def at(config: Any, path: str) -> Any:
    for name in path.split("."):
        config = getattr(config, name)
    return config


def another(value: Any, path: str) -> Any:
    if path in OTHER:
        return OTHER[path]
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case float():
            return value * 1.03125 if 0 < value < math.inf else 1e6
        case str():
            return f"{value}x"
        case tuple():
            return (*value[:-1],)
    raise AssertionError(f"no other value for {path} = {value!r}")


def with_other(config: Any, path: str) -> Any:
    """Returns the configuration with another value of one setting, unchecked."""
    name, _, below = path.partition(".")
    inner = getattr(config, name)
    return msgspec.structs.replace(config, **{name: with_other(inner, below) if below else another(inner, full_path(config, name))})


def full_path(config: Any, name: str) -> str:
    sections = {type(section): path for path, section in sections_of(AgentConfig())}
    return f"{sections[type(config)]}.{name}" if type(config) in sections else name


def sections_of(config: msgspec.Struct, prefix: str = "") -> Iterator[tuple[str, msgspec.Struct]]:
    for field in msgspec.structs.fields(type(config)):
        value = getattr(config, field.name)
        if isinstance(value, msgspec.Struct):
            yield prefix + field.name, value
            yield from sections_of(value, f"{prefix}{field.name}.")


def held_by(agent: Agent, kinds: tuple[type, ...]) -> list[Any]:
    """Returns the objects of these types that an agent's parts refer to, except `Agent.config`, classes, modules and the virtual world."""
    own = agent.config
    seen, found, todo = {id(own)}, [], [agent]
    while todo:
        one = todo.pop()
        if id(one) in seen or isinstance(one, type | types.ModuleType | Iterator | types.FrameType):
            continue
        seen.add(id(one))
        if isinstance(one, kinds):
            found.append(one)
        if isinstance(one, types.FunctionType):
            todo += [one.__closure__, one.__defaults__]
        elif not type(one).__module__.startswith("sbon_testbed."):  # the hosts and the network lead to other agents
            todo += gc.get_referents(one)
    return found


@pytest.fixture(scope="module")
def world() -> World:
    return settled_world(2, settings={"membership": {"interval_s": 0.5}, "engine": {"state_disk_max": 2**30}})


def test_every_setting_has_its_line_and_every_line_its_setting():
    used = {max((line for line in EFFECTS if path == line or path.startswith(f"{line}.")), key=len) for path in settings(AgentConfig)}

    assert used == set(EFFECTS)
    assert len(settings(AgentConfig)) > 100
    assert effect_of("membership.interval_s") is Effect.AT_ONCE
    assert effect_of("membership.introductions_max") is effect_of("links.window_bytes") is Effect.RESTART


@pytest.mark.parametrize("path", settings(AgentConfig))
def test_what_is_told_as_applied_is_in_force_and_what_waits_is_not(world: World, path: str):
    """Every part that keeps a setting's section has the new value if the setting was applied, and the old value if not."""
    agent: Any = world.agents[0]
    before = agent.config
    fresh = with_other(before, path)
    section = path.rpartition(".")[0]
    kinds = (type(at(before, section)),) if section else (AgentConfig,)

    try:
        change = agent.reload(fresh)
        applied = effect_of(path) is Effect.AT_ONCE and path != "key_file"
        assert (change.applied, change.waiting) == (((path,), ()) if applied else ((), (path,)))
        assert at(agent.config, path) == at(fresh if applied else before, path)
        name = path.rpartition(".")[2]
        kept = [getattr(one, name) for one in held_by(agent, kinds)]
        assert [value for value in kept if value != at(agent.config, path)] == []
        assert kept or section in ("", "log", "control", "connectors.file", "connectors.tcp", "load") or not applied
    finally:
        agent.reload(before)
        agent.config = before


def test_key_file_is_taken_over_where_sealing_goes_on_and_waits_where_it_would_begin_or_end():
    plain, sealed, other = (AgentConfig(key_file=path) for path in ("", "/a.key", "/b.key"))

    assert reload_of(sealed, other).applied == ("key_file",)
    assert reload_of(plain, sealed).waiting == reload_of(sealed, plain).waiting == ("key_file",)
    assert reload_of(plain, sealed).config == plain


def test_refused_settings_change_nothing(world: World):
    agent: Any = world.agents[0]
    before = agent.config
    layers = {
        "connectors": {"file": {"allow": ["~nobody-of-this-name/x"]}},
        "membership": {"interval_s": 0.9},
        "optimiser": {"enabled": False},
    }
    fresh = load(AgentConfig, "", "test", layers)

    with pytest.raises(ConfigError, match=r"connectors\.file\.allow: "):
        agent.reload(fresh)

    assert agent.config == before
    assert agent.network.gossip.machine._config == before.membership
    assert agent.optimisers.rebalancing._config == before.optimiser


def test_shorter_pause_between_reviews_begins_now(world: World, monkeypatch: pytest.MonkeyPatch):
    slow = World(1, settings={"optimiser": {"interval_s": 5000.0}})
    slow.start_all()
    agent: Any = slow.agents[0]
    reviews: list[float] = []
    monkeypatch.setattr(agent.optimisers.rebalancing, "_review_all", lambda: reviews.append(slow.now))
    slow.run(1)

    agent.reload(with_interval(agent.config, 2.0))
    slow.run(10)

    assert 3 <= len(reviews) <= 7


def with_interval(config: AgentConfig, interval_s: float) -> AgentConfig:
    return msgspec.structs.replace(config, optimiser=msgspec.structs.replace(config.optimiser, interval_s=interval_s))


def test_candidates_of_the_next_query_have_the_new_time_to_answer():
    world = settled_world(3, settings={"optimiser": {"answer_timeout_s": 9.0}})
    agent: Any = world.agents[0]
    asked: list[float] = []
    real = agent.placement.candidate_questions.ask

    def ask(node: NodeId, about: Any, rtts: Any, timeout_s: float, *more: Any, **further: Any) -> None:
        asked.append(timeout_s)
        real(node, about, rtts, timeout_s, *more, **further)

    agent.placement.candidate_questions.ask = ask
    optimiser = msgspec.structs.replace(agent.config.optimiser, answer_timeout_s=1.25)
    agent.reload(msgspec.structs.replace(agent.config, optimiser=optimiser))
    world.submit("SELECT peer, count(*) AS n FROM TUMBLE(sys.probes, ts, INTERVAL '1 second') GROUP BY window_start, peer")

    assert set(asked) == {1.25}


def test_labels_that_wait_for_a_restart_are_not_shown(world: World):
    agent: Any = world.agents[0]
    shown = world.ask(0, "status")["labels"]

    assert agent.reload(msgspec.structs.replace(agent.config, labels={"region": "moon"})).waiting == ("labels",)

    assert world.ask(0, "status")["labels"] == shown != {"region": "moon"}


def test_agent_takes_as_long_to_leave_as_the_last_configuration_says():
    world = settled_world(3)
    agent: Any = world.agents[0]
    given: list[float] = []
    agent.optimisers.leaving.begin = lambda within_s, *rest: given.append(within_s)

    agent.reload(msgspec.structs.replace(agent.config, leaving_s=0.5))
    agent.leave(lambda: None)

    assert given == [0.5]


def test_level_of_the_log_is_that_of_the_last_configuration_in_every_part(world: World, monkeypatch: pytest.MonkeyPatch):
    said = io.StringIO()
    agent: Any = world.agents[0]
    former = logs.structlog.get_config()
    monkeypatch.setattr(logs.sys, "stderr", said)
    try:
        logs.set_up(logs.LogConfig(level="error", format="json"))
        for log in (agent.monitoring.log, agent.optimisers.leaving._log, agent.access.keys._log, agent.queries.homes._log):
            log.warning("too.low")
        logs.set_up(logs.LogConfig(level="warning", format="json"))
        for log in (agent.monitoring.log, agent.optimisers.leaving._log, agent.access.keys._log, agent.queries.homes._log):
            log.warning("high.enough")
    finally:
        logs.structlog.configure(**former)

    assert said.getvalue().count("high.enough") == 4
    assert "too.low" not in said.getvalue()
