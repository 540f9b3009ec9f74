"""Describes plans for people: one line of text for an operator or an expression. Needs no SQL parser."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from sbon.query.expression import Call, Case, Cast, Column, Expression, Literal
from sbon.query.functions import FUNCTIONS
from sbon.query.params.aggregate import PERCENTILE_FUNCTIONS, Aggregate
from sbon.query.params.joined import JoinParams, LookupParams, WindowJoinParams
from sbon.query.params.kinds import Params
from sbon.query.params.matched import MatchParams
from sbon.query.params.ordered import DeduplicateParams, OrderColumn, OverParams, TopParams
from sbon.query.params.rowwise import FunctionParams, MapParams, UnnestParams
from sbon.query.params.source import SinkParams, SourceParams
from sbon.query.params.streams import ExchangeParams, MergeParams, MulticastParams, SplitParams, Turns, UnionParams, WindowChoice
from sbon.query.params.windowed import AssignParams, SessionParams, WindowParams
from sbon.query.row_pattern import pattern_text
from sbon.schema import ColumnType

_BINDING = {"or": 1, "and": 2, "not": 3, "eq": 4, "ne": 4, "lt": 4, "le": 4, "gt": 4, "ge": 4, "like": 4, "ilike": 4, "in": 4, "is_null": 4}
_BINDING |= {"concat": 5, "add": 6, "sub": 6, "mul": 7, "div": 7, "mod": 7, "neg": 8}
_UNITS = (("d", 86_400_000_000), ("h", 3_600_000_000), ("min", 60_000_000), ("s", 1_000_000), ("ms", 1_000), ("us", 1))
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def duration_text(microseconds: int) -> str:
    """Formats a span in the largest unit that divides it.

    Examples
    --------
    >>> duration_text(10_000_000), duration_text(-90_000_000), duration_text(0)
    ('10 s', '-90 s', '0 s')
    """
    if microseconds == 0:
        return "0 s"
    unit, size = next((unit, size) for unit, size in _UNITS if microseconds % size == 0)
    return f"{microseconds // size} {unit}"


def time_text(microseconds: int) -> str:
    """Formats an instant in ISO 8601, UTC; outside the calendar's range, as a plain number."""
    try:
        return (_EPOCH + timedelta(microseconds=microseconds)).replace(tzinfo=None).isoformat(sep=" ")
    except OverflowError:
        return str(microseconds)


def literal_text(literal: Literal) -> str:
    """Formats a constant as SQL writes it."""
    value = literal.value
    if value is None:
        return "null"
    if literal.type is ColumnType.TIME and isinstance(value, int):
        return f"timestamp '{time_text(value)}'"
    if literal.type is ColumnType.INTERVAL and isinstance(value, int):
        return f"interval '{duration_text(value)}'"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str) and literal.type is not ColumnType.TEXT:
        return f"{literal.type.value} {literal_text(Literal(value, ColumnType.TEXT))}"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return repr(value)


def expression_text(expression: Expression, binding: int = 0) -> str:
    """Formats an expression as SQL writes it, on one line; equal texts mean equal expressions within one set of names.

    Parameters
    ----------
    binding : precedence of the surrounding operator; an expression of lower precedence gets parentheses
    """
    match expression:
        case Column(name=name):
            return name
        case Literal():
            return literal_text(expression)
        case Cast(operand=operand, type=type_):
            return f"cast({expression_text(operand)} as {type_.value})"
        case Case(branches=branches, default=default):
            body = " ".join(f"when {expression_text(condition)} then {expression_text(value)}" for condition, value in branches)
            return f"case {body} else {expression_text(default)} end"
        case Call(function=name, arguments=arguments):
            own = _BINDING.get(name, 9)
            text = _call_text(name, arguments, own)
            return f"({text})" if own < binding else text


