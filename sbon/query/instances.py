"""Rules for operators in several instances: by which keys rows are dealt to them, and how their answers are put into the order of one.

See docs/instances.md.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from sbon.query.expression import Column, Expression
from sbon.query.plan import (
    DeduplicateParams,
    ExchangeParams,
    MatchParams,
    MergeParams,
    Navigation,
    OperatorSpec,
    Params,
    Plan,
    SessionParams,
    Sizing,
    WindowJoinParams,
    WindowParams,
)
from sbon.query.projection import free_name
from sbon.query.relation import BOUNDS
from sbon.query.schema import ColumnType, Field, Schema
from sbon.query.text import expression_text
from sbon.types import NodeId, OperatorId

NO_KEYS = "no operator of the query has keys by which its rows can be dealt"


class Dealing(NamedTuple):
    """One operator in several instances."""

    params: Params
    """Parameters of each instance."""
    schema: Schema
    """Output columns of each instance."""
    keys: tuple[tuple[Expression, ...], ...]
    """For each input port, the keys by which its rows are dealt."""
    time_column: str
    """Event time of the answers, by which they are merged."""
    order: tuple[str, ...]
    """Columns by which one instance orders answers of one event time."""
    hidden: tuple[str, ...] = ()
    """Columns of `schema` that only the merge needs."""
    delay_us: int = 0
    """Greatest distance of event times of the stream behind `time_column`."""


class InstanceSet(NamedTuple):
    """The instances of one operator in a plan."""

    kind: str
    keys: tuple[str, ...]
    """Texts of the keys by which rows are dealt to them; of a join, those of its left side."""
    operators: tuple[OperatorId, ...]
    """In the order of their parts."""
    auto: Sizing | None = None
    """The reason for their number, where the planner has chosen it."""

    def text(self, nodes: Iterable[NodeId]) -> str:
        """Returns one line, `window: 2 by symbol (ams, paris; auto: rate 40,000/s needs 1.4 cores; at most 2)`."""
        why = "" if self.auto is None else f"; auto: {reason(self.auto)}"
        return f"{self.kind}: {len(self.operators)} by {', '.join(self.keys)} ({', '.join(nodes)}{why})"

    def told(self, nodes: Mapping[OperatorId, NodeId]) -> dict[str, Any]:
        """Returns the set as `sbon explain --json` and `sbon queries --json` show it."""
        auto, hosts = self.auto, [nodes[one] for one in self.operators]
        return {
            "kind": self.kind,
            "keys": list(self.keys),
            "operators": list(self.operators),
            "nodes": hosts,
            "auto": None if auto is None else {"rate_rows_per_s": auto.rate_rows_per_s, "cores": auto.cores, "most": auto.most},
            "text": self.text(hosts),
        }


def reason(sizing: Sizing) -> str:
    """Returns what a number of instances rests on.

    Examples
    --------
    >>> reason(Sizing(("q.1", "q.2"), 40_000.0, 1.41, 2))
    'rate 40,000/s needs 1.4 cores; at most 2'
    """
    if not sizing.most:
        return "no rate is known"
    cores = f"{sizing.cores:.1f} cores" if sizing.cores >= 0.1 else "less than 0.1 cores"
    return f"rate {sizing.rate_rows_per_s:,.0f}/s needs {cores}; at most {sizing.most}"


def resting_on(plan: Plan, sizings: Sequence[Sizing]) -> Plan:
    """Returns a plan whose numbers of instances rest on what those of another plan for the same operators rest on."""
    both = zip(plan.sizings, sizings, strict=True)
    told = tuple(msgspec.structs.replace(why, operators=one.operators, alone=one.alone) for one, why in both)
    return msgspec.structs.replace(plan, sizings=told)


def auto_notes(plan: Plan) -> list[str]:
    """Returns a sentence on each number of instances that the planner has chosen."""
    sets = [one for one in sets_of(plan) if one.auto is not None]
    return [f"{len(one.operators)} of {one.kind}: {reason(one.auto)}" for one in sets if one.auto is not None]


def sets_of(plan: Plan) -> list[InstanceSet]:
    """Returns the operators of a plan that have several instances, and those of which the planner has chosen to have one."""
    specs = {spec.id: spec for spec in plan.operators}
    auto = {sizing.operators: sizing for sizing in plan.sizings}
    found = []
    for merge in (spec for spec in plan.operators if isinstance(spec.params, MergeParams)):
        instances = tuple(link.source for link in plan.links if link.target == merge.id)
        exchange = next(specs[link.source].params for link in plan.links if link.target == instances[0] and link.port == 0)
        keys = exchange.keys if isinstance(exchange, ExchangeParams) else ()
        found.append(_set_of(specs[instances[0]], keys, instances, auto.get(instances)))
    for operators, sizing in auto.items():
        only = specs[operators[0]]
        if len(operators) == 1 and (dealing := dealing_of(only.params, only.schema, only.time_column)) is not None:
            found.append(_set_of(only, dealing.keys[0], operators, sizing))
    return found


def _set_of(spec: OperatorSpec, keys: Iterable[Expression], operators: tuple[OperatorId, ...], auto: Sizing | None) -> InstanceSet:
    return InstanceSet(str(spec.params.__struct_config__.tag), tuple(map(expression_text, keys)), operators, auto)


def dealing_of(params: Params, schema: Schema, time_column: str | None) -> Dealing | None:
    """Returns how an operator is run in several instances; None if it has no keys, or no order by which answers can be merged.

    Parameters
    ----------
    schema, time_column : of its output
    """
    match params:
        case WindowParams(keys=keys) | SessionParams(keys=keys) if keys:
            names = tuple(name for name, _ in keys)
            # In windows of one instant the watermark is that of their starts (`Window.output_watermark`).
            time = "window_start" if isinstance(params, WindowParams) and params.size_us == 1 else "window_end"
            return Dealing(params, schema, (tuple(value for _, value in keys),), time, ("window_start", *names))
        case DeduplicateParams() if not {params.time_column, *params.keys} & set(BOUNDS):  # its output has bounds of its own
            return Dealing(params, schema, (_columns(params.keys),), params.time_column, params.keys)
        case WindowJoinParams():
            name = _free("slice", schema)
            dealt = msgspec.structs.replace(params, slice_column=name)
            keys_of_sides = (params.left_keys, params.right_keys)
            return Dealing(dealt, (*schema, Field(name, ColumnType.INT)), keys_of_sides, "window_end", (name,), (name,))
        case MatchParams(partition=partition) if partition:
            return _of_match(params, schema, time_column)
        case _:
            return None


def _of_match(params: MatchParams, schema: Schema, time_column: str | None) -> Dealing | None:
    """Returns the dealing of a pattern. Its answers are merged by the instants at which they are known; their event times are earlier."""
    looks_ahead = any(isinstance(one, Navigation) and one.value is not None and one.shift > 0 for one in params.operands)
    is_bounded = params.within_us is not None and not looks_ahead
    if time_column is not None and not is_bounded:
        return None  # the watermark of the merged stream would stay behind the first row that may still be in a match, which nobody tells
    time = _free("known", schema)
    by_row = _free("known by row", schema)
    added = (Field(time, ColumnType.TIME), Field(by_row, ColumnType.INT))
    if params.passed is not None and not set(params.partition) <= set(params.passed):
        return None
    dealt = msgspec.structs.replace(params, known=(time, by_row))
    delay_us = params.within_us if params.within_us is not None and time_column is not None else 0
    return Dealing(dealt, (*schema, *added), (_columns(params.partition),), time, (by_row, *params.partition), (time, by_row), delay_us)


def _columns(names: tuple[str, ...]) -> tuple[Expression, ...]:
    return tuple(Column(name) for name in names)


def _free(name: str, schema: Schema) -> str:
    return free_name(name, [column.name for column in schema])
