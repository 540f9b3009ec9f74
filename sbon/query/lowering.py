"""Lowers the logical tree to the smallest streams that give the same answer.

The pass down carries the conditions that a stream's rows must meet and the values that are wanted of them. Projections are substituted
into both. Conditions move to a side of a join, through the keys of a window, into every part of a union, and down to the sources. Unused
columns are not sent. The pass up gives columns canonical names (a source's column keeps its name, a computed one is named by its text) and
a canonical order. The sides of a join and the parts of a union get a canonical order, too. Thus queries that compute the same have equal
streams, whatever names their authors chose. The sink applies the author's names and order, so that the operators before it can be shared.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from sbon.query.expression import Column, Expression, Literal
from sbon.query.fold import fold, met
from sbon.query.link_bytes import VALUE_BYTES
from sbon.query.outer_joins import mirrored
from sbon.query.params.aggregate import Aggregate
from sbon.query.params.matched import MatchNumber, Navigation, Operand, Tally
from sbon.query.params.ordered import OrderColumn
from sbon.query.projection import Lowered, arranged, declared, free_name, mapped, types_of
from sbon.query.relation import (
    BOUNDS,
    Apply,
    Assigned,
    Deduplicate,
    Join,
    Lookup,
    Match,
    Numbered,
    Over,
    Relation,
    Scan,
    Select,
    Top,
    Union,
    Unnest,
    Window,
    sources_of,
)
from sbon.query.rewrite import canonical, columns_of, substitute, type_of
from sbon.query.sides import same_columns, shared_out
from sbon.query.text import aggregate_text, expression_text
from sbon.schema import ColumnType, Field, Schema


@dataclass(frozen=True)
class LoweredQuery:
    """A whole query: a stream in canonical form, and the author's names and order of its columns."""

    relation: Relation
    columns: tuple[tuple[str, str], ...]
    """The columns that the author wants, in order, as (name, name in the stream)."""

    @property
    def schema(self) -> Schema:
        """Returns the columns that the author sees."""
        types = types_of(self.relation)
        return tuple(Field(name, types[found]) for name, found in self.columns)

    @property
    def is_plain(self) -> bool:
        """Tells whether the stream has the author's names and order already."""
        return tuple((name, name) for name in declared(self.relation)) == self.columns


def lower_query(relation: Relation) -> LoweredQuery:
    """Lowers a whole query. Its stream has all columns that its author wants, each once, and no others."""
    lowered = lower(relation, (), tuple(Column(column.name) for column in relation.schema))
    columns = tuple((column.name, name) for column, name in zip(relation.schema, lowered.names, strict=True))
    wanted = {name for _, name in columns}
    kept = [(name, name) for name in declared(lowered.relation) if name in wanted]
    return LoweredQuery(arranged(lowered.relation, kept), columns)


def lower(relation: Relation, conditions: Iterable[Expression], wanted: Sequence[Expression]) -> Lowered:
    """Lowers a relation to a stream of the rows that meet all conditions, with at least the wanted values.

    Parameters
    ----------
    conditions, wanted : over the columns of `relation`

    Raises
    ------
    QueryError
        An expression grows too large.
    """
    known = met(conditions)
    match relation:
        case Select():
            values = {name: value for name, value, _ in relation.columns}
            inner = (*relation.conditions, *(substitute(condition, values) for condition in known))
            return lower(relation.input, inner, [fold(substitute(value, values)) for value in wanted])
        case Scan():
            return mapped(relation, known, wanted)
        case Union():
            return _lower_union(relation, known, wanted)
        case Window():
            return _lower_window(relation, known, wanted)
        case Top():
            return _lower_top(relation, known, wanted)
        case Over():
            return _lower_over(relation, known, wanted)
        case Match():
            return _lower_match(relation, known, wanted)
        case Assigned():
            return _lower_assigned(relation, known, wanted)
        case Unnest():
            return _lower_unnest(relation, known, wanted)
        case Deduplicate():
            return _lower_deduplicate(relation, known, wanted)
        case Numbered():
            raise relation.refusal
        case Apply():
            return _lower_apply(relation, known, wanted)
        case Join():
            return _lower_join(relation, known, wanted)
        case Lookup():
            return _lower_lookup(relation, known, wanted)


