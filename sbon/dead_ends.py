"""When an operator gives an output up: its consumer, or all that the consumer feeds, is gone.

A *way* is one output of an operator. It is obstructed where

- its consumer's host has failed or left, as membership says; for good after `patience_s`, since a partition looks the same;
- its consumer's host answers, and has said often enough that it does not run the consumer; for good;
- its consumer's host says that all ways of the consumer are obstructed: the consumer is a *dead end*. It may be, for good or not.

An operator that has other ways as well gives up those that are obstructed for good, so that the loss of one consumer does not stop the
others. An operator that has no other way keeps what it has, comes to rest, and is itself a dead end. Its host tells the hosts of what
feeds it, again with every sample while it is so, and what they were told expires: so a word that is lost, or a host that dies, needs no
message to take it back. In this way the news reaches the operator that has another way, however many operators lie between.
"""

from collections.abc import Sequence

import msgspec

from sbon.types import LinkId, NodeId, OperatorId
from sbon.wire.limits import Text

TOLD_S = 10.0
"""What a consumer's host has told of a dead end counts for so long; it repeats it with every sample."""
REASON_LENGTH_MAX = 400
"""A reason grows with every operator that it passes."""


class Absence(msgspec.Struct, frozen=True):
    """A host that is gone, as membership says."""

    word: str
    """"failed" or "left"."""
    seconds: float


class Obstruction(msgspec.Struct, frozen=True, array_like=True):
    """Nothing that goes this way arrives."""

    reason: Text
    for_good: bool


class Way(msgspec.Struct, frozen=True):
    """One output."""

    link: LinkId
    target: OperatorId
    node: NodeId
    absence: Absence | None = None
    """Of the node."""
    is_unknown_there: bool = False
    """The node has said often enough that it does not run the target."""
    told: Obstruction | None = None
    """What the node has said lately of the target's own ways."""
    has_disk: bool = False
    """The disk takes what the consumer does not: nobody waits, and an absent host may come back to it."""
    may_be_last: bool = False
    """Even an operator's only way of this kind is given up: what feeds or follows a multicast is fed anew from elsewhere."""


class Judgement(msgspec.Struct, frozen=True):
    """What follows for one operator."""

    obstructed: dict[LinkId, str]
    """Why nothing arrives on these outputs."""
    given_up: dict[LinkId, str]
    """Those of them to be given up now."""
    dead_end: Obstruction | None
    """Of all that is left, where nothing else is: to be told to whoever feeds the operator."""


def obstruction(way: Way, patience_s: float) -> Obstruction | None:
    """Returns why nothing arrives on a way; None where something may."""
    where = f"{way.target} on {way.node}"
    if way.absence is not None:
        reason = f"{where}, which {way.absence.word} {way.absence.seconds:.0f} s ago"
        return Obstruction(reason, way.absence.word == "left" or way.absence.seconds > patience_s)
    if way.is_unknown_there:
        return Obstruction(f"{where}, which does not run it (any more)", True)
    if way.told is not None:
        return Obstruction(f"{where}, which leads only to {way.told.reason}"[:REASON_LENGTH_MAX], way.told.for_good)
    return None


def judge(ways: Sequence[Way], patience_s: float) -> Judgement:
    """Decides which outputs of an operator are given up, and whether it is a dead end.

    Examples
    --------
    >>> gone, there = Way("s>a:0", "a", "nyc", Absence("failed", 130.0)), Way("s>b:0", "b", "fra")
    >>> judge([gone, there], 120.0).given_up
    {'s>a:0': 'a on nyc, which failed 130 s ago'}
    >>> judge([gone], 120.0).dead_end
    Obstruction(reason='a on nyc, which failed 130 s ago', for_good=True)
    """
    found = {way.link: problem for way in ways if (problem := obstruction(way, patience_s)) is not None}
    given_up: dict[LinkId, str] = {}
    for way in ways:
        problem = found.get(way.link)
        has_others = len(ways) - len(given_up) > 1
        keeps = way.has_disk and not way.is_unknown_there
        if problem is not None and problem.for_good and not keeps and (has_others or way.may_be_last):
            given_up[way.link] = problem.reason
    left = [way for way in ways if way.link not in given_up]
    blocking = [found[way.link] for way in left if way.link in found and not (way.has_disk and not way.is_unknown_there)]
    dead_end = None
    if left and len(blocking) == len(left):
        reason = " and ".join(problem.reason for problem in blocking)[:REASON_LENGTH_MAX]
        dead_end = Obstruction(reason, all(problem.for_good for problem in blocking))
    return Judgement({link: problem.reason for link, problem in found.items()}, given_up, dead_end)
