"""Limits how far an incarnation may rise through other members' statements.

Only the member itself raises its incarnation, by one for each refutation, so that numbers stay small. But any holder of the cluster key
can claim any number for any member, and the numbers end at INCARNATION_MAX: a member put there could never refute again. Therefore

    up to TOLD_MAX              any number is believed: a member that lost its state climbs above what others remember
    beyond, on anybody's word   STEP more than what is known: a refutation, and a few that were missed
    beyond, shown by itself     SHOWN_STEP more: its own table, from the connection that we dialled to it
    our own, beyond             as told where that is STEP away; else SHOWN_STEP further, once in CLIMB_PAUSE_S

A forger who sends 100,000 statements a second for a year moves a member by 5 x 10^13, of 9 x 10^15. At every moment the member outbids it.
"""

INCARNATION_MAX = 2**53
"""Largest number on the wire: larger ones are not exact in every language that may read them."""
TOLD_MAX = 2**40
STEP = 16
SHOWN_STEP = 2**30
CLIMB_PAUSE_S = 10.0
START_MAX = TOLD_MAX + SHOWN_STEP
"""Highest incarnation to start with. Agents that know a low one must be able to believe it."""


def is_believable(told: int, known: int, *, shown: bool = False) -> bool:
    """Tells whether a member with incarnation `known` may have the incarnation `told`."""
    if told <= TOLD_MAX or told <= known + STEP:
        return told < INCARNATION_MAX
    return shown and told <= max(known, TOLD_MAX) + SHOWN_STEP and told < INCARNATION_MAX


class OwnIncarnation:
    """Limits how far our own incarnation may rise."""

    def __init__(self) -> None:
        self._climbed_at_s = float("-inf")

    def above(self, told: int, own: int, now: float) -> int | None:
        """Returns the incarnation that refutes a statement about us with `told` (at least `own`); None if `told` is not believable and
        we may not climb yet."""
        if is_believable(told, own):
            return told + 1 if told + 1 < INCARNATION_MAX else None
        if now - self._climbed_at_s < CLIMB_PAUSE_S:
            return None
        self._climbed_at_s = now
        fresh = min(told + 1, max(own, TOLD_MAX) + SHOWN_STEP, INCARNATION_MAX - 1)
        return fresh if fresh > own else None


def usable_start(incarnation: int) -> int:
    """Returns the saved incarnation to start with, or 0 if nobody would believe it."""
    return incarnation if 0 <= incarnation <= START_MAX else 0