def _lower_union(union: Union, conditions: tuple[Expression, ...], wanted: Sequence[Expression]) -> Lowered:
    distinct = list(dict.fromkeys(canonical(value) for value in wanted))
    parts: list[Lowered] = []
    for part in union.inputs:
        here: dict[str, Expression] = {ours.name: Column(theirs.name) for ours, theirs in zip(union.schema, part.schema, strict=True)}
        parts.append(lower(part, [substitute(c, here) for c in conditions], [fold(substitute(value, here)) for value in distinct]))
    parts.sort(key=lambda part: repr(part.relation))  # a union promises no order of rows, so its parts may be ordered canonically
    # Values that share a column in the first part may differ in another part, so each gets a column of its own.
    targets: list[str] = []
    for name in parts[0].names:
        targets.append(free_name(name, targets))
    place = {column.name: index for index, column in enumerate(parts[0].relation.schema)}
    order = sorted(range(len(distinct)), key=lambda index: (place[parts[0].names[index]], targets[index]))
    streams = tuple(arranged(part.relation, [(targets[i], part.names[i]) for i in order]) for part in parts)
    found = dict(zip(distinct, targets, strict=True))
    return Lowered(Union(streams), tuple(found[canonical(value)] for value in wanted))


def _lower_window(window: Window, conditions: tuple[Expression, ...], wanted: Sequence[Expression]) -> Lowered:
    keys: dict[str, Expression] = {name: value for name, value, _ in window.keys}
    early = [condition for condition in conditions if columns_of([condition]) and set(columns_of([condition])) <= set(keys)]
    late = [condition for condition in conditions if condition not in early]
    needed = set(columns_of([*late, *wanted]))
    aggregates = [(aggregate, type_) for aggregate, type_ in window.aggregates if aggregate.name in needed]
    operands = [value for aggregate, _ in aggregates for value in (aggregate.operand, aggregate.by) if value is not None]
    narrow = _narrower(window, [*keys.values(), *operands])
    others = [value for value in (*keys.values(), *operands) if value not in narrow]
    inputs = list(dict.fromkeys([window.time_column, *columns_of(others)]))
    asked = [*(Column(name) for name in inputs), *narrow]
    inner = lower(window.input, [substitute(condition, keys) for condition in early], asked)
    values: dict[str, Expression] = {name: Column(found) for name, found in zip(inputs, inner.names, strict=False)}
    computed = {value: Column(found) for value, found in zip(narrow, inner.names[len(inputs) :], strict=True)}
    renamed: dict[str, Expression] = {}
    new_keys: dict[Expression, tuple[str, Expression, ColumnType]] = {}
    found_keys = [(name, computed.get(value) or fold(canonical(substitute(value, values))), type_) for name, value, type_ in window.keys]
    for name, value, type_ in sorted(found_keys, key=lambda key: expression_text(key[1])):
        if value not in new_keys:
            taken = ["window_start", "window_end", *(key for key, _, _ in new_keys.values())]
            new_keys[value] = (free_name(expression_text(value), taken), value, type_)
        renamed[name] = Column(new_keys[value][0])
    new_aggregates: dict[str, tuple[Aggregate, ColumnType]] = {}
    named: dict[Aggregate, str] = {}
    for aggregate, type_ in aggregates:
        operand, by = (
            None if value is None else computed.get(value) or fold(canonical(substitute(value, values)))
            for value in (aggregate.operand, aggregate.by)
        )
        same = msgspec.structs.replace(aggregate, name="", operand=operand, by=by)
        if same not in named:  # equal texts may stand for different columns or NULLs of different types
            name = aggregate_text(same)
            while name in new_aggregates or name in (key for key, _, _ in new_keys.values()):
                name = f"{name}_2"
            named[same] = name
            new_aggregates[name] = (msgspec.structs.replace(same, name=name), type_)
        renamed[aggregate.name] = Column(named[same])
    time = values[window.time_column]
    assert isinstance(time, Column)
    ordered = tuple(new_aggregates[name] for name in sorted(new_aggregates))
    stream = replace(window, input=inner.relation, time_column=time.name, keys=tuple(new_keys.values()), aggregates=ordered)
    return mapped(stream, tuple(substitute(c, renamed) for c in late), [substitute(value, renamed) for value in wanted])


