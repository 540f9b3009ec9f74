"""Exchanges two neighbouring operators of a plan where the answer stays the same, or gives the reason why it would not.

Operators keep their ids and exchange places. The new upper operator outputs the same stream as the old one, so it has the same signature,
and everything downstream stays as it is: a query that asks for the stream finds it, in whatever order it is computed. Only the lower
operator's stream changes.

The planner puts every condition as far down as possible, so filters only move up here. That helps where the node of a source has less
capacity than the nodes behind it, or where the operator above is so selective that few rows are left to test. WhiteWater's table 6 moves
filters down, which the planner has done already, and exchanges joins.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec

from sbon.links.link_names import link_id
from sbon.query.expression import Column, Expression
from sbon.query.params.joined import JoinParams, LookupParams
from sbon.query.params.kinds import Params
from sbon.query.params.rowwise import MapParams
from sbon.query.params.source import SinkParams, SourceParams
from sbon.query.params.windowed import SessionParams, WindowParams
from sbon.query.plan import Exchange, LinkSpec, OperatorSpec, Plan
from sbon.query.projection import free_name
from sbon.query.rewrite import columns_of, conjoin, conjuncts, substitute
from sbon.query.signature import DIGEST_BYTES, likeness, of_part, signature
from sbon.schema import Field
from sbon.types import OperatorId


class Move(msgspec.Struct, frozen=True):
    """An operator and one of its inputs that may be exchanged."""

    top: OperatorId
    bottom: OperatorId
    side: int
    """Input of the bottom operator that the top one reads after the exchange; 0 unless both are joins."""
    reason: str
    """Why the answer stays the same, for people."""


class _RefusedError(Exception):
    """Two operators may not be exchanged; the message says why."""


def moves(plan: Plan) -> list[Move]:
    """Returns all exchanges that leave the answer of a plan the same."""
    found = []
    for top, bottom, side in _pairs(plan):
        try:
            _, reason = _exchanged(plan, top, bottom, side)
        except _RefusedError:
            continue
        found.append(Move(top.id, bottom.id, side, reason))
    return found


def refusals(plan: Plan) -> dict[tuple[OperatorId, OperatorId, int], str]:
    """Returns why pairs of neighbours, as (top, bottom, side), may not be exchanged."""
    found = {}
    for top, bottom, side in _pairs(plan):
        try:
            _exchanged(plan, top, bottom, side)
        except _RefusedError as refused:
            found[top.id, bottom.id, side] = str(refused)
    return found


def moved(plan: Plan, move: Move) -> Plan:
    """Returns the plan after an exchange. Its links keep their rates, so call `estimate` next.

    Raises
    ------
    KeyError
        The move is not possible in this plan.
    """
    specs = {spec.id: spec for spec in plan.operators}
    top, bottom = specs[move.top], specs[move.bottom]
    try:
        after = _exchanged(plan, top, bottom, move.side)[0]
    except _RefusedError as refused:
        raise KeyError(f"{move.bottom} below {move.top}: {refused}") from None
    made = (*plan.changed.exchanges, Exchange(_named(plan, top, bottom, move.side), streams_of(plan)))
    now = streams_of(after)
    back = next((place for place, one in enumerate(made) if one.before == now), len(made))
    return msgspec.structs.replace(after, changed=msgspec.structs.replace(plan.changed, exchanges=made[:back]))


def exchanged_again(plan: Plan, exchanges: Iterable[Exchange]) -> Plan:
    """Repeats the exchanges that were made in another plan of the same statement; skips those that are not possible here."""
    for one in exchanges:
        pairs = ((top, bottom, side) for top, bottom, side in _pairs(plan) if _named(plan, top, bottom, side) == one.what)
        for top, bottom, side in pairs:
            with suppress(KeyError):
                plan = moved(plan, Move(top.id, bottom.id, side, ""))
                break
    return plan


def _named(plan: Plan, top: OperatorSpec, bottom: OperatorSpec, side: int) -> str:
    """Returns a name of an exchange that depends neither on ids of operators nor on nodes."""
    alike = (likeness(spec.params, spec.schema) for spec in (top, bottom))
    return _digest((*alike, str(side), *sorted(_sources(plan, [bottom.id])), "", *sorted(_sources(plan, [top.id]))))


def streams_of(plan: Plan) -> str:
    """Returns a digest that is equal for plans with the same streams."""
    return _digest(sorted(spec.signature for spec in plan.operators))


def _digest(parts: Iterable[str]) -> str:
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=DIGEST_BYTES).hexdigest()


def _pairs(plan: Plan) -> Iterator[tuple[OperatorSpec, OperatorSpec, int]]:
    specs = {spec.id: spec for spec in plan.operators}
    for link in plan.links:
        top, bottom = specs[link.target], specs[link.source]
        if isinstance(bottom.params, SourceParams) or isinstance(top.params, SinkParams):
            continue
        for side in (0, 1) if isinstance(bottom.params, JoinParams) and isinstance(top.params, JoinParams) else (0,):
            yield top, bottom, side


def _exchanged(plan: Plan, top: OperatorSpec, bottom: OperatorSpec, side: int) -> tuple[Plan, str]:
    between = [link for link in plan.links if link.source == bottom.id]
    if len(between) != 1:
        raise _RefusedError("others read the lower operator's stream, too")
    if between[0].target != top.id:
        raise _RefusedError("the lower operator does not feed the upper one")
    port = between[0].port
    if sum(link.target == top.id and link.port == port for link in plan.links) != 1:
        raise _RefusedError("the upper operator reads other streams by the same port")
    match top.params, bottom.params:
        case (JoinParams() | LookupParams(), MapParams()):
            return _map_above_join(plan, top, bottom, port), "a filter on rows of one side holds for the pairs that they are in"
        case (WindowParams() | SessionParams(), MapParams()):
            return _map_above_window(plan, top, bottom), "a filter on keys takes whole groups"
        case (JoinParams(), JoinParams()):
            return _joins(plan, top, bottom, port, side), "joins within times are sets of tuples that meet all conditions of both"
    raise _RefusedError(f"a {_kind(bottom.params)} is not exchanged with a {_kind(top.params)} above it")


def _kind(params: Params) -> str:
    return str(params.__struct_config__.tag)


def _map_above_join(plan: Plan, top: OperatorSpec, bottom: OperatorSpec, port: int) -> Plan:
    """Moves a filter and projection from either side of a join, or from the left side of a lookup, to above it."""
    join, mapped = top.params, bottom.params
    assert isinstance(join, JoinParams | LookupParams)
    assert isinstance(mapped, MapParams)
    if port == 1 and (join.outer is not None or isinstance(join, LookupParams)):
        raise _RefusedError("rows of the right side that are left out give NULLs, not fewer rows")
    below = _input(plan, bottom)
    values = _values(mapped, below)
    needed = set(columns_of([] if mapped.predicate is None else [mapped.predicate]))
    for _, at, inner in join.columns:
        if at == port:
            needed.update(columns_of([values[inner]]))
    base_time = ""
    if isinstance(join, JoinParams):
        base = values[(join.left_time, join.right_time)[port]]
        if not isinstance(base, Column):
            raise _RefusedError("the join's time is computed by the projection")
        base_time = base.name
        needed.add(base_time)
    if not needed:
        raise _RefusedError("no column of the side is left")
    columns: list[tuple[str, int, str]] = []
    named: dict[str, str] = {}
    kept = {name for name, at, _ in join.columns if at != port}
    for column in below.schema:
        if column.name in needed:
            named[column.name] = free_name(column.name, (*kept, *named.values()))
    mine = [(named[column.name], port, column.name) for column in below.schema if column.name in named]
    others = [one for one in join.columns if one[1] != port]
    columns = [*mine, *others] if port == 0 else [*others, *mine]
    renamed: dict[str, Expression] = {inner: Column(name) for inner, name in named.items()}
    outputs: dict[str, Expression] = {
        name: substitute(values[inner], renamed) if at == port else Column(name) for name, at, inner in join.columns
    }
    keys = [join.left_keys, join.right_keys]
    keys[port] = tuple(substitute(key, values) for key in keys[port])
    residual = None if join.residual is None else conjoin([substitute(join.residual, outputs)])
    if isinstance(join, JoinParams):
        times = [join.left_time, join.right_time]
        times[port] = base_time
        lower: Params = msgspec.structs.replace(
            join,
            left_time=times[0],
            right_time=times[1],
            left_keys=keys[0],
            right_keys=keys[1],
            columns=tuple(columns),
            residual=residual,
        )
    else:
        lower = msgspec.structs.replace(join, left_keys=keys[0], right_keys=keys[1], columns=tuple(columns), residual=residual)
    types = {field.name: field.type for field in below.schema}
    own = {field.name: field.type for field in top.schema}
    schema = tuple(Field(name, types[inner] if at == port else own[name]) for name, at, inner in columns)
    lower_time = top.time_column
    if lower_time is not None:
        base = outputs[lower_time]
        if not isinstance(base, Column):
            raise _RefusedError("the event time is computed by the projection")
        lower_time = base.name
    predicate = None if mapped.predicate is None else substitute(mapped.predicate, renamed)
    upper = MapParams(predicate, tuple(outputs.items()))
    return _rebuilt(plan, top, bottom, lower, schema, lower_time, upper, port)


def _map_above_window(plan: Plan, top: OperatorSpec, bottom: OperatorSpec) -> Plan:
    """Moves a filter on keys from below a window to above it."""
    window, mapped = top.params, bottom.params
    assert isinstance(window, WindowParams | SessionParams)
    assert isinstance(mapped, MapParams)
    values = _values(mapped, _input(plan, bottom))
    base = values[window.time_column]
    if not isinstance(base, Column):
        raise _RefusedError("the window's time is computed by the projection")
    keys = tuple((name, substitute(value, values)) for name, value in window.keys)
    by_column: dict[str, Expression] = {value.name: Column(name) for name, value in keys if isinstance(value, Column)}
    if mapped.predicate is not None and not by_column.keys() >= set(columns_of([mapped.predicate])):
        raise _RefusedError("the filter reads columns that are no keys")
    aggregates = tuple(
        msgspec.structs.replace(
            one,
            operand=None if one.operand is None else substitute(one.operand, values),
            by=None if one.by is None else substitute(one.by, values),
        )
        for one in window.aggregates
    )
    lower = msgspec.structs.replace(window, time_column=base.name, keys=keys, aggregates=aggregates)
    predicate = None if mapped.predicate is None else substitute(mapped.predicate, by_column)
    upper = MapParams(predicate, tuple((field.name, Column(field.name)) for field in top.schema))
    return _rebuilt(plan, top, bottom, lower, top.schema, top.time_column, upper, 0)


class _Joins(NamedTuple):
    """Two joins to be exchanged. The upper one reads the lower one at `port`; afterwards it reads the lower one's input `side`."""

    upper: JoinParams
    lower: JoinParams
    port: int
    side: int

    @property
    def origin(self) -> dict[str, tuple[int, str]]:
        """Returns the input of each column of the lower join, and its name there."""
        return {name: (at, inner) for name, at, inner in self.lower.columns}


