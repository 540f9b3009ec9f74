"""Tells how much longer the work of running operators would take on another node, for moves that must not break the bound of a query.

A batch takes its own time at the speed of the node, and waits behind all other work there. Figures that are unknown, or known by a rule of
thumb only, count as no difference, so that a rule alone never prevents a move.
"""

import math

import msgspec

from sbon.cost.figure import Source
from sbon.cost.resources import NodeResources

LATEST = 10
"""Seconds over which the use of a node counts."""


class Work(msgspec.Struct, frozen=True):
    """The work of an operator, or of several that move together, on the node where they are."""

    cores: float
    """Processor time a second."""
    batch_s: float
    """Processor time of a batch."""


def longer_ms(work: Work, here: NodeResources, there: NodeResources) -> float:
    """Returns how many ms longer a batch would take there than here; infinite if the other node would be overloaded.

    Examples
    --------
    >>> from sbon.cost.figure import around
    >>> from sbon.cost.resources import UseSeries
    >>> def node(cores, speed, used):
    ...     return NodeResources(node="n", cores=cores, speed=around(speed, 0.0, Source.MEASURED), others=UseSeries((used,)))
    >>> work, here = Work(cores=0.5, batch_s=0.010), node(2.0, 1.0, 0.5)
    >>> [round(longer_ms(work, here, there), 1) for there in (node(2.0, 2.0, 0.0), node(1.0, 1.0, 0.0), node(1.0, 1.0, 0.5))]
    [-5.8, 9.1, inf]
    """
    if here.others is None or there.others is None:
        return 0.0
    slower = 1.0 if Source.RULE in (here.speed.source, there.speed.source) else here.speed.value / there.speed.value
    now_s = _batch_s(work, here, _used(here) - work.cores)
    then_s = _batch_s(Work(work.cores * slower, work.batch_s * slower), there, _used(there))
    return 0.0 if math.isinf(now_s) else (then_s - now_s) * 1e3


def _used(node: NodeResources) -> float:
    """Returns the cores that others and running operators have used in the last seconds."""
    found = 0.0
    for series in (node.others, node.operators):
        latest = series.seconds[-LATEST:] if series is not None else ()
        found += sum(latest) / len(latest) if latest else 0.0
    return found


def _batch_s(work: Work, node: NodeResources, used: float) -> float:
    """Returns the time in s that a batch waits and takes beside `used` cores of other work; infinite if all cores, or the one core that the
    work can use, are full.

    Source
    ------
    Sakasegawa, An approximation formula L_q = a rho^b / (1 - rho) (1977): the wait before several servers.
    """
    busy = (max(0.0, used) + work.cores) / node.cores
    if busy >= 1 or work.cores >= min(1.0, node.cores):
        return math.inf
    waits = math.pow(busy, math.sqrt(2 * (node.cores + 1)) - 1) / (node.cores * (1 - busy))
    return work.batch_s * (1 + waits)
