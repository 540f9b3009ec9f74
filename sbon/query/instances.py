"""Rules for operators in several instances: the keys by which rows are dealt, and the merge of answers into the order of one instance.

See docs/instances.md.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from sbon.errors import QueryError
from sbon.query.expression import Column, Expression
from sbon.query.params.joined import WindowJoinParams
from sbon.query.params.kinds import Params
from sbon.query.params.matched import MatchNumber, MatchParams, Navigation
from sbon.query.params.ordered import DeduplicateParams
from sbon.query.params.streams import ExchangeParams, MergeParams, SplitParams, Turns, WindowChoice, WindowPart
from sbon.query.params.windowed import SessionParams, WindowParams
from sbon.query.plan import OperatorSpec, Part, Plan, Sizing
from sbon.query.projection import free_name
from sbon.query.relation import BOUNDS
from sbon.query.rewrite import columns_of
from sbon.query.row_pattern import Excluded, may_be_empty, walk
from sbon.query.text import duration_text, expression_text
from sbon.schema import ColumnType, Field, Schema
from sbon.types import NodeId, OperatorId

_BY_WINDOW = "dealing = 'window' does not support a pattern"
TURNS_OPEN = 4
"""Short turns of one instance whose windows are open at once."""
NO_KEYS = "no operator of the query has keys by which its rows can be dealt"


class Asked(NamedTuple):
    """The dealer that a splitter asks for each turn."""

    dealer: str
    bound_s: float
    """Longest time that a row may take at an instance."""
    opens: str
    """Column that tells an instance which rows open windows of it."""


class Dealing(NamedTuple):
    """The division of one operator into several instances."""

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
    """Greatest time by which an answer's event time lies before `time_column`."""
    turns: Turns | None = None
    """Set if windows are dealt instead of keys; `keys` then has no key for the port."""
    choice: WindowChoice | None = None
    asked: Asked | None = None
    """Set if a dealer is asked for each turn; None: instances take turns."""

    def exchange(self, port: int, number: int) -> ExchangeParams | SplitParams:
        """Returns the parameters of the exchange that deals the rows of a port to `number` instances."""
        if self.asked is not None and self.turns is not None:
            return SplitParams(self.turns, number, self.asked.opens, self.asked.dealer, self.asked.bound_s)
        return ExchangeParams(self.keys[port], number, self.turns)

    def part(self, index: int, number: int) -> tuple[Params, Part]:
        """Returns the parameters of an instance, and its part of the rows."""
        if self.turns is None:
            return self.params, Part(index, number)
        assert isinstance(self.params, MatchParams)
        columns = (self.time_column, *self.hidden[1:])
        part = Part(index, number, self.turns.copies(number))
        opens = None if self.asked is None else self.asked.opens
        return msgspec.structs.replace(self.params, dealt=WindowPart(self.turns.turn_us, index, number, columns, opens)), part

    @property
    def merge(self) -> MergeParams:
        """Returns the parameters of the merge that puts the answers of all instances into the order of one."""
        return MergeParams(self.time_column, self.order, self.hidden, self.delay_us, self.choice)


class InstanceSet(NamedTuple):
    """The instances of one operator in a plan."""

    kind: str
    keys: tuple[str, ...]
    """Texts of the keys by which rows are dealt; for a join, those of its left side."""
    operators: tuple[OperatorId, ...]
    """The instances, in the order of their parts."""
    auto: Sizing | None = None
    """Why there are so many, if the planner has chosen the number."""

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
    """Returns the reason for a number of instances.

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
    """Returns a plan with the reasons (rate, cores, most) of another plan for the same operators; its operators' ids and turns stay."""
    both = zip(plan.sizings, sizings, strict=True)
    told = tuple(msgspec.structs.replace(why, operators=one.operators, alone=one.alone, turn_us=one.turn_us) for one, why in both)
    return msgspec.structs.replace(plan, sizings=told)


def auto_notes(plan: Plan) -> list[str]:
    """Returns a sentence on each number of instances that the planner has chosen."""
    sets = [one for one in sets_of(plan) if one.auto is not None]
    return [f"{len(one.operators)} of {one.kind}: {reason(one.auto)}" for one in sets if one.auto is not None]


def sets_of(plan: Plan) -> list[InstanceSet]:
    """Returns the operators of a plan that have several instances, or one instance because the planner has chosen so."""
    specs = {spec.id: spec for spec in plan.operators}
    auto = {sizing.operators: sizing for sizing in plan.sizings}
    found = []
    for merge in (spec for spec in plan.operators if isinstance(spec.params, MergeParams)):
        instances = tuple(link.source for link in plan.links if link.target == merge.id)
        exchange = next(specs[link.source].params for link in plan.links if link.target == instances[0] and link.port == 0)
        assert isinstance(exchange, ExchangeParams | SplitParams)
        found.append(_set_of(specs[instances[0]], _dealt_by(exchange), instances, auto.get(instances)))
    for operators, sizing in auto.items():
        only = specs[operators[0]]
        if len(operators) == 1 and (keys := _dealt_if_more(only)):
            found.append(_set_of(only, keys, operators, sizing))
    return found


def _dealt_if_more(only: OperatorSpec) -> tuple[str, ...]:
    """Returns the texts by which the rows of a single instance would be dealt to several."""
    if (within_us := window_us(only)) is not None:
        return (f"windows of {duration_text(within_us)}",)
    dealing = dealing_of(only.params, only.schema, only.time_column)
    return () if dealing is None else tuple(map(expression_text, dealing.keys[0]))


def window_us(spec: OperatorSpec) -> int | None:
    """Returns the length of the windows of an operator whose windows may be dealt, or are; None if only keys can be."""
    params = spec.params
    return params.within_us if isinstance(params, MatchParams) and not params.partition else None