class _Between(NamedTuple):
    """Names of columns of the stream between the two joins after their exchange."""

    of_moved: dict[str, str]
    """Columns by the name in the moved input."""
    of_other: dict[str, str]
    """Columns by the name in the other input of the upper join."""


def _joins(plan: Plan, top: OperatorSpec, bottom: OperatorSpec, port: int, side: int) -> Plan:
    """Exchanges a join with the join below it: the lower one's input `side` is joined first, with the upper one's other input."""
    upper, lower = top.params, bottom.params
    assert isinstance(upper, JoinParams)
    assert isinstance(lower, JoinParams)
    joins = _Joins(upper, lower, port, side)
    moved, others, rest = _inputs(plan, bottom, side), _inputs(plan, top, 1 - port), _inputs(plan, bottom, 1 - side)
    _check_joins(joins, has_input=bool(moved))
    moved_sources, other_sources, rest_sources = (_sources(plan, [one.id for one in some]) for some in (moved, others, rest))
    between = _named_between(joins, moved[0].schema)
    first = _joined_first(joins, between, moved_sources.isdisjoint(other_sources))
    last = _joined_last(joins, between, (moved_sources | other_sources).isdisjoint(rest_sources))
    if top.time_column is not None:
        last_times = _times(last)
        at, inner = {name: (at, inner) for name, at, inner in last.columns}[top.time_column]
        if inner != last_times[at]:
            raise _RefusedError("the event time of the pairs is that of the stream that would be joined first")
    types = {field.name: field.type for field in moved[0].schema}
    other_types = {field.name: field.type for one in others for field in one.schema}
    schema = tuple(Field(name, (types if at == port else other_types)[inner]) for name, at, inner in first.columns)
    return _rebuilt(plan, top, bottom, first, schema, between.of_moved[_times(first)[port]], last, port, side)


