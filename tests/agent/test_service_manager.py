"""Values taken from the environment that a service manager gives, and values that are not believed."""

import os

import pytest

from sbon.errors import ConfigError
from sbon_agent.config import AgentConfig
from sbon_agent.daemon import resolved
from sbon_agent.service_manager import ServiceManager


class Loop:
    """Records the pauses of timers."""

    def __init__(self):
        self.pauses = []

    def call_later(self, pause_s, call):
        self.pauses.append(pause_s)


def pauses_of(tmp_path, **environment) -> list[float]:
    loop = Loop()
    environment = {"NOTIFY_SOCKET": str(tmp_path / "nobody-listens"), **environment}
    manager = ServiceManager(environment, loop)
    manager.ready("one line\nno other")
    manager.close()
    manager.ready("nothing is sent any more")
    assert environment == {}, "child processes would speak for the agent"
    return loop.pauses


def test_the_watchdog_is_fed_twice_in_its_time_even_if_a_message_does_not_arrive(tmp_path):
    assert pauses_of(tmp_path, WATCHDOG_USEC="10000000") == [5.0]
    assert pauses_of(tmp_path, WATCHDOG_USEC="10000000", WATCHDOG_PID=str(os.getpid())) == [5.0]


@pytest.mark.parametrize(
    "environment",
    [{}, {"WATCHDOG_USEC": "soon"}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "10", "WATCHDOG_PID": "1"}, {"NOTIFY_SOCKET": "vsock:2:1"}],
)
def test_a_watchdog_that_is_not_ours_is_not_fed(tmp_path, environment):
    given = {"WATCHDOG_USEC": "10"} if "NOTIFY_SOCKET" in environment else {}
    assert pauses_of(tmp_path, **given, **environment) == []


def test_initial_keys_need_a_place_to_go():
    with pytest.raises(ConfigError, match="initial_key_file is given without key_file"):
        resolved(AgentConfig(initial_key_file="first.key"))