def even_turn_us(params: MatchParams, instances: int) -> int:
    """Returns a turn so short that each of the instances has an equal share of the open windows at any time: its windows of several turns
    are open at once. It is a whole number of seconds or milliseconds, because event times often are, unless that is too long.
    """
    turn_us = max(1, (params.within_us or 1) // (instances * TURNS_OPEN))
    unit = next(unit for unit in (1_000_000, 1_000, 1) if turn_us >= unit)
    return turn_us // unit * unit


def _dealt_by(exchange: ExchangeParams | SplitParams) -> tuple[str, ...]:
    """Returns the texts of the keys; where windows are dealt, one text with the expected copies of a row."""
    if isinstance(exchange, SplitParams):
        within, most = duration_text(exchange.turns.within_us), exchange.turns.copies(exchange.instances)
        every = f"{within} by dealer {exchange.dealer} each {duration_text(exchange.turns.turn_us)}"
        return (f"windows of {every}, at most {most:.2f} copies of a row",)
    if (turns := exchange.turns) is None:
        return tuple(map(expression_text, exchange.keys))
    copies = turns.copies(exchange.instances)
    return (f"windows of {duration_text(turns.within_us)} in turns of {duration_text(turns.turn_us)}, {copies:.2f} copies of a row",)


def _set_of(spec: OperatorSpec, keys: tuple[str, ...], operators: tuple[OperatorId, ...], auto: Sizing | None) -> InstanceSet:
    return InstanceSet(str(spec.params.__struct_config__.tag), keys, operators, auto)


def dealing_of(params: Params, schema: Schema, time_column: str | None) -> Dealing | None:
    """Returns how an operator is run in several instances; None if it has no keys, or no order by which answers can be merged.

    Parameters
    ----------
    schema, time_column : columns and event time of the operator's output
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
        return None  # the merged watermark must not pass the first row that may still be in a match, and instances do not report it
    time = _free("known", schema)
    by_row = _free("known by row", schema)
    added = (Field(time, ColumnType.TIME), Field(by_row, ColumnType.INT))
    if params.passed is not None and not set(params.partition) <= set(params.passed):
        return None
    dealt = msgspec.structs.replace(params, known=(time, by_row))
    delay_us = params.within_us if params.within_us is not None and time_column is not None else 0
    return Dealing(dealt, (*schema, *added), (_columns(params.partition),), time, (by_row, *params.partition), (time, by_row), delay_us)


def dealing_of_windows(params: MatchParams, schema: Schema, number: int, turn_us: int | None, asked: Asked | None = None) -> Dealing:
    """Returns how a pattern is run in several instances to which its windows are dealt.

    Parameters
    ----------
    schema : columns of the pattern's output
    turn_us : length of a turn; None: the least at which no instance gets a row twice, so that all have windows at any time
    asked : the dealer that is asked for each turn; None: instances take turns

    Raises
    ------
    QueryError
        The match of a window, or which rows are in it, depends on other windows.
    """
    if params.partition:
        raise QueryError(f"{_BY_WINDOW} with PARTITION BY", hint="leave dealing out: it is dealt by its partitions")
    if params.within_us is None:
        raise QueryError(f"{_BY_WINDOW} without WITHIN", hint="say how long a match may be: PATTERN (...) WITHIN INTERVAL '1 minute'")
    if params.unmatched or params.timeouts:
        what = "WITH UNMATCHED ROWS" if params.unmatched else "SHOW TIMEOUT MATCHES"
        raise QueryError(f"{_BY_WINDOW} that gives more than matches", hint=f"leave {what} out, or dealing")
    if may_be_empty(params.pattern):
        raise QueryError(f"{_BY_WINDOW} that may match no row", hint="write a+ for a*, or leave dealing out")
    if params.passed is not None and any(isinstance(part, Excluded) for part in walk(params.pattern)):
        raise QueryError(f"{_BY_WINDOW} that leaves rows of a match out", hint="write it without {- -}, or leave dealing out")
    if any(isinstance(one, Navigation) and one.value is not None and one.shift for one in params.operands):
        raise QueryError(f"{_BY_WINDOW} that reads rows outside its match", hint="write it without PREV and NEXT, or leave dealing out")
    counts = {one.name for one in params.operands if isinstance(one, MatchNumber)}
    numbers = tuple(name for name, value in params.measures if isinstance(value, Column) and value.name in counts)
    others = [value for name, value in params.measures if name not in numbers]
    if counts.intersection(columns_of([*others, *(one for one in params.conditions if one is not None)])):
        raise QueryError(f"{_BY_WINDOW} that computes with MATCH_NUMBER()", hint="compute with it in a SELECT around, or leave dealing out")
    taken: list[str] = []
    for name in ("begins", "begins row", "resumes", "resumes row"):
        taken.append(free_name(name, [*(column.name for column in schema), *taken]))
    begins, row, resumes, resumes_row = taken
    kinds = (ColumnType.TIME, ColumnType.INT, ColumnType.TIME, ColumnType.INT)
    added = tuple(Field(name, kind) for name, kind in zip(taken, kinds, strict=True))
    turns = Turns(params.time_column, -(-params.within_us // (number - 1)) if turn_us is None else turn_us, params.within_us)
    choice = WindowChoice(row, resumes, resumes_row, numbers)
    return Dealing(params, (*schema, *added), ((),), begins, (row,), tuple(taken), turns=turns, choice=choice, asked=asked)


def _columns(names: tuple[str, ...]) -> tuple[Expression, ...]:
    return tuple(Column(name) for name in names)


def _free(name: str, schema: Schema) -> str:
    return free_name(name, [column.name for column in schema])