def _check_joins(joins: _Joins, has_input: bool) -> None:
    """Raises _RefusedError if the two joins may not be exchanged, whatever the event time of their pairs."""
    upper, lower, port, side = joins
    origin = joins.origin
    if upper.outer is not None or lower.outer is not None:
        raise _RefusedError("an outer join is not exchanged with another join")
    time = _times(upper)[port]
    if {origin[name][0] for name in (*columns_of(_keys(upper)[port]), time)} != {side}:
        raise _RefusedError("the upper join's keys and time are not of this input of the lower one")
    if origin[time][1] != _times(lower)[side]:
        raise _RefusedError("the two joins read different times of this input")
    if not has_input:
        raise _RefusedError("the lower join has no such input")
    if lower.residual is not None and not {name for name, at, _ in _through(upper, port, origin)} >= set(columns_of([lower.residual])):
        raise _RefusedError("the lower join's condition reads columns that do not go on")


def _named_between(joins: _Joins, schema: Sequence[Field]) -> _Between:
    """Returns names for the columns that the new upper join or its consumers read; `schema` is that of the moved input."""
    upper, lower, port, side = joins
    needed = {*columns_of(_keys(lower)[side]), _times(lower)[side]}
    needed.update(inner for _, at, inner in lower.columns if at == side and _goes_on(upper, port, lower, at, inner))
    taken: list[str] = []
    of_moved: dict[str, str] = {}
    for field in schema:
        if field.name in needed:
            of_moved[field.name] = free_name(field.name, taken)
            taken.append(of_moved[field.name])
    of_other: dict[str, str] = {}
    for name, at, inner in upper.columns:
        if at != port:
            of_other.setdefault(inner, free_name(name, taken))
            taken.append(of_other[inner])
    return _Between(of_moved, of_other)