def _narrower(window: Window, values: Sequence[Expression]) -> list[Expression]:
    """Returns the values that are better computed below the window, because they are narrower than the columns that only they use."""
    types = types_of(window.input)
    candidates = [value for value in dict.fromkeys(values) if not isinstance(value, Column | Literal)]
    chosen: list[Expression] = []
    for value in candidates:
        rest = {window.time_column, *columns_of(other for other in values if other != value)}
        own = sum(VALUE_BYTES[types[name]] for name in columns_of([value]) if name not in rest)
        if VALUE_BYTES[type_of(value, types) or ColumnType.BOOL] < own:
            chosen.append(value)
    return chosen


def _lower_top(top: Top, conditions: tuple[Expression, ...], wanted: Sequence[Expression]) -> Lowered:
    """Lowers a Top. All of the author's columns decide which rows are first, so only conditions on whole partitions move below it."""
    whole = {top.time_column, *top.partition}
    early = [condition for condition in conditions if columns_of([condition]) and whole.issuperset(columns_of([condition]))]
    late = [condition for condition in conditions if condition not in early]
    inputs = list(dict.fromkeys([top.time_column, *top.partition, *(column.name for column in top.order), *top.ties]))
    inner = lower(top.input, early, [Column(name) for name in inputs])
    places = dict(zip(inputs, inner.names, strict=True))
    time = places[top.time_column]
    partition = tuple(sorted({places[name] for name in top.partition} - {time}))
    order, ties = _order(top.order, top.ties, places, {time, *partition})
    renamed: dict[str, Expression] = {name: Column(found) for name, found in places.items()}
    number = None
    if top.number is not None and top.number in columns_of([*late, *wanted]):
        number = free_name("row_number", types_of(inner.relation))
        renamed[top.number] = Column(number)
    stream = Top(inner.relation, time, order, ties, top.limit, partition, number)
    return mapped(stream, tuple(substitute(c, renamed) for c in late), [substitute(value, renamed) for value in wanted])


def _order(
    order: Iterable[OrderColumn], ties: Iterable[str], places: Mapping[str, str], alike: set[str]
) -> tuple[tuple[OrderColumn, ...], tuple[str, ...]]:
    """Returns an order and its tie-breaking columns over the columns of a stream (`places`), without columns that are `alike` in all
    rows to be ordered."""
    found: dict[str, OrderColumn] = {}
    for column in order:
        if places[column.name] not in alike:
            found.setdefault(places[column.name], msgspec.structs.replace(column, name=places[column.name]))
    return tuple(found.values()), tuple(sorted({places[name] for name in ties} - alike - set(found)))


