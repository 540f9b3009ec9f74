"""Turns relations into operators, and chooses the nodes where some of them must run.

Sources and sinks are pinned. A filter or projection directly after a source is pinned, too, if it makes the stream no wider: by the
triangle inequality, no other node gives less network usage. For the same reason, a projection directly before the sink is pinned to the
sink's node if it makes the stream no narrower. The overlay places all other operators.

A source has one operator on each living node that it chooses. Conditions on `_node`, `_<label>` and, for system streams, `node` and
`region` are evaluated here for each node; nodes of which no row would pass are not read at all.
"""

from collections.abc import Mapping, Sequence

import msgspec

from sbon.errors import QueryError
from sbon.query.estimate import is_rate_told, map_bytes_ratio, source_rate
from sbon.query.expression import Call, Column, Expression, Literal
from sbon.query.fold import fold
from sbon.query.lowering import LoweredQuery
from sbon.query.options import Wishes
from sbon.query.params.joined import JoinParams, LookupParams, WindowJoinParams
from sbon.query.params.kinds import Params
from sbon.query.params.ordered import DeduplicateParams, OverParams, TopParams
from sbon.query.params.rowwise import MapParams, UnnestParams
from sbon.query.params.source import SinkParams
from sbon.query.params.windowed import AssignParams, SessionParams, WindowParams
from sbon.query.plan import DEFER, INCOMPLETE, OperatorSpec, ProfilePoint
from sbon.query.plan_wiring import Wiring, time_of
from sbon.query.profiles import Points, together
from sbon.query.projection import types_of
from sbon.query.relation import (
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
from sbon.query.rewrite import TRUE, columns_of, conjoin, substitute
from sbon.query.system import SourceDefinition, known_columns
from sbon.query.table_versions import ROWS_PER_S, sent_columns
from sbon.schema import ColumnType, Schema
from sbon.types import NodeId, QueryId

Labels = Mapping[NodeId, Mapping[str, str]]
"""Labels of the living nodes, by node."""


class PlanBuilder:
    """Adds the operators of a query's relations to a wiring.

    Parameters
    ----------
    notes : list to which sentences for the user are added
    """

    def __init__(self, query: QueryId, nodes: Labels, notes: list[str], wishes: Wishes, wiring: Wiring) -> None:
        self._query, self._nodes, self._notes, self._wiring = query, nodes, notes, wiring
        self._omits_begun = wishes.after_crash != INCOMPLETE
        self._defers = wishes.on_miss == DEFER
        self._is_bounded = wishes.latency_ms is not None
        self._profiles: dict[str, Points] = {}
        self._empty: list[str] = []
        self._never = False
        """True if some conditions can never be true, on any node."""

    def sink(self, lowered: LoweredQuery, params: SinkParams, place: NodeId) -> None:
        """Adds all operators up to the sink, and the sink."""
        branches = self._emit(lowered.relation, place)
        if not branches:
            if self._never or not self._empty:
                raise QueryError("no row can come: the conditions are never true", hint="leave out the condition that is never true")
            reason = "; ".join(dict.fromkeys(self._empty))
            raise QueryError(f"no row can come: {reason}", hint=f"living nodes: {_listed(self._described())}")
        self._wiring.add(params, lowered.schema, None, [branches], place, place)

    def profile(self) -> tuple[ProfilePoint, ...]:
        """Returns the target points of all sources; a source with one rate has it at all points."""
        return together(self._profiles)

    def _described(self) -> list[str]:
        """Lists the living nodes with their labels, `a (region=eu)`, for messages about conditions on labels."""
        labels = {node: ", ".join(f"{label}={value}" for label, value in sorted(self._nodes[node].items())) for node in sorted(self._nodes)}
        return [f"{node} ({text})" if text else node for node, text in labels.items()]

    def _emit(self, relation: Relation, top: NodeId | None = None) -> list[OperatorSpec]:
        """Adds the operators of a relation and returns those whose outputs together are its stream; none if it can have no row.

        `top` is the sink's node if the stream goes straight into the sink.
        """
        match relation:
            case Scan():
                return [self._source(relation.source, node) for node in self._hosts(relation.source)]
            case Select(input=Scan() as scan):
                return self._emit_map_of_source(relation, scan, top)
            case Select():
                return self._emit_map(relation, top)
            case Union():
                return [branch for part in relation.inputs for branch in self._emit(part, top)]
            case Window():
                return self._emit_window(relation)
            case Top() | Over() | Assigned() | Deduplicate():
                return self._emit_rows_of_windows(relation)
            case Match():
                return self._emit_match(relation)
            case Unnest():
                return self._emit_unnest(relation)
            case Numbered():
                raise relation.refusal
            case Apply():
                return self._emit_apply(relation)
            case Join():
                return self._emit_join(relation)
            case Lookup():
                return self._emit_lookup(relation)

    def _hosts(self, source: SourceDefinition) -> list[NodeId]:
        hosts = source.hosts(self._nodes)
        absent = source.absent(self._nodes)
        if absent:
            self._note(f"source {source.name}: node {_listed(absent)} is not alive; planned without it")
        if not hosts:
            wanted = ", ".join(f"{label}={value}" for label, value in source.labels)
            where = f"no living node has {wanted}" if wanted else f"{_listed(absent)} is not alive"
            self._empty.append(f"source {source.name} runs on no node: {where}")
        return hosts

    def _note(self, note: str) -> None:
        if note not in self._notes:
            self._notes.append(note)

    def _source(self, source: SourceDefinition, node: NodeId) -> OperatorSpec:
        params = source.params
        operator = self._wiring.add(params, source.columns, source.time_column, [], node, node)
        self._wiring.rates[operator.id] = rate = source_rate(source)
        if self._is_bounded and not is_rate_told(source):
            self._note(
                f"the predicted latency assumes {rate:g} rows/s of source {source.name}; declare estimated_rows_per_second in CREATE SOURCE"
            )
        if source.profile:
            self._profiles[operator.id] = source.profile
        return operator

    def _emit_map_of_source(self, select: Select, scan: Scan, top: NodeId | None) -> list[OperatorSpec]:
        """Adds a filter and projection on each node that is not pruned, or a single one for all nodes if it makes the stream wider."""
        source = scan.source
        made: list[tuple[NodeId, MapParams]] = []
        wanted = {c.name for c in source.columns}
        hidden_used = any(name not in wanted for name in columns_of([value for _, value, _ in select.columns]))
        hosts = self._hosts(source)
        for node in hosts:
            params = self._map_on(select, scan, node)
            if params is not None:
                made.append((node, params))
        if hosts and not made and _is_never(select.conditions):
            self._never = True
        elif hosts and not made:
            self._empty.append(f"the conditions leave out every node of source {source.name}")
        if not made:
            return []
        widens = map_bytes_ratio(made[0][1], source.columns, select.schema) > 1.0
        alike = all(params == made[0][1] for _, params in made)
        if widens and alike and not hidden_used:
            inputs = [self._source(source, node) for node, _ in made]
            return [self._wiring.add(made[0][1], select.schema, time_of(select), [inputs], top)]
        branches = []
        for node, params in made:
            operator = self._source(source, node)
            branches.append(
                operator
                if _is_identity(params, source.columns)
                else self._wiring.add(params, select.schema, time_of(select), [[operator]], node)
            )
        return branches

    def _map_on(self, select: Select, scan: Scan, node: NodeId) -> MapParams | None:
        """Returns the filter and projection for one node, with the node's labels substituted; None if no row would pass."""
        declared = {column.name for column in scan.source.columns}
        known = known_columns(scan.source, node, self._nodes[node])
        values: dict[str, Expression] = {name: Literal(known.get(name), ColumnType.TEXT) for name in scan.hidden}
        certain = dict(values)
        if scan.source.everywhere:
            certain.update({name: Literal(known[name], ColumnType.TEXT) for name in ("node", "region") if name in declared})
        predicate = conjoin(fold(substitute(condition, certain)) for condition in select.conditions)
        predicate = None if predicate is None else fold(predicate)
        if isinstance(predicate, Literal) and predicate != TRUE:
            return None
        columns = tuple((name, fold(substitute(value, values))) for name, value, _ in select.columns)
        return MapParams(None if predicate == TRUE else predicate, columns)

    def _emit_map(self, select: Select, top: NodeId | None) -> list[OperatorSpec]:
        branches = self._emit(select.input)
        predicate = conjoin(select.conditions)
        if not branches or (isinstance(predicate, Literal) and predicate != TRUE):
            return []
        params = MapParams(predicate, tuple((name, value) for name, value, _ in select.columns))
        widens = map_bytes_ratio(params, select.input.schema, select.schema) >= 1.0
        return [self._wiring.add(params, select.schema, time_of(select), [branches], top if widens else None)]

    def _emit_window(self, window: Window) -> list[OperatorSpec]:
        branches = self._emit(window.input)
        if not branches:
            return []
        keys = tuple((name, value) for name, value, _ in window.keys)
        aggregates = tuple(aggregate for aggregate, _ in window.aggregates)
        time, lateness_us, omits = window.time_column, window.lateness_us, self._omits_begun
        params: Params = WindowParams(time, window.size_us, window.slide_us, keys, aggregates, lateness_us, omits_begun=omits)
        if window.session:
            params = SessionParams(time, window.size_us, keys, aggregates, lateness_us, omits_begun=omits)
        return [self._wiring.add_keyed(params, window, [branches])]

    def _emit_rows_of_windows(self, relation: Top | Over | Assigned | Deduplicate) -> list[OperatorSpec]:
        branches = self._emit(relation.input)
        if not branches:
            return []
        params: Params
        match relation:
            case Top(time_column=time, order=order, ties=ties, limit=limit, partition=partition, number=number):
                params = TopParams(time, order, ties, limit, partition, number, self._omits_begun)
            case Over(time_column=time, partition=partition, ties=ties, preceding=preceding):
                aggregates = tuple(aggregate for aggregate, _ in relation.aggregates)
                params = OverParams(time, partition, ties, aggregates, preceding, self._omits_begun)
            case Assigned(time_column=time, size_us=size, slide_us=slide, lateness_us=lateness):
                params = AssignParams(time, size, slide, lateness)
            case Deduplicate(time_column=time, keys=keys, order=order, ties=ties):
                params = DeduplicateParams(
                    time, keys, order, ties, relation.span_us, relation.session, relation.lateness_us, self._omits_begun
                )
        return [self._wiring.add_keyed(params, relation, [branches])]

    def _emit_match(self, match: Match) -> list[OperatorSpec]:
        branches = self._emit(match.input)
        return [self._wiring.add_keyed(match.params, match, [branches])] if branches else []

    def _emit_unnest(self, unnest: Unnest) -> list[OperatorSpec]:
        branches = self._emit(unnest.input)
        if not branches:
            return []
        assert isinstance(unnest.array, Column)
        assert unnest.kept is not None
        params = UnnestParams(unnest.array.name, unnest.kind, unnest.element, unnest.kept, unnest.ordinal)
        return [self._wiring.add(params, unnest.schema, time_of(unnest), [branches], None)]

    def _emit_apply(self, apply: Apply) -> list[OperatorSpec]:
        branches = self._emit(apply.input)
        if not branches:
            return []
        # A function that is not deterministic is not shared: the query is part of its signature.
        place = "" if apply.function.deterministic else self._query
        function = apply.function
        if self._defers and function.commutes and function.partition:
            function = msgspec.structs.replace(function, defers=True)
        return [self._wiring.add(function, apply.schema, time_of(apply), [branches], None, place)]

    def _emit_join(self, join: Join) -> list[OperatorSpec]:
        sides = [self._emit(join.left), self._emit(join.right)]
        if not sides[0] or not (sides[1] or join.outer):
            return []
        if not sides[1] and join.window is None:
            return self._emit_left_alone(join, sides[0])
        types = types_of(join.right)
        left_keys, right_keys = (tuple(key[side] for key in join.keys) for side in (0, 1))
        residual = conjoin(join.residual)
        outer = tuple(types[inner] for _, side, inner in join.columns if side == 1) if join.outer else None
        apart = {source.name for source in sources_of(join.left)}.isdisjoint(source.name for source in sources_of(join.right))
        params: Params
        if join.window is not None:
            size, slide, lateness = join.window
            times = join.left_time, join.right_time
            params = WindowJoinParams(
                *times, left_keys, right_keys, size, slide, join.columns, residual, outer, lateness, apart, self._omits_begun
            )
        else:
            span = join.before_us, join.after_us
            times = join.left_time, join.right_time
            params = JoinParams(*times, left_keys, right_keys, *span, join.columns, residual, outer, apart, self._omits_begun)
        return [self._wiring.add_keyed(params, join, sides)]

    def _emit_lookup(self, lookup: Lookup) -> list[OperatorSpec]:
        """Adds a lookup. The table has one source, on the node of its file, and is sent whole from there."""
        branches = self._emit(lookup.left)
        if not branches:
            return []
        table = lookup.table
        hosts = self._hosts(table)
        if len(hosts) != 1:
            where = (
                f"it has {len(hosts)} files, on {_listed(hosts)}"
                if hosts
                else f"its node {_listed(table.absent(self._nodes))} is not alive"
            )
            hint = (
                "name one node that is alive in its definition: nodes = 'NODE'; or leave out nodes and labels, for the agent that takes it"
            )
            raise QueryError(f"nothing can be looked up in table {table.name}: {where}", hint=hint)
        params = msgspec.structs.replace(table.params, is_table=True)
        source = self._wiring.add(params, sent_columns(table.columns), None, [], hosts[0], hosts[0])
        self._wiring.rates[source.id] = ROWS_PER_S if table.rows_per_s is None else table.rows_per_s
        left_keys, right_keys = (tuple(key[side] for key in lookup.keys) for side in (0, 1))
        types = {column.name: column.type for column in table.columns}
        outer = tuple(types[inner] for _, side, inner in lookup.columns if side == 1) if lookup.outer else None
        join = LookupParams(left_keys, right_keys, lookup.columns, conjoin(lookup.residual), outer)
        return [self._wiring.add(join, lookup.schema, time_of(lookup), [branches, [source]], None)]

    def _emit_left_alone(self, join: Join, branches: list[OperatorSpec]) -> list[OperatorSpec]:
        """Adds a left join whose right side has no row. Rows without an event time are late, as in any join."""
        types = types_of(join.right)
        columns = tuple((name, Literal(None, types[inner]) if side else Column(inner)) for name, side, inner in join.columns)
        timed = Call("not", (Call("is_null", (Column(join.left_time),)),))
        return [self._wiring.add(MapParams(timed, columns), join.schema, time_of(join), [branches], None)]


def _is_never(conditions: Sequence[Expression]) -> bool:
    predicate = conjoin(fold(condition) for condition in conditions)
    predicate = None if predicate is None else fold(predicate)
    return isinstance(predicate, Literal) and predicate != TRUE


def _is_identity(params: MapParams, columns: Schema) -> bool:
    same = tuple((column.name, Column(column.name)) for column in columns)
    return params.predicate is None and params.columns == same


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