def _joined_first(joins: _Joins, between: _Between, apart: bool) -> JoinParams:
    """Returns the new lower join, of the moved input (in place of the old lower join) and the upper join's other input."""
    upper, _, port, side = joins
    origin = joins.origin
    moved = [(name, port, inner) for inner, name in between.of_moved.items()]
    others = [(name, 1 - port, inner) for inner, name in between.of_other.items()]
    to_moved: dict[str, Expression] = {name: Column(inner) for name, (at, inner) in origin.items() if at == side}
    keys, times = list(_keys(upper)), list(_times(upper))
    keys[port] = tuple(substitute(key, to_moved) for key in keys[port])
    times[port] = origin[times[port]][1]
    return msgspec.structs.replace(
        upper,
        left_keys=keys[0],
        right_keys=keys[1],
        left_time=times[0],
        right_time=times[1],
        columns=tuple([*moved, *others] if port == 0 else [*others, *moved]),
        residual=None,
        apart=apart,
    )


def _joined_last(joins: _Joins, between: _Between, apart: bool) -> JoinParams:
    """Returns the new upper join, of the new lower join's pairs and the old lower join's other input."""
    upper, lower, port, side = joins
    columns: list[tuple[str, int, str]] = []
    for name, at, inner in upper.columns:
        if at != port:
            columns.append((name, side, between.of_other[inner]))
        else:
            below_at, below_inner = joins.origin[inner]
            columns.append((name, side, between.of_moved[below_inner]) if below_at == side else (name, 1 - side, below_inner))
    keys, times = list(_keys(lower)), list(_times(lower))
    keys[side] = tuple(substitute(key, {inner: Column(name) for inner, name in between.of_moved.items()}) for key in keys[side])
    times[side] = between.of_moved[times[side]]
    by_output: dict[str, Expression] = {inner: Column(name) for name, at, inner in upper.columns if at == port}
    residual = conjoin(part for part in (*conjuncts(upper.residual), *(substitute(one, by_output) for one in conjuncts(lower.residual))))
    return msgspec.structs.replace(
        lower,
        left_keys=keys[0],
        right_keys=keys[1],
        left_time=times[0],
        right_time=times[1],
        columns=tuple(columns),
        residual=residual,
        apart=apart,
    )


def _keys(join: JoinParams) -> tuple[tuple[Expression, ...], tuple[Expression, ...]]:
    return join.left_keys, join.right_keys