def _lower_over(over: Over, conditions: tuple[Expression, ...], wanted: Sequence[Expression]) -> Lowered:
    """Lowers an Over. All of the author's columns decide which rows precede a row, so only conditions on whole partitions move below it."""
    early = [condition for condition in conditions if columns_of([condition]) and set(over.partition).issuperset(columns_of([condition]))]
    late = [condition for condition in conditions if condition not in early]
    inputs = list(dict.fromkeys([over.time_column, *over.partition, *over.ties]))
    inner = lower(over.input, early, [Column(name) for name in inputs])
    places = dict(zip(inputs, inner.names, strict=True))
    time = places[over.time_column]
    partition = tuple(sorted({places[name] for name in over.partition}))
    ties = tuple(sorted({places[name] for name in over.ties} - {time, *partition}))
    renamed: dict[str, Expression] = {name: Column(found) for name, found in places.items()}
    needed, made = set(columns_of([*late, *wanted])), dict[str, tuple[tuple[Aggregate, ColumnType], int]]()
    named: dict[tuple[str, Expression | None, int], str] = {}
    for (aggregate, type_), rows in zip(over.aggregates, over.preceding, strict=True):
        if aggregate.name not in needed:
            continue
        operand = None if aggregate.operand is None else fold(canonical(substitute(aggregate.operand, renamed)))
        same = aggregate.function, operand, rows
        if same not in named:
            text = f"{aggregate_text(Aggregate('', aggregate.function, operand))} of {rows + 1} rows"
            named[same] = free_name(text, (*types_of(inner.relation), *made))
            made[named[same]] = (Aggregate(named[same], aggregate.function, operand), type_), rows
        renamed[aggregate.name] = Column(named[same])
    if not made:
        return mapped(inner.relation, tuple(substitute(c, renamed) for c in late), [substitute(value, renamed) for value in wanted])
    ordered = [made[name] for name in sorted(made)]
    stream = Over(inner.relation, time, partition, ties, tuple(one for one, _ in ordered), tuple(rows for _, rows in ordered))
    return mapped(stream, tuple(substitute(c, renamed) for c in late), [substitute(value, renamed) for value in wanted])


def _lower_match(match: Match, conditions: tuple[Expression, ...], wanted: Sequence[Expression]) -> Lowered:
    """Lowers a Match. All columns that its clause reads decide the order of rows, so only conditions on whole partitions move below it."""
    clause = match.params
    early = [condition for condition in conditions if columns_of([condition]) and set(clause.partition).issuperset(columns_of([condition]))]
    late = [condition for condition in conditions if condition not in early]
    inputs = list(dict.fromkeys([clause.time_column, *clause.partition, *clause.ties]))
    inner = lower(match.input, early, [Column(name) for name in inputs])
    places = dict(zip(inputs, inner.names, strict=True))
    read: dict[str, Expression] = {name: Column(found) for name, found in places.items()}
    match = _pruned(match, set(columns_of([*late, *wanted])))
    params, types = match.params, dict(match.operand_types)
    operands: dict[str, Expression] = {one.name: Column(f"o{place}") for place, one in enumerate(params.operands)}
    kept = tuple(dict.fromkeys(places[name] for name in (params.partition if params.passed is None else params.passed)))
    measures: dict[str, Expression] = {}
    made: dict[Expression, tuple[str, ColumnType]] = {}
    for (name, value), type_ in zip(params.measures, match.measure_types, strict=True):
        same = fold(canonical(substitute(value, operands)))
        if same not in made:
            made[same] = free_name(f"measure {len(made) + 1}", kept), type_
        measures[name] = Column(made[same][0])
    lowered = msgspec.structs.replace(
        params,
        time_column=places[params.time_column],
        partition=tuple(dict.fromkeys(places[name] for name in params.partition)),
        ties=tuple(dict.fromkeys(places[name] for name in params.ties)),
        descending=tuple(dict.fromkeys(places[name] for name in params.descending)),
        conditions=tuple(None if one is None else fold(canonical(substitute(one, operands))) for one in params.conditions),
        operands=tuple(_renamed(one, f"o{place}", read) for place, one in enumerate(params.operands)),
        measures=tuple((name, value) for value, (name, _) in made.items()),
        passed=None if params.passed is None else kept,
    )
    stream = Match(
        inner.relation,
        lowered,
        tuple(type_ for _, type_ in made.values()),
        tuple((f"o{place}", types[one.name]) for place, one in enumerate(params.operands)),
    )
    renamed = {**read, **measures}
    return mapped(stream, tuple(substitute(c, renamed) for c in late), [substitute(value, renamed) for value in wanted])


