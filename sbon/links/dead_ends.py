"""Decides when an operator gives up an output, because its consumer, or everything that the consumer feeds, is gone.

A *way* is one output of an operator. It is obstructed if

- membership says that the consumer's host has failed or left; for good if it left, or after `patience_s`, since a partition looks like a
  failure;
- the consumer's host answers, and has said often enough that it does not run the consumer; for good;
- the consumer's host says that all ways of the consumer are obstructed: the consumer is a *dead end*, for good or not.

An operator with other ways gives up those that are obstructed for good, so that the loss of one consumer does not stop the others. An
operator without another way keeps its batches, stops, and is itself a dead end. Its host reports this to the hosts of its inputs with every
sample. A report expires, so nobody has to revoke it if a message is lost or a host dies. The reports travel upstream to the operator that
has another way, however many operators lie between.
"""

from collections.abc import Sequence

import msgspec

from sbon.message_limits import Text
from sbon.types import LinkId, NodeId, OperatorId

MISSING_MAX = 6
"""A link counts as gone for good after this many successive answers that the other end does not know it: about half a minute."""
TOLD_S = 10.0
"""Seconds for which the report of a dead end is valid; the consumer's host repeats it with every sample."""
REASON_LENGTH_MAX = 400
"""Most characters of a reason, which grows with every operator that it passes."""


class Absence(msgspec.Struct, frozen=True):
    """The absence of a host, according to membership."""

    word: str
    """Either "failed" or "left"."""
    seconds: float


class Obstruction(msgspec.Struct, frozen=True, array_like=True):
    """Reason why nothing arrives on a way."""

    reason: Text
    for_good: bool


class Way(msgspec.Struct, frozen=True):
    """One output of an operator."""

    link: LinkId
    target: OperatorId
    node: NodeId
    absence: Absence | None = None
    """Absence of the consumer's node, if it is gone."""
    is_unknown_there: bool = False
    """The node has reported often enough that it does not run the target."""
    told: Obstruction | None = None
    """The node's recent report on the target's own ways."""
    has_disk: bool = False
    """Batches that the consumer does not take are stored on disk, so nobody waits, and an absent host may come back."""
    may_be_last: bool = False
    """This output is given up even if it is the operator's only one: multicasts and the operators before and behind them are reconnected
    elsewhere."""


class Judgement(msgspec.Struct, frozen=True):
    """The decision for one operator."""

    obstructed: dict[LinkId, str]
    """Reason why nothing arrives, by obstructed output."""
    given_up: dict[LinkId, str]
    """Reason, by output that is to be given up now."""
    dead_end: Obstruction | None
    """The obstruction of all remaining outputs, if all are obstructed: it is reported to the operator's inputs."""


def obstruction(way: Way, patience_s: float) -> Obstruction | None:
    """Returns why nothing arrives on a way; None if something may arrive."""
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
