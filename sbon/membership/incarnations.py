"""Limits how far an incarnation may rise through other members' statements.

Only the member itself raises its incarnation, by one for each refutation, so numbers stay small. But any holder of the cluster key can
claim any number for any member, and a member at INCARNATION_MAX could never refute again. Therefore

    up to TOLD_MAX                  any number is believed: a member that lost its state climbs above the number that others remember
    beyond, from anybody            at most STEP above the known number: a refutation, and a few that were missed
    beyond, from the member itself  at most SHOWN_STEP above it: in the member's own table, on a connection that we dialled
    our own, beyond                 one above the number told if that is at most STEP away; else SHOWN_STEP further, once in CLIMB_PAUSE_S

A forger who sends 100,000 statements a second for a year raises a member by 5 x 10^13, of 9 x 10^15. At any time the member can outbid it.
"""

INCARNATION_MAX = 2**53
"""Largest number on the wire. Some languages cannot represent larger integers exactly."""
TOLD_MAX = 2**40
STEP = 16
SHOWN_STEP = 2**30
CLIMB_PAUSE_S = 10.0
START_MAX = TOLD_MAX + SHOWN_STEP
"""Highest incarnation to start with, so that agents that know a lower one can believe it."""


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
        """Returns the incarnation that refutes a statement about us with the incarnation `told`, which is at least `own`.

        Returns None if there is no higher incarnation, or if `told` is not believable and we may not climb yet.
        """
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