def _call_text(name: str, arguments: tuple[Expression, ...], own: int) -> str:
    # A right argument of equal strength is put in parentheses: a - (b - c).
    parts = [expression_text(argument, own + (index > 0)) for index, argument in enumerate(arguments)]
    if name == "is_null":
        return f"{parts[0]} is null"
    if name == "not":
        return f"not {expression_text(arguments[0], own + 1)}"
    if name == "neg":
        return f"-{expression_text(arguments[0], own + 1)}"
    if name in ("like", "ilike"):
        return f"{parts[0]} {name} {parts[1]}"
    if name == "in":
        return f"{parts[0]} in ({', '.join(expression_text(argument) for argument in arguments[1:])})"
    if name in ("json_get", "json_text"):
        last = "->" if name == "json_get" else "->>"
        return f"{' -> '.join(parts[:-1])} {last} {parts[-1]}"
    function = FUNCTIONS.get(name)
    if function is not None and function.symbol:
        return f" {function.symbol} ".join(parts)
    return f"{name}({', '.join(expression_text(argument) for argument in arguments)})"


def aggregate_text(aggregate: Aggregate) -> str:
    """Formats an aggregate: `count(*)`, `avg(rtt_ms)`, `count(distinct peer)`, `approx_percentile(rtt_ms, 0.99)`."""
    inner = "*" if aggregate.operand is None else expression_text(aggregate.operand)
    if aggregate.function in ("string_agg", "string_agg_distinct"):
        return _texts_text(aggregate, inner)
    if aggregate.by is not None:
        inner = f"{inner}, {expression_text(aggregate.by)}"
    if aggregate.function in PERCENTILE_FUNCTIONS:
        inner = f"{inner}, {aggregate.share!r}"
    return f"count(distinct {inner})" if aggregate.function == "count_distinct" else f"{aggregate.function}({inner})"


def _texts_text(aggregate: Aggregate, inner: str) -> str:
    """Formats `string_agg(distinct note, ', ' order by note desc)`."""
    distinct = "distinct " if aggregate.function == "string_agg_distinct" else ""
    order = "" if aggregate.by is None else expression_text(aggregate.by)
    if aggregate.descending:
        order = f"{order or inner} desc"
    separator = literal_text(Literal(aggregate.separator, ColumnType.TEXT))
    return f"string_agg({distinct}{inner}, {separator}{f' order by {order}' if order else ''})"


def describe(params: Params) -> str:
    """Describes in one line what an operator does.

    Examples
    --------
    >>> describe(WindowParams("ts", 10_000_000, 10_000_000, (("region", Column("region")),), (Aggregate("n", "count", None),)))
    'window 10 s by region: count(*)'
    """
    match params:
        case SourceParams(name=name, connector=connector, is_table=True):
            return f"table {name} ({connector})"
        case SourceParams(name=name, connector=connector):
            return f"source {name}" if connector == "system" else f"source {name} ({connector})"
        case SinkParams(name=name, connector=connector, columns=columns):
            return f"sink {name} ({connector})" + (f" of {_named(columns)}" if columns is not None else "")
        case MapParams():
            return _describe_map(params)
        case WindowParams() | SessionParams():
            return _describe_window(params)
        case JoinParams():
            return _describe_join(params)
        case WindowJoinParams():
            return _describe_window_join(params)
        case LookupParams():
            text = f"{'left ' if params.outer is not None else ''}lookup on {_keys_text(params)}"
            return text + (f" where {expression_text(params.residual)}" if params.residual is not None else "")
        case TopParams():
            return _describe_top(params)
        case OverParams(partition=partition, aggregates=aggregates, preceding=preceding):
            over = [f"{aggregate.name} of {rows + 1} rows" for aggregate, rows in zip(aggregates, preceding, strict=True)]
            return f"rows with {', '.join(over)}" + (f" by {', '.join(partition)}" if partition else "")
        case MatchParams(pattern=pattern, variables=variables, partition=partition, within_us=within):
            text = f"match {pattern_text(pattern, variables)}" + (f" within {duration_text(within)}" if within is not None else "")
            return text + (f" by {', '.join(partition)}" if partition else "")
        case AssignParams():
            return f"rows of windows {_every(params)}"
        case UnnestParams(array=array, element=element, ordinal=ordinal):
            return f"rows with {element}: the elements of {array}" + ("" if ordinal is None else ", numbered")
        case DeduplicateParams(keys=keys, span_us=span):
            where = f"after {duration_text(span)} without one" if params.session else f"in windows {duration_text(span)}"
            return f"first row of each {', '.join(keys)} {where}" + _order_text(" by ", params.order)
        case FunctionParams(name=name, version=version, arguments=arguments, partition=partition):
            given = [f"PARTITION BY {', '.join(partition)}"] if partition else []
            return f"function {name} {version}({', '.join([*given, *(f'{key} => {_constant(value)}' for key, value in arguments)])})"
        case UnionParams():
            return "union all"
        case MulticastParams(of=of):
            return f"multicast of {of}"
        case ExchangeParams(instances=instances, turns=Turns(turn_us=turn, within_us=within)):
            return f"splitter of windows of {duration_text(within)} to {instances} instances, in turns of {duration_text(turn)}"
        case SplitParams(dealer=dealer, instances=instances, turns=Turns(turn_us=turn, within_us=within)):
            return f"splitter of windows of {duration_text(within)} to {instances} instances by dealer {dealer} each {duration_text(turn)}"
        case ExchangeParams(keys=keys, instances=instances):
            return f"exchange by {', '.join(map(expression_text, keys))} to {instances} instances"
        case MergeParams(choice=WindowChoice()):
            return "merger of matches by their first rows"
        case MergeParams(time_column=time, order=order):
            return f"merge by {', '.join([time, *order])}"