def _times(join: JoinParams) -> tuple[str, str]:
    return join.left_time, join.right_time


def _through(upper: JoinParams, port: int, origin: Mapping[str, tuple[int, str]]) -> Iterator[tuple[str, int, str]]:
    """Yields the columns of the lower join that the upper one passes on, as (name, side, name in the lower join's input)."""
    for _, at, inner in upper.columns:
        if at == port:
            yield inner, *origin[inner]


def _goes_on(upper: JoinParams, port: int, lower: JoinParams, at: int, inner: str) -> bool:
    names = {name for name, side, column in lower.columns if side == at and column == inner}
    keys = (upper.left_keys, upper.right_keys)[port]
    times = (upper.left_time, upper.right_time)[port]
    return bool(names & {column for _, side, column in upper.columns if side == port}) or bool(names & {*columns_of(keys), times})


def _values(mapped: MapParams, below: OperatorSpec) -> dict[str, Expression]:
    """Returns the output columns of a filter and projection over its input."""
    if mapped.columns is None:
        return {field.name: Column(field.name) for field in below.schema}
    return dict(mapped.columns)


def _inputs(plan: Plan, spec: OperatorSpec, port: int) -> list[OperatorSpec]:
    specs = {one.id: one for one in plan.operators}
    return [specs[link.source] for link in plan.links if link.target == spec.id and link.port == port]


def _input(plan: Plan, spec: OperatorSpec) -> OperatorSpec:
    """Returns one of the operators that feed an operator of one port; their columns are the same."""
    return _inputs(plan, spec, 0)[0]


def _sources(plan: Plan, operators: Sequence[OperatorId]) -> set[str]:
    """Returns the names of the sources behind some operators."""
    specs = {spec.id: spec for spec in plan.operators}
    waiting, seen, found = list(operators), set[OperatorId](), set[str]()
    while waiting:
        one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        params = specs[one].params
        if isinstance(params, SourceParams):
            found.add(params.name)
        waiting.extend(link.source for link in plan.links if link.target == one)
    return found


def _rebuilt(
    plan: Plan,
    top: OperatorSpec,
    bottom: OperatorSpec,
    lower: Params,
    schema: tuple[Field, ...],
    time_column: str | None,
    upper: Params,
    port: int,
    side: int = 0,
) -> Plan:
    """Returns the plan with `top` below, as `lower`, and `bottom` above, as `upper`.

    Parameters
    ----------
    schema, time_column : columns and event time of the stream between the two
    port : port of `top` that read `bottom`
    side : port of `bottom` that read the input which `top` reads now
    """
    links: list[LinkSpec] = []

    def join(source: OperatorId, target: OperatorId, number: int, like: LinkSpec) -> None:
        links.append(msgspec.structs.replace(like, id=link_id(source, target, number), source=source, target=target, port=number))

    for link in plan.links:
        if link.source == bottom.id and link.target == top.id:
            join(top.id, bottom.id, side, link)
        elif link.target == bottom.id and link.port == side:
            join(link.source, top.id, port, link)
        elif link.source == top.id:
            join(bottom.id, link.target, link.port, link)
        else:
            links.append(link)
    specs = {spec.id: spec for spec in plan.operators}
    ports = [
        [of_part(specs[link.source].signature, link.part) for link in links if link.target == top.id and link.port == number]
        for number in range(top.ports)
    ]
    below = msgspec.structs.replace(
        top,
        params=lower,
        schema=schema,
        time_column=time_column,
        signature=signature(lower, schema, ports, on_miss=top.on_miss or None),
        pinned=None,
    )
    above = msgspec.structs.replace(
        bottom, params=upper, schema=top.schema, time_column=top.time_column, signature=top.signature, pinned=None
    )
    operators = [{top.id: below, bottom.id: above}.get(spec.id, spec) for spec in plan.operators]
    return msgspec.structs.replace(plan, operators=tuple(_upstream_first(operators, links)), links=tuple(links))


def _upstream_first(operators: Sequence[OperatorSpec], links: Sequence[LinkSpec]) -> Iterator[OperatorSpec]:
    waiting = list(operators)
    done: set[OperatorId] = set()
    while waiting:
        ready = [one for one in waiting if all(link.source in done for link in links if link.target == one.id)]
        yield ready[0]
        done.add(ready[0].id)
        waiting.remove(ready[0])
