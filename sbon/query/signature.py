"""Signatures: short digests that are equal where two operators compute the same columns from the same sources.

An operator's signature covers its canonical parameters, its output schema, and the signatures of the operators that feed it, down to
the sources with their nodes and definitions (SBON, section 3.2: reuse of running operators). It does not depend on names that a user gives
inside a query, since the planner names inner columns after their content, nor on the order of commuting conditions, expected rates and
operator ids.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec

from sbon.query.expression import Expression
from sbon.query.params.aggregate import PERCENTILE_FUNCTIONS, Aggregate
from sbon.query.params.joined import JoinParams, LookupParams, WindowJoinParams
from sbon.query.params.kinds import Params
from sbon.query.params.matched import MatchParams
from sbon.query.params.ordered import DeduplicateParams, OverParams, TopParams
from sbon.query.params.rowwise import FunctionParams, MapParams, UnnestParams
from sbon.query.params.source import SinkParams, SourceParams
from sbon.query.params.streams import ExchangeParams, MergeParams, MulticastParams, SplitParams, UnionParams
from sbon.query.params.windowed import AssignParams, SessionParams, WindowParams
from sbon.query.plan import OMITTING, MissRule, Part
from sbon.query.rewrite import canonical, conjoin, conjuncts, sort_key
from sbon.schema import Schema

DIGEST_BYTES = 12
"""96 bits: with a million operators in the overlay, two unequal ones collide with a chance of 1 in 10**17."""


def signature(params: Params, schema: Schema, inputs: Sequence[Sequence[str]], place: str = "", on_miss: MissRule | None = None) -> str:
    """Returns a digest of what an operator computes.

    Parameters
    ----------
    params : the operator's parameters
    schema : its output columns
    inputs : for each port, the signatures of the operators that feed it, or of their parts (`of_part`), in any order
    place : node of a source or a sink; empty for operators that may run anywhere
    on_miss : rule for rows that would be late

    Returns
    -------
    str
        24 hexadecimal digits.
    """
    form = [type(params).__name__, _form(params), msgspec.to_builtins(schema), [sorted(port) for port in inputs], place]
    if on_miss is not None:
        form.append(msgspec.to_builtins(on_miss))
    return hashlib.blake2b(msgspec.json.encode(form), digest_size=DIGEST_BYTES).hexdigest()


def likeness(params: Params, schema: Schema) -> str:
    """Returns a digest of an operator's computation without its inputs: operators with equal digests cost about the same."""
    form = [type(params).__name__, _form(params), msgspec.to_builtins(schema)]
    return hashlib.blake2b(msgspec.json.encode(form), digest_size=DIGEST_BYTES).hexdigest()


def of_part(signed: str, part: Part | None) -> str:
    """Returns the signature of a link's stream: the signature of its source, with the part if the link does not carry all rows."""
    return signed if part is None else f"{signed} {part.index}/{part.of}"


def _unless_omitting(params: OMITTING) -> list[str]:
    """Returns a mark for windows, sessions and joins that answer although a crash has taken rows of them.

    Queries that leave these out must not share them.
    """
    return [] if params.omits_begun else ["incomplete"]


def _form(params: Params) -> Any:
    match params:
        case SinkParams():  # never shared, but equal sinks share measured costs
            return [params.connector, params.options, params.columns]
        case SourceParams() | UnionParams() | MulticastParams() | FunctionParams() | MergeParams():
            return msgspec.to_builtins(params)
        case ExchangeParams():
            form = [[_expression(key) for key in params.keys], params.instances]
            return form if params.turns is None else [*form, msgspec.to_builtins(params.turns)]
        case SplitParams() | TopParams() | MatchParams() | AssignParams() | UnnestParams() | DeduplicateParams():
            return msgspec.to_builtins(params)
        case MapParams():
            columns = None if params.columns is None else [(name, _expression(value)) for name, value in params.columns]
            return [_predicate(params.predicate), columns]
        case WindowParams():
            return [
                [params.time_column, params.size_us, params.slide_us, params.allowed_lateness_us],
                [(name, _expression(value)) for name, value in params.keys],
                [_aggregate(aggregate) for aggregate in params.aggregates],
                *_unless_omitting(params),
            ]
        case OverParams():
            return [
                [params.time_column, params.partition, params.ties, params.preceding],
                [_aggregate(aggregate) for aggregate in params.aggregates],
                *_unless_omitting(params),
            ]
        case SessionParams():
            return [
                [params.time_column, params.gap_us, params.allowed_lateness_us],
                [(name, _expression(value)) for name, value in params.keys],
                [_aggregate(aggregate) for aggregate in params.aggregates],
                *_unless_omitting(params),
            ]
        case JoinParams():
            keys = zip(params.left_keys, params.right_keys, strict=True)
            form = [
                [params.left_time, params.right_time, params.before_us, params.after_us],
                sorted((_expression(left), _expression(right)) for left, right in keys),
                params.columns,
                _predicate(params.residual),
                *_unless_omitting(params),
            ]
            return form if params.outer is None else [*form, "left", msgspec.to_builtins(params.outer)]
        case LookupParams():
            keys = zip(params.left_keys, params.right_keys, strict=True)
            return [
                sorted((_expression(left), _expression(right)) for left, right in keys),
                params.columns,
                _predicate(params.residual),
                None if params.outer is None else msgspec.to_builtins(params.outer),
            ]
        case WindowJoinParams():
            keys = zip(params.left_keys, params.right_keys, strict=True)
            return [
                [params.left_time, params.right_time, params.size_us, params.slide_us, params.allowed_lateness_us],
                sorted((_expression(left), _expression(right)) for left, right in keys),
                params.columns,
                _predicate(params.residual),
                None if params.outer is None else msgspec.to_builtins(params.outer),
                params.slice_column,
                *_unless_omitting(params),
            ]


def _aggregate(aggregate: Aggregate) -> list[Any]:
    form: list[Any] = [aggregate.name, aggregate.function, None if aggregate.operand is None else _expression(aggregate.operand)]
    if aggregate.by is not None:
        form.append(_expression(aggregate.by))
    if aggregate.function in ("string_agg", "string_agg_distinct"):
        form += [aggregate.separator, aggregate.descending]
    return [*form, aggregate.share] if aggregate.function in PERCENTILE_FUNCTIONS else form


def _expression(expression: Expression) -> str:
    return sort_key(canonical(expression)).decode()


def _predicate(predicate: Expression | None) -> str | None:
    whole = conjoin(conjuncts(predicate))
    return None if whole is None else _expression(whole)
