"""Estimates the rows and bytes a second on every link of a plan, before or while it runs.

Sources declare their rates; rules of thumb give those of other operators. The measured rate of a running operator with the same
signature replaces the rule, and so does a selectivity known from a sample. Bytes follow from rows by the encoding of links
(`sbon.query.link_bytes`). Placement compares the links of a plan with each other, so rules may be wrong by a factor of a few.
"""

import math
from collections.abc import Mapping, Sequence

import msgspec

from sbon.query.expression import Call, Column, Expression, Literal
from sbon.query.link_bytes import Pace, expected_pace, link_bytes_per_s, row_bytes
from sbon.query.params.joined import JoinParams, LookupParams, WindowJoinParams
from sbon.query.params.matched import MatchParams
from sbon.query.params.ordered import DeduplicateParams, TopParams
from sbon.query.params.rowwise import FunctionParams, MapParams, UnnestParams
from sbon.query.params.source import SourceParams
from sbon.query.params.streams import UnionParams
from sbon.query.params.windowed import AssignParams, SessionParams, WindowParams
from sbon.query.plan import LinkSpec, OperatorSpec, Plan
from sbon.query.system import SourceDefinition
from sbon.schema import ColumnType, Schema

PASSING = MapParams | AssignParams | UnnestParams | UnionParams
"""Operators that treat each row by itself, so that their selectivity is the same at any rate."""
DISTINCT_VALUES = 10.0
"""Assumed number of distinct values of a key; a BOOL has 2."""
FIRST_ROWS = 0.5
"""Assumed share of rows that deduplication keeps. It lies between a stream with few duplicates and one with many."""
ELEMENTS = 3.0
"""Assumed number of elements of an array."""
MATCHES = 0.05
"""Assumed matches of a pattern for each row."""
MATCHED_ROWS = 0.2
"""Assumed share of rows that are in a match."""
SESSION_GAPS = 10.0
"""Assumed time from the start of a session to that of its key's next one, in gaps."""
_DATAGEN_MAX_ROWS_PER_S = 100_000.0
_CONNECTOR_ROWS_PER_S = {"datagen": 10.0, "file": 1_000.0, "http": 100.0, "mqtt": 100.0, "tcp": 100.0, "system": 1.0}
_COMPARISON = {"eq": 1 / DISTINCT_VALUES, "ne": 1 - 1 / DISTINCT_VALUES, "lt": 1 / 3, "le": 1 / 3, "gt": 1 / 3, "ge": 1 / 3}


class Rate(msgspec.Struct, frozen=True):
    """Measured output rate of an operator."""

    rows_per_s: float
    bytes_per_s: float | None = None
    """None: derived from the layout of its columns on a link."""


def source_rate(definition: SourceDefinition) -> float:
    """Returns the rows a second of each physical source, as declared or typical of its connector."""
    if definition.rows_per_s is not None:
        return definition.rows_per_s
    declared = dict(definition.options).get("rows_per_second")
    if definition.connector == "datagen" and declared is not None:
        try:
            rate = float(declared)
        except ValueError:
            return _DATAGEN_MAX_ROWS_PER_S
        return rate if math.isfinite(rate) and rate >= 0 else _DATAGEN_MAX_ROWS_PER_S
    return _CONNECTOR_ROWS_PER_S.get(definition.connector, 100.0)


def is_rate_told(definition: SourceDefinition) -> bool:
    """Tells whether a source's rate is declared, in its profile, or set by its connector, rather than assumed."""
    return definition.rows_per_s is not None or bool(definition.profile) or definition.connector in ("datagen", "system")


def predicate_selectivity(predicate: Expression | None) -> float:
    """Estimates the share of rows for which a condition holds, between 0 and 1, from its form."""
    match predicate:
        case None:
            return 1.0
        case Literal(value=value):
            return 1.0 if value is True else 0.0
        case Call(function="and", arguments=arguments):
            return math.prod(predicate_selectivity(argument) for argument in arguments)
        case Call(function="or", arguments=arguments):
            return 1.0 - math.prod(1.0 - predicate_selectivity(argument) for argument in arguments)
        case Call(function="not", arguments=(argument,)):
            return 1.0 - predicate_selectivity(argument)
        case Call(function="in", arguments=arguments):
            return min(0.9, (len(arguments) - 1) / DISTINCT_VALUES)
        case Call(function="is_null"):
            return 0.05
        case Call(function="like" | "ilike" | "starts_with"):
            return 0.25
        case Call(function=name) if name in _COMPARISON:
            return _COMPARISON[name]
        case _:
            return 0.5


def map_bytes_ratio(params: MapParams, inputs: Schema, outputs: Schema) -> float:
    """Estimates the bytes out of a filter and projection for each byte in."""
    return predicate_selectivity(params.predicate) * row_bytes(outputs) / row_bytes(inputs)


