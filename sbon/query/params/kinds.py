"""All kinds of operators, and properties of a kind for hosts and planners: needs, state, how long rows are held."""

from collections.abc import Iterable
from typing import TypeAlias

import msgspec

from sbon.query.params.joined import JoinParams, LookupParams, WindowJoinParams
from sbon.query.params.matched import MatchParams
from sbon.query.params.ordered import DeduplicateParams, OverParams, TopParams
from sbon.query.params.rowwise import FunctionParams, MapParams, UnnestParams
from sbon.query.params.source import SinkParams, SourceParams
from sbon.query.params.streams import ExchangeParams, MergeParams, MulticastParams, SplitParams, UnionParams
from sbon.query.params.windowed import AssignParams, SessionParams, WindowParams

Params: TypeAlias = (
    SourceParams
    | MapParams
    | WindowParams
    | SessionParams
    | TopParams
    | OverParams
    | MatchParams
    | AssignParams
    | UnnestParams
    | DeduplicateParams
    | JoinParams
    | WindowJoinParams
    | LookupParams
    | FunctionParams
    | UnionParams
    | MulticastParams
    | ExchangeParams
    | SplitParams
    | MergeParams
    | SinkParams
)


class Needs(msgspec.Struct, frozen=True):
    """Needs of operators that a host must meet besides capacity."""

    functions: tuple[tuple[str, str], ...] = ()
    """Users' functions as (name, version), each once and sorted."""
    state: bool = False
    """Memory for state kept between batches."""


NO_NEEDS = Needs()


def needs_of(params: Iterable[Params]) -> Needs:
    """Returns the combined needs of several operators."""
    listed = list(params)
    functions = {(one.name, one.version) for one in listed if isinstance(one, FunctionParams)}
    return Needs(tuple(sorted(functions)), any(keeps_state(one) for one in listed))


def keeps_state(params: Params) -> bool:
    """Tells whether an operator of this kind may keep rows between two batches."""
    stateless = SourceParams | MapParams | AssignParams | UnnestParams | UnionParams | MulticastParams | ExchangeParams | SplitParams
    return not isinstance(params, stateless | SinkParams)


def may_miss(params: Params, *, defers: bool) -> bool:
    """Tells whether rows that wait at an operator of this kind may be left out, or put off, because they would be late.

    They may not at sources, sinks, multicasts, exchanges and merges: work has been spent on them, or other operators wait for them. Nor may
    rows at a lookup, as those of its table are no events.
    """
    if defers:
        return isinstance(params, FunctionParams) and params.defers
    return not isinstance(params, SourceParams | SinkParams | MulticastParams | ExchangeParams | SplitParams | MergeParams | LookupParams)


def held_for_s(params: Params) -> float:
    """Returns for how many seconds of event time an operator holds each row, as far as its parameters tell; 0 if they do not."""
    match params:
        case JoinParams(before_us=before_us, after_us=after_us):
            return max(0.0, (before_us + after_us) / 1e6)
        case MatchParams(within_us=int(within_us)):
            return within_us / 1e6
        case _:
            return 0.0
