"""From the logical tree to the smallest streams that give the same answer.

One pass downwards carries what is asked of a stream: the conditions that its rows must meet and the values wanted of them. Projections
dissolve into that; conditions go on to the side of a join, through the keys of a window, into every part of a union, down to the sources;
columns that nobody wants are not sent. On the way up columns get canonical names - a source's column keeps its name, a computed one is
named by its text - so that queries which compute the same name it alike, whatever their authors called it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from sbon.query.estimate import TYPE_BYTES
from sbon.query.expression import Column, Expression, Literal
from sbon.query.fold import fold
from sbon.query.plan import Aggregate
from sbon.query.relation import Join, Relation, Scan, Select, Union, Window
from sbon.query.rewrite import canonical, columns_of, conjoin, conjuncts, substitute, type_of
from sbon.query.schema import ColumnType
from sbon.query.text import aggregate_text, expression_text


@dataclass(frozen=True)
class Lowered:
    """A stream, and where each wanted value is found in it."""

    relation: Relation
    names: tuple[str, ...]


def lower_query(relation: Relation) -> Relation:
    """The whole query, its columns named and ordered as its author did."""
    lowered = lower(relation, (), tuple(Column(column.name) for column in relation.schema))
    wanted = [(column.name, name) for column, name in zip(relation.schema, lowered.names, strict=True)]
    return _arranged(lowered.relation, wanted)


def lower(relation: Relation, conditions: Iterable[Expression], wanted: Sequence[Expression]) -> Lowered:
    """The stream of rows of `relation` that meet all conditions, with at least the wanted values.

    Parameters
    ----------
    conditions, wanted : over the columns of `relation`

    Raises
    ------
    QueryError
        An expression grows too large.
    """
    met = _met(conditions)
    match relation:
        case Select():
            values = {name: value for name, value, _ in relation.columns}
            inner = (*relation.conditions, *(substitute(condition, values) for condition in met))
            return lower(relation.input, inner, [fold(substitute(value, values)) for value in wanted])
        case Scan():
            return _mapped(relation, met, wanted)
        case Union():
            return _lower_union(relation, met, wanted)
        case Window():
            return _lower_window(relation, met, wanted)
        case Join():
            return _lower_join(relation, met, wanted)


def _met(conditions: Iterable[Expression]) -> tuple[Expression, ...]:
    """Folded, taken apart, each once, in canonical order."""
    return conjuncts(conjoin(part for condition in conditions for part in conjuncts(fold(condition))))


def _types(relation: Relation) -> dict[str, ColumnType]:
    return {column.name: column.type for column in relation.schema}


def _column_type(value: Expression, types: Mapping[str, ColumnType]) -> ColumnType:
    """The type of an output column; of a NULL the type it is written with, as `sbon.operators.compile` has it."""
    found = type_of(value, types)
    if found is not None:
        return found
    return value.type if isinstance(value, Literal) else ColumnType.TEXT


def _mapped(relation: Relation, conditions: tuple[Expression, ...], wanted: Sequence[Expression]) -> Lowered:
    """A filter and projection on top of a stream, where one is needed."""
    plain = not conditions and all(isinstance(value, Column) for value in wanted)
    if plain and not isinstance(relation, Scan):
        return Lowered(relation, tuple(value.name for value in wanted if isinstance(value, Column)))
    types = _types(relation)
    values = {expression_text(canonical(value)): canonical(value) for value in wanted}
    passed = [name for name in types if values.get(name) == Column(name)]
    computed = sorted(name for name, value in values.items() if value != Column(name))
    if plain and isinstance(relation, Scan) and tuple(passed) == tuple(column.name for column in relation.source.columns):
        return Lowered(relation, tuple(expression_text(value) for value in wanted))
    names: dict[Expression, str] = {Column(name): name for name in passed}
    for text in computed:
        names[values[text]] = _free(text, names.values())
    columns = tuple((name, value, _column_type(value, types)) for value, name in names.items())
    return Lowered(Select(relation, conditions, columns), tuple(names[canonical(value)] for value in wanted))


def _free(name: str, taken: Iterable[str]) -> str:
    names, number, free = set(taken), 2, name
    while free in names:
        free, number = f"{name}_{number}", number + 1
    return free


def _arranged(relation: Relation, columns: Sequence[tuple[str, str]]) -> Relation:
    """The stream with exactly these columns, as (new name, name in the stream); nothing is added where it has them already."""
    schema = relation.source.columns if isinstance(relation, Scan) else relation.schema
    if [(column.name, column.name) for column in schema] == list(columns):
        return relation
    if isinstance(relation, Select):
        values = {name: (value, type_) for name, value, type_ in relation.columns}
        return replace(relation, columns=tuple((new, *values[old]) for new, old in columns))
    if isinstance(relation, Union):
        positions = {column.name: index for index, column in enumerate(relation.schema)}
        order = [(new, positions[old]) for new, old in columns]
        return Union(tuple(_arranged(part, [(new, part.schema[index].name) for new, index in order]) for part in relation.inputs))
    types = _types(relation)
    return Select(relation, (), tuple((new, Column(old), types[old]) for new, old in columns))


def _lower_union(union: Union, conditions: tuple[Expression, ...], wanted: Sequence[Expression]) -> Lowered:
    distinct = list(dict.fromkeys(canonical(value) for value in wanted))
    parts: list[Lowered] = []
    for part in union.inputs:
        here: dict[str, Expression] = {ours.name: Column(theirs.name) for ours, theirs in zip(union.schema, part.schema, strict=True)}
        parts.append(lower(part, [substitute(c, here) for c in conditions], [fold(substitute(value, here)) for value in distinct]))
    # Two values that are one column in the first part may be two in another: each gets a column of its own.
    targets: list[str] = []
    for name in parts[0].names:
        targets.append(_free(name, targets))
    place = {column.name: index for index, column in enumerate(parts[0].relation.schema)}
    order = sorted(range(len(distinct)), key=lambda index: (place[parts[0].names[index]], targets[index]))
    streams = tuple(_arranged(part.relation, [(targets[i], part.names[i]) for i in order]) for part in parts)
    found = dict(zip(distinct, targets, strict=True))
    return Lowered(Union(streams), tuple(found[canonical(value)] for value in wanted))


def _lower_window(window: Window, conditions: tuple[Expression, ...], wanted: Sequence[Expression]) -> Lowered:
    keys: dict[str, Expression] = {name: value for name, value, _ in window.keys}
    early = [condition for condition in conditions if columns_of([condition]) and set(columns_of([condition])) <= set(keys)]
    late = [condition for condition in conditions if condition not in early]
    needed = set(columns_of([*late, *wanted]))
    aggregates = [(aggregate, type_) for aggregate, type_ in window.aggregates if aggregate.name in needed]
    operands = [aggregate.operand for aggregate, _ in aggregates if aggregate.operand is not None]
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
            new_keys[value] = (_free(expression_text(value), taken), value, type_)
        renamed[name] = Column(new_keys[value][0])
    new_aggregates: dict[str, tuple[Aggregate, ColumnType]] = {}
    for aggregate, type_ in aggregates:
        operand = aggregate.operand
        if operand is not None:
            operand = computed.get(operand) or fold(canonical(substitute(operand, values)))
        name = aggregate_text(aggregate.function, operand)
        while name in (key for key, _, _ in new_keys.values()):
            name = f"{name}_2"
        new_aggregates[name] = (Aggregate(name, aggregate.function, operand), type_)
        renamed[aggregate.name] = Column(name)
    time = values[window.time_column]
    assert isinstance(time, Column)
    ordered = tuple(new_aggregates[name] for name in sorted(new_aggregates))
    stream = replace(window, input=inner.relation, time_column=time.name, keys=tuple(new_keys.values()), aggregates=ordered)
    return _mapped(stream, tuple(substitute(c, renamed) for c in late), [substitute(value, renamed) for value in wanted])


def _narrower(window: Window, values: Sequence[Expression]) -> list[Expression]:
    """Values that are better computed below the window: they are narrower than the columns that only they use."""
    types = _types(window.input)
    candidates = [value for value in dict.fromkeys(values) if not isinstance(value, Column | Literal)]
    chosen: list[Expression] = []
    for value in candidates:
        rest = {window.time_column, *columns_of(other for other in values if other != value)}
        own = sum(TYPE_BYTES[types[name]] for name in columns_of([value]) if name not in rest)
        if TYPE_BYTES[type_of(value, types) or ColumnType.BOOL] < own:
            chosen.append(value)
    return chosen


def _lower_join(join: Join, conditions: tuple[Expression, ...], wanted: Sequence[Expression]) -> Lowered:
    side_of = {name: side for name, side, _ in join.columns}
    inner_names = [{name: inner for name, at, inner in join.columns if at == side} for side in (0, 1)]
    pushed: tuple[list[Expression], list[Expression]] = ([], [])
    residual: list[Expression] = []
    # The two sides of an equality are the same value: a condition on one holds on both, and one of them need not travel on.
    same = _same_columns(join)
    twins = ({column.name: right for right, column in same.items()}, {right: column.name for right, column in same.items()})
    for condition in _met([*join.residual, *conditions]):
        names = columns_of([condition])
        sides = {side_of[name] for name in names}
        if len(sides) == 2:
            residual.append(condition)
            continue
        side = 1 if sides == {1} else 0
        pushed[side].append(substitute(condition, {name: Column(inner) for name, inner in inner_names[side].items()}))
        if names and all(name in twins[side] for name in names):
            other = inner_names[1 - side]
            pushed[1 - side].append(substitute(condition, {name: Column(other[twins[side][name]]) for name in names}))
    residual = [substitute(condition, same) for condition in residual]
    wanted = [fold(substitute(value, same)) for value in wanted]
    outputs = set(columns_of([*residual, *wanted])) or {
        next(name for name, side, inner in join.columns if (side, inner) == (0, join.left_time))
    }
    streams: list[Lowered] = []
    places: list[dict[str, str]] = []
    for side, (relation, time) in enumerate(((join.left, join.left_time), (join.right, join.right_time))):
        mine = [inner for name, inner in inner_names[side].items() if name in outputs]
        asked = list(dict.fromkeys([time, *columns_of(key[side] for key in join.keys), *mine]))
        lowered = lower(relation, pushed[side], [Column(name) for name in asked])
        streams.append(lowered)
        places.append(dict(zip(asked, lowered.names, strict=True)))
    columns, renamed = _join_columns(inner_names, outputs, places, streams)
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
    )
    return _mapped(stream, (), [substitute(value, renamed) for value in wanted])


def _join_key(pair: tuple[Expression, Expression], places: Sequence[Mapping[str, str]]) -> tuple[Expression, Expression]:
    left, right = (
        canonical(substitute(value, {name: Column(found) for name, found in place.items()}))
        for value, place in zip(pair, places, strict=True)
    )
    return left, right


def _same_columns(join: Join) -> dict[str, Column]:
    """Columns of the right side that equal one of the left side in every pair. (Floats do not count: 0.0 equals -0.0.)"""
    types = (_types(join.left), _types(join.right))
    out = {(side, inner): name for name, side, inner in join.columns}
    same: dict[str, Column] = {}
    for left, right in join.keys:
        if not isinstance(left, Column) or not isinstance(right, Column) or types[0][left.name] is ColumnType.FLOAT:
            continue
        if types[0][left.name] is types[1][right.name] and (0, left.name) in out and (1, right.name) in out:
            same.setdefault(out[1, right.name], Column(out[0, left.name]))
    return same


def _join_columns(
    inner_names: Sequence[Mapping[str, str]], outputs: set[str], places: Sequence[Mapping[str, str]], streams: Sequence[Lowered]
) -> tuple[tuple[tuple[str, int, str], ...], dict[str, Expression]]:
    """The output columns of a join, and what the old output names are called now."""
    found = [{name: places[side][inner] for name, inner in inner_names[side].items() if name in outputs} for side in (0, 1)]
    twice = set(found[0].values()) & set(found[1].values())
    columns: list[tuple[str, int, str]] = []
    renamed: dict[str, Expression] = {}
    for side, prefix in ((0, "left"), (1, "right")):
        named: dict[str, str] = {}
        for column in streams[side].relation.schema:
            if column.name in found[side].values():
                wish = f"{prefix}.{column.name}" if column.name in twice else column.name
                named[column.name] = _free(wish, (name for name, _, _ in columns))
                columns.append((named[column.name], side, column.name))
        renamed.update({name: Column(named[inner]) for name, inner in found[side].items()})
    return tuple(columns), renamed