def output_rows(params: object, schema: Schema, rates: Sequence[float]) -> float:
    """Estimates the rows a second that an operator gives.

    Parameters
    ----------
    params : the operator's parameters
    schema : its output columns
    rates : rows a second into each input port
    """
    match params:
        case MapParams():
            return rates[0] * predicate_selectivity(params.predicate)
        case WindowParams():
            return _window_rows(params, schema, rates[0])
        case SessionParams():
            return _session_rows(params, schema, rates[0])
        case FunctionParams():
            return rates[0] * params.selectivity
        case MatchParams():
            return rates[0] * (MATCHES if params.passed is None else MATCHED_ROWS)
        case AssignParams():
            return rates[0] * params.size_us / params.slide_us
        case UnnestParams():
            return rates[0] * ELEMENTS
        case DeduplicateParams():
            return rates[0] * FIRST_ROWS
        case TopParams():
            return rates[0] * min(1.0, params.limit / DISTINCT_VALUES)
        case JoinParams():
            seconds = max(0.0, (params.before_us + params.after_us) / 1e6)
            # Rows of one side meet rows of the other within the interval; an interval of zero length counts as one millisecond.
            pairs = rates[0] * rates[1] * max(seconds, 1e-3) * DISTINCT_VALUES ** -len(params.left_keys)
            pairs *= predicate_selectivity(params.residual)
            return pairs if params.outer is None else max(pairs, rates[0])
        case LookupParams():
            return rates[0] if params.outer is not None else rates[0] * predicate_selectivity(params.residual)
        case WindowJoinParams():
            seconds, windows = params.size_us / 1e6, 1e6 / params.slide_us
            pairs = rates[0] * rates[1] * seconds**2 * windows * DISTINCT_VALUES ** -len(params.left_keys)
            pairs *= predicate_selectivity(params.residual)
            return pairs if params.outer is None else max(pairs, rates[0] * seconds * windows)
        case _:
            return sum(rates)


def _window_rows(params: WindowParams, schema: Schema, rate: float) -> float:
    types = {column.name: column.type for column in schema}
    groups = 1.0
    for name, value in params.keys:
        # In a window of one instant, a key that is the instant itself has one value.
        if params.size_us == 1 and isinstance(value, Column) and types[name] is ColumnType.TIME:
            continue
        groups *= 2.0 if types[name] is ColumnType.BOOL else DISTINCT_VALUES
    if params.size_us == 1:
        return rate / DISTINCT_VALUES
    # There are no more groups than rows in the window; each row is in size / slide windows.
    filled = min(groups, rate * params.size_us / 1e6)
    return filled / (params.slide_us / 1e6)


def _session_rows(params: SessionParams, schema: Schema, rate: float) -> float:
    types = {column.name: column.type for column in schema}
    groups = math.prod(2.0 if types[name] is ColumnType.BOOL else DISTINCT_VALUES for name, _ in params.keys)
    seconds = SESSION_GAPS * params.gap_us / 1e6
    return min(groups, rate * seconds) / seconds


def estimate(plan: Plan, measured: Mapping[str, Rate] | None = None, shares: Mapping[str, float] | None = None) -> Plan:
    """Returns the plan with expected rates on all links and expected selectivities.

    Parameters
    ----------
    plan : the rates on the links that leave its sources are given
    measured : rates of running operators by signature; they override all other rates, also those of sources
    shares : known selectivities by signature, of operators whose selectivity is the same at any rate

    Examples
    --------
    A source measured at 20 rows a second instead of 10 doubles the expectation of all that follows.
    """
    known, share_of = measured or {}, shares or {}
    declared = {link.source: link.rate_rows_per_s for link in plan.links}
    incoming: dict[str, list[LinkSpec]] = {}
    for link in plan.links:
        incoming.setdefault(link.target, []).append(link)
    rows: dict[str, float] = {}
    sizes: dict[str, float] = {}
    paces: dict[str, Pace] = {}
    operators: list[OperatorSpec] = []
    for operator in plan.operators:
        ports = [0.0] * max(1, operator.ports)
        for link in incoming.get(operator.id, []):
            ports[link.port] += rows[link.source] * link.share
        rate = known.get(operator.signature)
        if rate is not None:
            out = rate.rows_per_s
        elif isinstance(operator.params, SourceParams):
            out = declared.get(operator.id, 0.0)
        elif operator.signature in share_of:
            out = share_of[operator.signature] * sum(ports)
        else:
            # An instance has its share of the keys, and so gives this share of the answers of all instances.
            share = min((link.share for link in incoming.get(operator.id, [])), default=1.0)
            out = share * output_rows(operator.params, operator.schema, [port / share for port in ports])
        rows[operator.id] = out
        paces[operator.id] = expected_pace(operator.params, out, [paces[link.source] for link in incoming.get(operator.id, [])])
        sizes[operator.id] = link_bytes_per_s(operator.schema, out, paces[operator.id])
        if rate is not None and rate.bytes_per_s is not None:
            sizes[operator.id] = rate.bytes_per_s
        total = sum(ports)
        operators.append(msgspec.structs.replace(operator, selectivity=out / total if total > 0 and operator.ports else 1.0))
    links = tuple(
        msgspec.structs.replace(link, rate_rows_per_s=rows[link.source] * link.share, rate_bytes_per_s=sizes[link.source] * link.share)
        for link in plan.links
    )
    return msgspec.structs.replace(plan, operators=tuple(operators), links=links)
