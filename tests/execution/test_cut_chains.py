"""Where a chain of operators is cut between two threads, when its operators do not all take a batch each time."""

from types import SimpleNamespace
from typing import Any

from sbon.execution.chains import first_stages
from sbon.execution.figures import Figures


def chain(*operators: tuple[int, float]) -> list[Any]:
    """Returns the stages of a chain, by the batches that each has lately taken and their cost in milliseconds."""
    stages = []
    for batches, ms in operators:
        figures = Figures()
        for _ in range(batches):
            figures.step(0, 100, 100, round(ms * 1e6), ms / 1e3)
        stages.append(SimpleNamespace(instance=SimpleNamespace(source=None, figures=figures)))
    return stages


def sampled(stages: list[Any], *batches: int) -> None:
    """Takes two samples, and then so many batches of each stage."""
    for stage, more in zip(stages, batches, strict=True):
        figures = stage.instance.figures
        figures.sample(1.0)
        figures.sample(2.0)
        for _ in range(more):
            figures.step(0, 100, 100, round(figures.step_cost.per_batch_s * 1e9), figures.step_cost.per_batch_s)


def test_a_chain_is_cut_where_the_longer_part_is_shortest() -> None:
    assert first_stages(chain((200, 5.0), (200, 3.8), (200, 0.1), (200, 15.0))) == 3


def test_a_sink_that_takes_few_large_batches_counts_with_their_share() -> None:
    """Cut before the sink, the filter and the window would share a core that is not enough for both."""
    assert first_stages(chain((200, 5.0), (200, 3.8), (2, 0.1), (2, 15.0))) == 1


def test_only_recent_batches_count() -> None:
    stages = chain((200, 5.0), (200, 4.0), (200, 20.0))
    assert first_stages(stages) == 2
    sampled(stages, 100, 100, 1)
    assert first_stages(stages) == 1


def test_before_its_first_batch_a_chain_is_whole() -> None:
    assert first_stages(chain((0, 0.0), (0, 0.0))) == 2
