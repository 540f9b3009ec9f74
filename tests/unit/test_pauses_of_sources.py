"""How long a source rests between two batches: by what they cost, and by how much of the machine is free."""

from types import SimpleNamespace

import pytest

from sbon.batching import Cost
from sbon.execution.life import State
from sbon_agent.connectors.base import Polled
from sbon_agent.engine.settings import EngineConfig
from sbon_agent.engine.sources import SHARE_LEAST, Polling


class Host:
    """A clock that stands still, and notes of what should be called when."""

    def __init__(self, use: float) -> None:
        self.use, self.calls = use, []

    def now(self) -> float:
        return 100.0

    def use_fraction(self) -> float:
        return self.use

    def call_at(self, when, callback):
        self.calls.append(when)
        return SimpleNamespace(cancel=lambda: None)


def pause_s(use: float, cost_s: float, config: EngineConfig) -> float:
    host = Host(use)
    polling = Polling(host, config, lambda instance: None)
    cost = Cost()
    cost.took(1, cost_s)
    instance = type("Instance", (), {"__hash__": object.__hash__})()
    vars(instance).update(
        state=State.RUNNING,
        timer=None,
        due=False,
        has_more=False,
        batch_cost=cost,
        unanswered=[],
        answered_s=0.0,
        polled_at=100.0,
        source=None,
    )
    polling.again(instance, Polled(None, 0, 100.0001), 100.0)
    return host.calls[-1] - 100.0


def test_the_fuller_the_machine_the_longer_the_pause():
    config = EngineConfig()
    pauses = [pause_s(use, 0.0004, config) for use in (0.0, 0.5, 0.8, 0.9, 1.0)]
    assert pauses == sorted(pauses)
    assert pauses[0] == pytest.approx(max(config.batch_interval_min_s, 0.0004 / config.batch_share))


def test_on_a_full_machine_sources_keep_a_small_share():
    config = EngineConfig()
    assert pause_s(1.0, 0.0004, config) == pytest.approx(0.0004 / SHARE_LEAST)
    assert pause_s(1.0, 0.01, config) == pytest.approx(config.batch_interval_s)


def test_nobody_takes_more_than_was_granted():
    config = EngineConfig(batch_share=0.01)
    assert pause_s(1.0, 0.0004, config) == pytest.approx(0.0004 / 0.01)
