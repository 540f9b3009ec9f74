"""An owner that has restarted runs its queries again only with the promises of a majority. Tested without a virtual world."""

import pytest

from sbon.errors import LinkError
from sbon.supervision.claiming import Claiming, Outcome
from sbon.wire.ownership import Holder, HolderSays

QUERY = "ams.0000001.01"
AMS, FRA, NYC, OSL = (Holder(name, number) for number, name in enumerate(("ams", "fra", "nyc", "osl")))
TRIO = (AMS, FRA, NYC)
YES, NO, LOST = HolderSays(granted=True, epoch=1), HolderSays(granted=False, epoch=0), HolderSays(granted=False, epoch=0, is_lost=True)
SILENCE = LinkError("no answer")


def claim(*sets: tuple[Holder, ...]) -> Claiming:
    return Claiming(QUERY, sets or (TRIO,), "ams", 1)


@pytest.mark.parametrize(
    ("fra", "nyc", "outcome"),
    [
        (YES, SILENCE, Outcome.FREE),
        (SILENCE, YES, Outcome.FREE),
        (LOST, LOST, Outcome.FREE),
        (LOST, SILENCE, Outcome.UNHEARD),
        (SILENCE, SILENCE, Outcome.UNHEARD),
        (NO, YES, Outcome.KEPT),
        (HolderSays(granted=False, epoch=2, owner=NYC), SILENCE, Outcome.ELSEWHERE),
        (HolderSays(granted=False, epoch=2, owner=AMS), SILENCE, Outcome.KEPT),
    ],
)
def test_one_promise_of_two_keepers_is_enough(fra: HolderSays | LinkError, nyc: HolderSays | LinkError, outcome: Outcome) -> None:
    one = claim()
    assert one.asked == (FRA, NYC)
    assert one.outcome is None
    one.answered(FRA, fra)
    one.answered(NYC, nyc)
    assert one.outcome is outcome


def test_a_majority_of_each_set_is_needed() -> None:
    one = claim(TRIO, (AMS, NYC, OSL))
    one.answered(FRA, YES)
    assert one.outcome is None
    one.answered(OSL, YES)
    assert one.outcome is Outcome.FREE


def test_what_is_said_later_changes_nothing() -> None:
    one = claim()
    one.answered(FRA, YES)
    assert one.outcome is Outcome.FREE
    one.answered(NYC, NO)
    assert one.outcome is Outcome.FREE