def _pruned(match: Match, needed: set[str]) -> Match:
    """Returns the clause with only the needed measures, and the operands that these and the conditions read."""
    params = match.params
    both = list(zip(params.measures, match.measure_types, strict=True))
    kept = [(one, type_) for one, type_ in both if one[0] in needed]
    if not (kept or params.partition or params.passed):
        kept = both[:1]  # a stream has at least one column
    read = columns_of([*(value for (_, value), _ in kept), *(one for one in params.conditions if one is not None)])
    operands = tuple(one for one in params.operands if one.name in read)
    measures = tuple(one for one, _ in kept)
    types: Mapping[str, ColumnType] = dict(match.operand_types)
    return replace(
        match,
        params=msgspec.structs.replace(params, measures=measures, operands=operands),
        measure_types=tuple(type_ for _, type_ in kept),
        operand_types=tuple((one.name, types[one.name]) for one in operands),
    )


def _renamed(operand: Operand, name: str, read: Mapping[str, Expression]) -> Operand:
    """Returns an operand with a new name, over the columns of the lowered input (`read`)."""
    match operand:
        case Navigation(value=value):
            return msgspec.structs.replace(operand, name=name, value=None if value is None else fold(canonical(substitute(value, read))))
        case Tally(aggregate=aggregate):
            value, by = (None if part is None else fold(canonical(substitute(part, read))) for part in (aggregate.operand, aggregate.by))
            return msgspec.structs.replace(operand, name=name, aggregate=msgspec.structs.replace(aggregate, operand=value, by=by))
        case MatchNumber():
            return MatchNumber(name)


def _without_bounds(lowered: Lowered) -> Lowered:
    """Returns the stream with new names for columns that a window's bounds would hide."""
    columns = declared(lowered.relation)
    renamed = {name: free_name(f"{name}_2", columns) for name in columns if name in BOUNDS}
    if not renamed:
        return lowered
    relation = arranged(lowered.relation, [(renamed.get(name, name), name) for name in columns])
    return Lowered(relation, tuple(renamed.get(name, name) for name in lowered.names))


def _lower_assigned(assigned: Assigned, conditions: tuple[Expression, ...], wanted: Sequence[Expression]) -> Lowered:
    early = [condition for condition in conditions if not set(columns_of([condition])).intersection(BOUNDS)]
    late = [condition for condition in conditions if condition not in early]
    inputs = list(dict.fromkeys([assigned.time_column, *columns_of([*late, *wanted])]))
    inputs = [name for place, name in enumerate(inputs) if not place or name not in BOUNDS]
    inner = _without_bounds(lower(assigned.input, early, [Column(name) for name in inputs]))
    renamed: dict[str, Expression] = {name: Column(found) for name, found in zip(inputs, inner.names, strict=True) if name not in BOUNDS}
    stream = replace(assigned, input=inner.relation, time_column=inner.names[0])
    return mapped(stream, tuple(substitute(c, renamed) for c in late), [substitute(value, renamed) for value in wanted])


def _lower_unnest(unnest: Unnest, conditions: tuple[Expression, ...], wanted: Sequence[Expression]) -> Lowered:
    """Lowers an Unnest. Conditions on columns of its input move below it; the array itself goes on only if it is wanted."""
    made = {unnest.element, unnest.ordinal}
    early = [condition for condition in conditions if made.isdisjoint(columns_of([condition]))]
    late = [condition for condition in conditions if condition not in early]
    used = dict.fromkeys(columns_of([*late, *wanted]))
    inputs = [name for name in used if name not in made]
    inner = lower(unnest.input, early, [unnest.array, *(Column(name) for name in inputs)])
    array, places = inner.names[0], dict(zip(inputs, inner.names[1:], strict=True))
    kept = tuple(name for name in declared(inner.relation) if name in places.values())
    element = free_name(f"unnest({array})", kept)
    renamed: dict[str, Expression] = {name: Column(found) for name, found in places.items()}
    renamed[unnest.element] = Column(element)
    ordinal = None
    if unnest.ordinal is not None and unnest.ordinal in used:
        ordinal = free_name(f"ordinality({array})", (*kept, element))
        renamed[unnest.ordinal] = Column(ordinal)
    stream = Unnest(inner.relation, Column(array), unnest.kind, element, ordinal, kept)
    return mapped(stream, tuple(substitute(c, renamed) for c in late), [substitute(value, renamed) for value in wanted])


