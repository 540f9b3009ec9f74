"""Tells how far back the answers of a plan look, and which plans can be replaced while their query runs (docs/replanning.md).

A new plan that begins beside the old one lacks all earlier rows. Its answers are right from the last event time of these rows plus the
greatest time that an answer looks back. If answers may depend on all rows that ever came, there is no such time.
"""

from collections.abc import Mapping

from sbon.errors import QueryError
from sbon.query.params.joined import JoinParams, LookupParams, WindowJoinParams
from sbon.query.params.kinds import Params
from sbon.query.params.matched import MatchParams
from sbon.query.params.ordered import DeduplicateParams, OverParams, TopParams
from sbon.query.params.rowwise import FunctionParams, MapParams, UnnestParams
from sbon.query.params.source import SinkParams, SourceParams
from sbon.query.params.streams import ExchangeParams, MergeParams, SplitParams, UnionParams
from sbon.query.params.windowed import AssignParams, SessionParams, WindowParams
from sbon.query.plan import MissRule, OperatorSpec, Plan
from sbon.types import OperatorId

_WHY: Mapping[type, str] = {
    SessionParams: "the end of its sessions is not known in advance",
    DeduplicateParams: "which row is the first depends on all rows before it",
    OverParams: "its aggregates go over rows that may have come long ago",
    MatchParams: "where a pattern begins depends on where the one before it has ended",
    SplitParams: "which instance has which windows is known to the splitter alone",
    LookupParams: "its lookup table would have to be read again",
    FunctionParams: "it is not known how far back its function remembers",
}
_ORDERED = WindowParams | WindowJoinParams
"""Operators whose output has no late row, and no row without an event time."""


def reach_us(plan: Plan) -> int:
    """Returns how far the earliest row of an answer may lie before the answer's event time, in microseconds.

    Raises
    ------
    QueryError
        There is no such limit: the plan cannot be replaced while it runs.
    """
    specs = {spec.id: spec for spec in plan.operators}
    feeding: dict[OperatorId, list[OperatorId]] = {spec.id: [] for spec in plan.operators}
    for link in plan.links:
        feeding[link.target].append(link.source)
    reach: dict[OperatorId, int] = {}
    ordered: dict[OperatorId, bool] = {}
    for spec in plan.operators:
        own = _own_us(spec)
        before = feeding[spec.id]
        reach[spec.id] = own + max((reach[source] for source in before), default=0)
        ordered[spec.id] = isinstance(spec.params, _ORDERED) or (bool(before) and all(ordered[source] for source in before))
    sink = plan.operators[-1]
    for source in feeding[sink.id]:
        if specs[source].time_column is None:
            raise _refusal("its answers have no event time", "select window_end, too")
        if not ordered[source]:
            raise _refusal("some rows come to its sink without passing a window, so they may be late or have no event time")
    if len({specs[source].time_column for source in feeding[sink.id]}) > 1:
        raise _refusal("its answers have their event times in several columns")
    return reach[sink.id]


def time_column(plan: Plan) -> str:
    """Returns the event time of the rows that come to the sink of a plan that `reach_us` accepts."""
    sink = plan.operators[-1].id
    found = {spec.id: spec.time_column for spec in plan.operators}
    return next(column for link in plan.links if link.target == sink and (column := found[link.source]) is not None)


def _own_us(spec: OperatorSpec) -> int:
    if isinstance(spec.on_miss, MissRule):
        raise _refusal("it may leave out rows that would be late (on_miss)")
    params: Params = spec.params
    match params:
        case WindowParams(size_us=size_us) | WindowJoinParams(size_us=size_us) | AssignParams(size_us=size_us):
            return size_us
        case JoinParams(before_us=before_us, after_us=after_us):
            return max(0, before_us) + max(0, after_us)
        case SourceParams(is_table=False) | MapParams() | UnnestParams() | UnionParams() | ExchangeParams() | MergeParams() | TopParams():
            return 0
        case SinkParams():
            return 0
        case _:
            raise _refusal(_WHY.get(type(params), "its lookup table would have to be read again"))


def _refusal(why: str, hint: str = "drop the query and submit it again") -> QueryError:
    return QueryError(f"its plan cannot change while it runs: {why}", hint=hint)
