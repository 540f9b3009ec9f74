"""Chooses the number of instances of a pattern whose windows are dealt, and the length of their turns (`instances = 'auto'`).

Of the numbers and turns that carry the rate with room to spare within the bound (`sbon.dealing.steady`), those with the fewest copies of a
row are chosen. See docs/dealing.md.
"""

from collections.abc import Sequence
from typing import NamedTuple

from sbon.cost.placed_query import PlacedQuery
from sbon.cost.resources import NS_PER_S
from sbon.cost.stages import Job
from sbon.dealing.steady import Dealt, Load, keeps, to_try
from sbon.query.instances import even_turn_us, window_us
from sbon.query.limits import SPAN_US_MAX
from sbon.query.params.matched import MatchParams
from sbon.query.plan import OperatorSpec, Sizing
from sbon.search.resources import USE_MAX

RECEIVED_NS = 100.0
"""Most that a row is assumed to cost at an instance apart from its windows, because the two are not measured apart."""
OUTLASTS = 0.1
"""Ratio of bound to window from which long turns are tried. Below, an instance cannot fall behind by much of a window."""
_HALVINGS = 12


class InstanceRoom(NamedTuple):
    """Room for instances on some nodes."""

    number: int
    hosts: int
    speed: float
    """Reference ns per ns of a core."""
    propagation_s: float


class ByWindow(NamedTuple):
    """The number of instances of a pattern, and the length of their turns."""

    number: int
    turn_us: int
    sizing: Sizing
    problem: str
    """One line on why no number is enough; empty if this one is."""


class _Option(NamedTuple):
    dealt: Dealt
    place: InstanceRoom


def is_by_window(query: PlacedQuery, sizing: Sizing) -> bool:
    """Tells whether the instances get windows, not keys."""
    return window_us(_spec_of(query, sizing)) is not None


def sized_by_window(
    query: PlacedQuery, sizing: Sizing, job: Job, rows_per_s: float, bound_s: float | None, places: Sequence[InstanceRoom], room: float
) -> ByWindow:
    """Returns the number of instances and the turns with the fewest copies of a row.

    Parameters
    ----------
    sizing : with `turn_us` above 0, the turn is given
    job : the query up to the pattern, as its instances are now
    rows_per_s : rows that all its instances get together
    bound_s : what the network leaves of `max_latency`; None: there is no bound
    places : numbers of instances that there is room for
    room : multiple of the rate that must be carried
    """
    params = _spec_of(query, sizing).params
    assert isinstance(params, MatchParams)
    assert params.within_us is not None
    parts = [link.part for link in query.plan.links if link.target == sizing.operators[0] and link.part is not None]
    now = parts[0].copies if parts else 1.0
    rows, within_s = rows_per_s / now, params.within_us / 1e6
    received_ns = min(RECEIVED_NS, job.update.per_row_ns)
    windows_ns = (job.update.per_row_ns - received_ns) * now
    row_ns = received_ns + job.update.per_batch_ns / (rows * query.pace_s)

    def is_carried(option: _Option, factor: float) -> bool:
        unit = NS_PER_S * option.place.speed * USE_MAX
        load = Load(rows, row_ns / unit, windows_ns / unit, within_s)
        return keeps(load.times(factor), option.dealt, _left_s(bound_s, query.pace_s, option.place))

    options = sorted(
        (_Option(dealt, place) for place in places for dealt in _turns(params, sizing.turn_us, place.number, bound_s)),
        key=lambda one: (one.dealt.copies(within_s), one.place.number, one.place.hosts, one.dealt.turn_s),
    )
    found = next((one for factor in (room, 1.0) for one in options if is_carried(one, factor)), None)
    largest = max(options, key=lambda one: (one.place.number * one.place.speed, -one.dealt.turn_s))
    best = largest if found is None else found
    most = max(place.number for place in places)
    copies = best.dealt.copies(within_s)
    cores = rows * (row_ns * copies + windows_ns) / NS_PER_S / max(place.speed for place in places)
    told = Sizing(sizing.operators, rows * copies, cores, most)
    turn_us = 0 if best.place.number == 1 else max(1, round(best.dealt.turn_s * 1e6))
    if found is not None:
        return ByWindow(best.place.number, turn_us, told, "")
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if is_carried(largest, middle) else (low, middle)
    within = "" if query.plan.max_latency_ms is None else f" within max_latency = {query.plan.max_latency_ms:g} ms"
    instances = "1 instance" if most == 1 else f"up to {most} instances"
    problem = (
        f"the match gets {rows:,.0f} rows/s, {cores:.1f} cores with {copies:.2f} copies of a row; with {instances}, for which there are "
        f"cores, it carries {low:.0%} of that{within}: use fewer rows, a shorter WITHIN, or more or faster nodes"
        + ("" if not within else ", or allow a later answer")
    )
    return ByWindow(best.place.number, turn_us, told, problem)


def _turns(params: MatchParams, given_us: int, instances: int, bound_s: float | None) -> list[Dealt]:
    """Returns the turns to try with so many instances."""
    assert params.within_us is not None
    if given_us and instances > 1:
        return [Dealt(instances, given_us / 1e6)]
    within_s = params.within_us / 1e6
    outlasts = bound_s is not None and bound_s >= OUTLASTS * within_s
    tried = to_try(instances, within_s, even_turn_us(params, instances) / 1e6, is_bounded=outlasts)
    return [one for one in tried if one.turn_s * 1e6 <= SPAN_US_MAX]


def _left_s(bound_s: float | None, pace_s: float, place: InstanceRoom) -> float | None:
    """Returns what is left of the bound for an instance: a row waits up to a pace for its batch, and for the batch's other rows."""
    return None if bound_s is None or bound_s <= 0 else bound_s - 2 * pace_s - 2 * place.propagation_s


def _spec_of(query: PlacedQuery, sizing: Sizing) -> OperatorSpec:
    return next(spec for spec in query.plan.operators if spec.id == sizing.operators[0])