def _lower_deduplicate(first: Deduplicate, conditions: tuple[Expression, ...], wanted: Sequence[Expression]) -> Lowered:
    """Lowers a Deduplicate. All of the author's columns decide which row is first, so only conditions on keys move below it."""
    early = [condition for condition in conditions if columns_of([condition]) and set(first.keys).issuperset(columns_of([condition]))]
    late = [condition for condition in conditions if condition not in early]
    inputs = list(dict.fromkeys([first.time_column, *first.keys, *(column.name for column in first.order), *first.ties]))
    inner = _without_bounds(lower(first.input, early, [Column(name) for name in inputs]))
    places = dict(zip(inputs, inner.names, strict=True))
    time, keys = places[first.time_column], tuple(sorted({places[name] for name in first.keys}))
    order, ties = _order(first.order, first.ties, places, {time, *keys})
    stream = Deduplicate(inner.relation, time, keys, order, ties, first.span_us, first.lateness_us, first.session)
    renamed: dict[str, Expression] = {name: Column(found) for name, found in places.items() if name not in BOUNDS}
    return mapped(stream, tuple(substitute(c, renamed) for c in late), [substitute(value, renamed) for value in wanted])


def _lower_apply(apply: Apply, conditions: tuple[Expression, ...], wanted: Sequence[Expression]) -> Lowered:
    """Lowers a user's function. Its input columns keep the names it expects, and no condition moves below it, as its treatment of rows is
    unknown."""
    names = [column.name for column in apply.function.inputs]
    inner = lower(apply.input, (), [Column(name) for name in names])
    stream = Apply(arranged(inner.relation, list(zip(names, inner.names, strict=True))), apply.function)
    return mapped(stream, conditions, wanted)


def _lower_join(join: Join, conditions: tuple[Expression, ...], wanted: Sequence[Expression]) -> Lowered:
    """Lowers `a JOIN b` and `b JOIN a` to the same join: the side whose sources sort first is the left one; if that does not decide, both
    orders are tried.

    The sides of a left join differ in meaning and are not swapped.
    """
    if join.outer:
        return _lower_sides(join, conditions, wanted)
    turned = mirrored(join)
    left, right = (sorted(map(repr, sources_of(side))) for side in (join.left, join.right))
    if left != right:
        return _lower_sides(join if left < right else turned, conditions, wanted)
    tried = [_lower_sides(way, conditions, wanted) for way in (join, turned)]
    return min(tried, key=lambda lowered: repr(lowered.relation))


def _lower_sides(join: Join, conditions: tuple[Expression, ...], wanted: Sequence[Expression]) -> Lowered:
    inner_names = [{name: inner for name, at, inner in join.columns if at == side} for side in (0, 1)]
    parts = shared_out(join, conditions)
    pushed, residual, above = parts.pushed, parts.residual, parts.above
    if not join.outer:  # the right one of an equal pair need not be sent on
        same = same_columns(join)
        residual = [substitute(condition, same) for condition in residual]
        wanted = [fold(substitute(value, same)) for value in wanted]
    bounds = () if join.window is None else BOUNDS
    outputs = set(columns_of([*residual, *above, *wanted])).difference(bounds)
    # After a crash, a left join leaves out rows by this time. And a row has at least one column.
    if not bounds and (join.outer or not outputs):
        outputs.add(next(name for name, side, inner in join.columns if (side, inner) == (0, join.left_time)))
    streams: list[Lowered] = []
    places: list[dict[str, str]] = []
    for side, (relation, time) in enumerate(((join.left, join.left_time), (join.right, join.right_time))):
        mine = [inner for name, inner in inner_names[side].items() if name in outputs]
        asked = list(dict.fromkeys([time, *columns_of(key[side] for key in join.keys), *mine]))
        lowered = lower(relation, pushed[side], [Column(name) for name in asked])
        streams.append(lowered)
        places.append(dict(zip(asked, lowered.names, strict=True)))
    columns, renamed = _join_columns(inner_names, outputs, places, streams, bounds)
    keys = tuple(_join_key(pair, places) for pair in join.keys)
    stream = Join(
        streams[0].relation,
        streams[1].relation,
        places[0][join.left_time],
        places[1][join.right_time],
        tuple(sorted(keys, key=lambda key: expression_text(key[0]) + "=" + expression_text(key[1]))),
        join.before_us,
        join.after_us,
        columns,
        tuple(substitute(condition, renamed) for condition in residual),
        join.outer,
        join.window,
    )
    return mapped(stream, tuple(substitute(condition, renamed) for condition in above), [substitute(value, renamed) for value in wanted])