def _constant(value: bool | int | float | str) -> str:
    kinds = {bool: ColumnType.BOOL, int: ColumnType.INT, float: ColumnType.FLOAT, str: ColumnType.TEXT}
    return literal_text(Literal(value, kinds[type(value)]))


def _named(columns: tuple[tuple[str, str], ...]) -> str:
    return ", ".join(name if name == found else f"{found} as {name}" for name, found in columns)


def _describe_map(params: MapParams) -> str:
    words = []
    if params.predicate is not None:
        words.append(f"where {expression_text(params.predicate)}")
    if params.columns is not None:
        columns = []
        for name, value in params.columns:
            text = expression_text(value)
            columns.append(name if text == name else f"{text} as {name}")
        words.append("select " + ", ".join(columns))
    return " ".join(words) or "pass on"


def _describe_window(params: WindowParams | SessionParams) -> str:
    if isinstance(params, SessionParams):
        what = f"sessions {duration_text(params.gap_us)} apart"
    elif params.size_us == 1:
        what = f"window per {params.time_column}"
    else:
        what = f"window {_every(params)}"
    keys = ", ".join(expression_text(value) for _, value in params.keys)
    values = ", ".join(map(aggregate_text, params.aggregates))
    return what + (f" by {keys}" if keys else "") + (f": {values}" if values else "")


def _every(params: WindowParams | WindowJoinParams | AssignParams) -> str:
    """Formats the length of windows: `10 s`, or `10 s every 2 s`."""
    slide = f" every {duration_text(params.slide_us)}" if params.slide_us != params.size_us else ""
    return f"{duration_text(params.size_us)}{slide}"


def _describe_top(params: TopParams) -> str:
    each = ", ".join((params.time_column, *params.partition))
    return f"first {params.limit} per {each}" + (_order_text(" by ", params.order) or f" by {', '.join(params.ties)}")


def _order_text(word: str, order: Iterable[OrderColumn]) -> str:
    # PostgreSQL's place of NULLs is the default and is not written.
    nulls = {True: " nulls first", False: " nulls last"}
    columns = [
        column.name
        + (" desc" if column.descending else "")
        + (nulls[column.nulls_first] if column.nulls_first != column.descending else "")
        for column in order
    ]
    return word + ", ".join(columns) if columns else ""


def _keys_text(params: JoinParams | WindowJoinParams | LookupParams) -> str:
    pairs = zip(params.left_keys, params.right_keys, strict=True)
    return ", ".join(f"{expression_text(left)} = {expression_text(right)}" for left, right in pairs)


def _describe_window_join(params: WindowJoinParams) -> str:
    text = "left " if params.outer is not None else ""
    text += f"join in windows {_every(params)} on {_keys_text(params)}"
    return text + (f" where {expression_text(params.residual)}" if params.residual is not None else "")


def _describe_join(params: JoinParams) -> str:
    text = "left " if params.outer is not None else ""
    text += f"join on {_keys_text(params)} within {duration_text(-params.before_us)} to {duration_text(params.after_us)}"
    return text + (f" where {expression_text(params.residual)}" if params.residual is not None else "")


__all__ = ["Aggregate", "aggregate_text", "describe", "duration_text", "expression_text", "literal_text", "time_text"]
