"""The life of a multicast on one host, step by step: from the proposal to its departure, its return and its end."""

from collections.abc import Callable
from typing import Any

import pytest

from sbon.errors import LocalProtocolError
from sbon.rearranging.multicast_life import JOURNEY_S, TABLE, UNDER_WAY, MulticastLife, Stage

LATE = 10.0 + JOURNEY_S + 1.0
STEPS: dict[str, Callable[[MulticastLife], Any]] = {
    "made": lambda life: life.made("ams", "saves 40 %", 10.0),
    "set out": lambda life: life.set_out(10.0 + JOURNEY_S),
    "set out late": lambda life: life.set_out(LATE),
    "expire": lambda life: life.expire(10.0 + JOURNEY_S),
    "expire late": lambda life: life.expire(LATE),
    "stopped": MulticastLife.stopped,
    "left": MulticastLife.left,
    "compare": MulticastLife.compare,
    "direct is shorter": lambda life: life.compared(returns=True),
    "direct is longer": lambda life: life.compared(returns=False),
    "folded": MulticastLife.folded,
    "removed": MulticastLife.removed,
}
EVENTS = {
    "set_out": ("set out", "set out late"),
    "expire": ("expire", "expire late"),
    "compared": ("direct is shorter", "direct is longer"),
}
"""Steps of the events of the table that have several."""
STANDS = ("made", "expire late")
FOLLOWING: list[tuple[tuple[str, ...], Stage]] = [
    ((), Stage.PROPOSED),
    (("removed",), Stage.GONE),
    (("made",), Stage.TELLING),
    (("made", "expire"), Stage.TELLING),
    (STANDS, Stage.STANDING),
    (("made", "set out"), Stage.MOVING),
    (("made", "set out late"), Stage.STANDING),
    (("made", "removed"), Stage.GONE),
    (("made", "set out", "stopped"), Stage.WAITING),
    (("made", "set out", "left"), Stage.GONE),
    (("made", "set out", "removed"), Stage.GONE),
    (("made", "set out", "stopped", "set out"), Stage.MOVING),
    (("made", "set out", "stopped", "set out late"), Stage.STANDING),
    (("made", "set out", "stopped", "expire"), Stage.WAITING),
    (("made", "set out", "stopped", "expire late"), Stage.STANDING),
    (("made", "set out", "stopped", "removed"), Stage.GONE),
    ((*STANDS, "compare"), Stage.COMPARING),
    ((*STANDS, "folded"), Stage.GONE),
    ((*STANDS, "removed"), Stage.GONE),
    ((*STANDS, "compare", "direct is longer"), Stage.STANDING),
    ((*STANDS, "compare", "direct is shorter"), Stage.RETURNING),
    ((*STANDS, "compare", "folded"), Stage.GONE),
    ((*STANDS, "compare", "removed"), Stage.GONE),
    ((*STANDS, "compare", "direct is shorter", "stopped"), Stage.STANDING),
    ((*STANDS, "compare", "direct is shorter", "left"), Stage.GONE),
    ((*STANDS, "compare", "direct is shorter", "removed"), Stage.GONE),
]
"""Steps from a proposal, and the stage after them. The last step of each is one row of the table."""
WAYS = {stage: next(steps for steps, after in FOLLOWING if after is stage) for stage in Stage}


def brought(*steps: str) -> MulticastLife:
    life = MulticastLife()
    for step in steps:
        STEPS[step](life)
    return life


@pytest.mark.parametrize(("steps", "stage"), FOLLOWING, ids=lambda value: ", ".join(value) if isinstance(value, tuple) else "")
def test_what_follows_what(steps: tuple[str, ...], stage: Stage) -> None:
    life = brought(*steps)

    assert life.stage is stage
    assert life.is_under_way is (stage in UNDER_WAY)
    if "made" in steps:
        assert (life.there, life.reason) == ("ams", "saves 40 %")


@pytest.mark.parametrize("stage", Stage)
@pytest.mark.parametrize("event", sorted(TABLE.events))
def test_an_event_that_a_stage_does_not_take_changes_nothing(stage: Stage, event: str) -> None:
    """An event that can only be wrong raises; the others may come late. The expected transitions are those of `FOLLOWING`."""
    for step in EVENTS.get(event, (event,)):
        life = brought(*WAYS[stage])
        after = {then for steps, then in FOLLOWING if steps and steps[-1] == step and brought(*steps[:-1]).stage is stage}
        assert life.takes(event) is bool(after)
        if not after and event in ("made", "compare", "folded"):
            with pytest.raises(LocalProtocolError, match="which is no transition"):
                STEPS[step](life)
        else:
            STEPS[step](life)
        assert {life.stage} == (after or {stage})


def test_setting_out_says_whether_the_migration_is_to_begin() -> None:
    assert brought("made").set_out(10.0)
    assert not brought("made").set_out(LATE)
    assert not brought("made", "set out").set_out(10.0)


def test_one_that_has_arrived_stands() -> None:
    assert not MulticastLife(Stage.STANDING).is_under_way