def _lower_lookup(lookup: Lookup, conditions: tuple[Expression, ...], wanted: Sequence[Expression]) -> Lowered:
    """Lowers a lookup. Rows are looked up one by one, so only conditions on left rows move below it; the table is always sent whole."""
    inner_names = [{name: inner for name, at, inner in lookup.columns if at == side} for side in (0, 1)]
    left_values: dict[str, Expression] = {name: Column(inner) for name, inner in inner_names[0].items()}
    pushed, residual, above = list[Expression](), list[Expression](), list[Expression]()
    for condition in met(lookup.residual):
        of_left = left_values.keys() >= set(columns_of([condition]))
        (pushed if of_left and not lookup.outer else residual).append(condition)
    for condition in met(conditions):
        of_left = left_values.keys() >= set(columns_of([condition]))
        (pushed if of_left else above if lookup.outer else residual).append(condition)
    outputs = set(columns_of([*residual, *above, *wanted])) or {next(iter(left_values))}  # a row has at least one column
    asked = [*columns_of(left for left, _ in lookup.keys), *(inner for name, inner in inner_names[0].items() if name in outputs)]
    asked = list(dict.fromkeys(asked))
    left = lower(lookup.left, [substitute(condition, left_values) for condition in pushed], [Column(name) for name in asked])
    table = Lowered(Scan(lookup.table, ()), tuple(column.name for column in lookup.table.columns))
    places = dict(zip(asked, left.names, strict=True)), {name: name for name in table.names}
    columns, renamed = _join_columns(inner_names, outputs, places, (left, table), ())
    keys = {_join_key(pair, places) for pair in lookup.keys}
    stream = Lookup(
        left.relation,
        lookup.table,
        tuple(sorted(keys, key=lambda key: expression_text(key[0]) + "=" + expression_text(key[1]))),
        columns,
        tuple(substitute(condition, renamed) for condition in residual),
        lookup.outer,
    )
    return mapped(stream, tuple(substitute(condition, renamed) for condition in above), [substitute(value, renamed) for value in wanted])


def _join_key(pair: tuple[Expression, Expression], places: Sequence[Mapping[str, str]]) -> tuple[Expression, Expression]:
    left, right = (
        canonical(substitute(value, {name: Column(found) for name, found in place.items()}))
        for value, place in zip(pair, places, strict=True)
    )
    return left, right


def _join_columns(
    inner_names: Sequence[Mapping[str, str]],
    outputs: set[str],
    places: Sequence[Mapping[str, str]],
    streams: Sequence[Lowered],
    taken: tuple[str, ...],
) -> tuple[tuple[tuple[str, int, str], ...], dict[str, Expression]]:
    """Returns the output columns of a join, and the new name of each old output column."""
    found = [{name: places[side][inner] for name, inner in inner_names[side].items() if name in outputs} for side in (0, 1)]
    twice = set(found[0].values()) & set(found[1].values())
    columns: list[tuple[str, int, str]] = []
    renamed: dict[str, Expression] = {}
    for side, prefix in ((0, "left"), (1, "right")):
        named: dict[str, str] = {}
        for column in streams[side].relation.schema:
            if column.name in found[side].values():
                wish = f"{prefix}.{column.name}" if column.name in twice else column.name
                named[column.name] = free_name(wish, (*taken, *(name for name, _, _ in columns)))
                columns.append((named[column.name], side, column.name))
        renamed.update({name: Column(named[inner]) for name, inner in found[side].items()})
    return tuple(columns), renamed
