"""Pauses of a source between two batches, by their cost and the free share of the machine, and the size of batches."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from sbon.batching import Cost
from sbon.connectors.interface import Polled
from sbon.engine.leads import ROWS_AHEAD
from sbon.engine.polling import MANY_ROWS, SHARE_LEAST, Polling
from sbon.execution.figures import Figures
from sbon.execution.life import State
from sbon.execution.polls import Polls
from sbon.execution.settings import EngineConfig
from sbon.ports import ProcessorUse


class Host:
    """A clock that stands still and notes the instants of the calls asked for."""

    def __init__(self, use: float) -> None:
        self.use, self.calls = use, []

    def now(self) -> float:
        return 100.0

    def processors(self) -> ProcessorUse:
        return ProcessorUse(self.use, self.use, 0.0)

    def call_at(self, when, callback):
        self.calls.append(when)
        return SimpleNamespace(cancel=lambda: None)

    def call_soon(self, callback):
        """Does nothing: the next poll comes at once."""


def source(cost_s: float) -> Any:
    instance: Any = type("Instance", (), {"__hash__": object.__hash__})()
    vars(instance).update(state=State.RUNNING, timer=None, polls=Polls[Any](), source=None, watermark_out_us=0, figures=Figures())
    instance.spec = SimpleNamespace(params=None)
    instance.polls.batch_cost.took(1, cost_s)
    instance.polls.polled_at = 100.0
    return instance


def polled(rows: int) -> Polled:
    return Polled(pl.DataFrame({"x": range(rows)}) if rows else None, 0, 100.0001)


def pause_s(use: float, cost_s: float, config: EngineConfig, stretch: Sequence[int] = (0,)) -> float:
    """Returns the pause after polls that follow each other without pauses; `stretch` has the rows of each poll."""
    host, instance = Host(use), source(cost_s)
    polling = Polling(host, config, lambda instance: None)
    for left, rows in zip(reversed(range(len(stretch))), stretch, strict=True):
        instance.polls.has_more = left > 0
        polling.again(instance, polled(rows), 100.0)
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


def test_behind_many_rows_a_source_pauses_no_longer_than_it_must():
    """This holds on a full machine, too: a peer that posts large bodies waits for the answer to each."""
    config = EngineConfig()
    assert pause_s(1.0, 0.01, config, [MANY_ROWS - 1]) == pytest.approx(config.batch_interval_s)
    assert pause_s(1.0, 0.01, config, [MANY_ROWS - 1, 1]) == pytest.approx(config.batch_interval_min_s)
    assert pause_s(1.0, 0.01, EngineConfig(batch_interval_min_s=0.2), [MANY_ROWS]) == pytest.approx(config.batch_interval_s)


def test_after_the_next_pause_few_rows_are_gathered_again():
    config, host = EngineConfig(), Host(1.0)
    polling, instance = Polling(host, config, lambda instance: None), source(0.01)
    for rows in (MANY_ROWS, 10):
        polling.again(instance, polled(rows), 100.0)
    assert [when - 100.0 for when in host.calls] == pytest.approx([config.batch_interval_min_s, config.batch_interval_s])


@pytest.mark.parametrize(
    ("making_us", "behind_us", "alone", "ahead"),
    [(4, 1, 1000, 2000), (12, 1, 385, 1667), (4, 4, 625, 1250), (90, 1, 55, 222)],
    ids=["twice the most", "what is made in four quanta", "what the operators take in a quantum", "less where rows are dear"],
)
def test_a_batch_made_ahead_is_as_large_as_the_operators_behind_it_take(making_us: float, behind_us: float, alone: int, ahead: int) -> None:
    config = EngineConfig(quantum_s=0.005, quantum_rows=1000)
    instance: Any = SimpleNamespace(source=SimpleNamespace(batch_rows=0), cost=Cost(), figures=Figures(), polls=Polls[Any]())
    costs = ((instance.figures.step_cost, making_us), (instance.polls.behind_cost, behind_us), (instance.cost, making_us + behind_us))
    for cost, row_us in costs:
        for rows in (500, 1000, 500, 1000):
            cost.took(rows, row_us * rows / 1e6)
    polling: Any = Polling(Host(0.1), config, lambda instance: None)  # type: ignore[arg-type]

    polling.allow(instance, 100.0)
    assert instance.source.batch_rows == alone
    polling.allow(instance, 100.0, ahead=True)
    assert instance.source.batch_rows == ahead


def test_a_source_that_is_ahead_of_one_it_is_joined_with_is_asked_for_few_rows() -> None:
    behind, ahead = source(0.001), source(0.001)
    ahead.watermark_out_us, ahead.source = 5_000_000, SimpleNamespace(batch_rows=0)
    ahead.cost = Cost()
    for rows in (100_000, 200_000):
        ahead.cost.took(rows, rows * 1e-9)
    polling: Any = Polling(Host(0.1), EngineConfig(), lambda instance: None, lambda source: ["join"])  # type: ignore[arg-type,list-item]
    polling.allow(ahead, 100.0)
    assert ahead.source.batch_rows > ROWS_AHEAD

    behind.polls.has_more = True
    polling.again(behind, polled(1), 100.0)
    polling.allow(ahead, 100.0)

    assert ahead.source.batch_rows == ROWS_AHEAD
