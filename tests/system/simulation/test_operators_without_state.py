"""Hosts of stateless operators crash while the operators' output is in transit: no row is lost or repeated."""

from pathlib import Path

import pytest

from sbon.execution.instance import Instance
from tests.examples import seeds
from tests.system.simulation.test_recovery import MIDDLE, OTHER, SINK, SOURCE, Story

COUNTS = (
    "WITH w AS (SELECT window_start, window_end, v % 5 AS k, COUNT(*) AS n, SUM(v) AS s FROM TUMBLE(r, ts, INTERVAL '100 milliseconds') "
    "GROUP BY window_start, window_end, v % 5) "
)
FILTER = f"{COUNTS} SELECT window_start, k, s * 2 AS d FROM w WHERE s % 7 <> 0"
DEALT = (
    f"{COUNTS} SELECT window_start, k, COUNT(*) AS m, SUM(s) AS t FROM TUMBLE(w, window_end, INTERVAL '1 second') WHERE s % 7 <> 0 "
    "GROUP BY window_start, k"
)


class InstancesStory(Story):
    """The story of a query with three instances of its window, behind an exchange and a filter."""

    OPTIONS = ", instances = 3"


def kinds(story: Story, *tags: str) -> list[str]:
    """Returns the operators of these kinds, upstream first."""
    return [one for one, spec in story.record.specs.items() if spec.params.__struct_config__.tag in tags]


def bring(story: Story, number: int, *operators: str) -> None:
    """Moves operators to a host."""
    there = story.world.nodes[number]
    for operator in operators:
        if story.record.nodes[operator] != there:
            assert story.world.ask(story.record.nodes[operator], "migrate", operator=operator, node=there)["committed"]
            story.world.run(1.0)  # its neighbours hear of it


def running(story: Story, number: int, operator: str) -> Instance:
    """Returns the running operator on a host."""
    agent = story.world.agents[number]
    assert agent is not None
    found: Instance = agent.execution.operators.instances[operator]  # type: ignore[union-attr]
    return found


def unsafe(story: Story, number: int, operator: str) -> int:
    """Returns the number of an operator's batches that are processed but not safe."""
    return sum(len(incoming.unsafe) for incoming in running(story, number, operator).inputs.values())


def settle(story: Story, *operators: str) -> None:
    """Waits until the batches that operators took on their feeders' host, before they moved, are acknowledged downstream."""

    def is_known(operator: str) -> bool:
        ends = [output for agent in story.world.agents if agent is not None for output in agent.execution.flow.ends.giving()]  # type: ignore[attr-defined]
        return all(output.made_by_target is not None for output in ends if output.link.target == operator)

    story.world.run_until(lambda: all(map(is_known, operators)), 5.0, "their feeders know what they have made")


def crash_with_rows_under_way(story: Story, number: int, operator: str, *, giving: int | None = None) -> None:
    """Cuts the last operator off from the sink's host, lets an operator continue, and kills the operator's host.

    Parameters
    ----------
    giving : host of the last stateless operator, if it is another host
    """
    before = story.record.health.healing.account.recoveries
    story.world.world.network.cut(number if giving is None else giving, SINK)
    story.world.run_until(lambda: unsafe(story, number, operator) > 3, 5.0, "it has made rows that have not arrived")
    story.world.kill(number, silent=True)
    story.world.heal()
    story.world.run_until(lambda: story.record.health.healing.account.recoveries > before, 20.0, "the query is recovered")


def chain_of(story: Story) -> list[str]:
    """Returns the first movable filter, and the exchange after it if there is one."""
    free = [one for one in kinds(story, "map", "exchange") if story.record.specs[one].pinned is None]
    return free[:2] if len(free) > 1 else free


def lost(story: Story) -> tuple[int, bool, list[str]]:
    """Returns the rows that the home counts as lost, whether the count is exact, and the states that began empty."""
    account = story.record.health.healing.account
    states = [one for done in account.history for one, go_on in done.go_on.items() if go_on.state_until_us is not None]
    return account.rows, account.is_exact, states


@pytest.fixture(scope="module")
def filtered(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """Returns the answers of the filter without a crash."""
    return Story(tmp_path_factory.mktemp("filtered"), FILTER).answers()


@pytest.fixture(scope="module")
def dealt(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """Returns the answers of the windows after an exchange, of one instance without a crash."""
    return Story(tmp_path_factory.mktemp("dealt"), DEALT).answers()


def test_a_crash_of_a_filters_host_loses_nothing(tmp_path: Path, filtered: list[list[str]]) -> None:
    story = Story(tmp_path, FILTER)
    [operator] = chain_of(story)
    for number in (MIDDLE, OTHER):
        bring(story, number, operator)
        settle(story, operator)
        crash_with_rows_under_way(story, number, operator)

    assert story.answers() == filtered
    assert lost(story) == (0, True, [])


@pytest.mark.parametrize("together", seeds([True], [False]))
def test_a_filter_and_an_exchange_behind_it_lose_nothing(tmp_path: Path, dealt: list[list[str]], together: bool) -> None:
    story = InstancesStory(tmp_path, DEALT)
    first, exchange = chain_of(story)
    bring(story, SINK, *kinds(story, "window")[3:])
    bring(story, MIDDLE, first)
    bring(story, MIDDLE if together else OTHER, exchange)
    settle(story, first)
    crash_with_rows_under_way(story, MIDDLE, first, giving=None if together else OTHER)
    if not together:
        crash_with_rows_under_way(story, OTHER, exchange)

    assert story.answers() == dealt
    assert lost(story) == (0, True, [])


def test_what_a_filter_has_passed_on_is_kept_upstream_until_it_has_arrived(tmp_path: Path, filtered: list[list[str]]) -> None:
    story = Story(tmp_path, FILTER)
    [operator] = chain_of(story)
    bring(story, MIDDLE, operator)
    [window] = kinds(story, "window")
    [output] = running(story, SOURCE, window).outputs.values()
    story.world.world.network.cut(MIDDLE, SINK)
    story.world.run_until(lambda: unsafe(story, MIDDLE, operator) > 3, 5.0, "it has made rows that have not arrived")
    before = output.sender.forgotten
    assert before < output.sender.offered - output.sender.held, "more batches must be processed than are safe"
    story.world.heal()
    story.world.run_until(lambda: output.sender.forgotten > before, 5.0, "what has arrived is forgotten")

    assert story.answers() == filtered
