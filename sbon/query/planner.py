"""Turns statements into plans: operators, the nodes where some of them must run, and the links between them."""

from collections.abc import Sequence
from dataclasses import replace

from sbon.errors import QueryError
from sbon.extensions import NOTHING, Extensions
from sbon.query.binder import bind
from sbon.query.catalog import Catalog, did_you_mean
from sbon.query.estimate import estimate
from sbon.query.instances import NO_KEYS
from sbon.query.lowering import lower_query
from sbon.query.moves import exchanged_again
from sbon.query.options import AUTO, WINDOW
from sbon.query.params.kinds import keeps_state
from sbon.query.params.rowwise import FunctionParams
from sbon.query.params.source import SinkParams
from sbon.query.plan import DEFER, UNCHANGED, Build, Changed, OperatorSpec, Plan, after_crash
from sbon.query.plan_builder import Labels, PlanBuilder
from sbon.query.plan_wiring import Wiring
from sbon.query.reads import with_reads
from sbon.query.sql import CreateSink, SelectQuery
from sbon.query.text import describe
from sbon.types import NodeId, QueryId


def plan(
    statement: SelectQuery | CreateSink,
    catalog: Catalog,
    nodes: Labels,
    here: NodeId,
    query: QueryId,
    *,
    notes: list[str] | None = None,
    extensions: Extensions = NOTHING,
) -> Plan:
    """Plans a query.

    Parameters
    ----------
    statement : a SELECT, whose sink is `tail` at `here`, or a CREATE SINK
    catalog : sources and views
    nodes : labels of the living nodes, by node
    here : the agent that took the statement
    query : the new query's id
    extensions : functions that the query may call
    notes : list to which sentences for the user are added, such as on named nodes that are not alive

    Returns
    -------
    Plan
        Operators upstream first, the sink last; rates as expected from declarations.

    Raises
    ------
    QueryError
        The query is not of the dialect, names something that does not exist, or no node has rows for it; points at the place.
    """
    return planning(statement, catalog, nodes, here, query, notes=notes, extensions=extensions)[0]


def planning(
    statement: SelectQuery | CreateSink,
    catalog: Catalog,
    nodes: Labels,
    here: NodeId,
    query: QueryId,
    *,
    notes: list[str] | None = None,
    extensions: Extensions = NOTHING,
    changed: Changed = UNCHANGED,
) -> tuple[Plan, Build]:
    """Plans a query like `plan`; returns also a function that plans it with other numbers of instances, from the same catalogue.

    Parameters
    ----------
    changed : choices that were made for an earlier plan of the statement
    """
    try:
        build = _planning(statement, catalog, nodes, here, query, [] if notes is None else notes, extensions, changed)
        return build(()), build
    except QueryError as error:
        if error.line:
            raise
        text = (statement if isinstance(statement, SelectQuery) else statement.query).text
        raise text.error(max(0, text.whole.find(statement.sql)), error.message, error.hint) from error


def _planning(
    statement: SelectQuery | CreateSink,
    catalog: Catalog,
    nodes: Labels,
    here: NodeId,
    query: QueryId,
    notes: list[str],
    extensions: Extensions,
    changed: Changed,
) -> Build:
    bound, wishes = bind(statement, catalog, nodes, extensions)
    if changed.instances:
        wishes = replace(wishes, instances=changed.instances)
    lowered = lower_query(bound)
    columns = None if lowered.is_plain else lowered.columns
    instances = 1 if wishes.instances is None else wishes.instances
    if isinstance(statement, CreateSink):
        name, sql = statement.name, statement.sql
        sink = SinkParams(name, statement.connector, statement.options, columns)
        place = statement.node if statement.node is not None else here
    else:
        name, sql, place = query, statement.sql, here
        sink = SinkParams(query, "tail", (), columns)
    if place not in nodes:
        line, column = statement.places.get("node", (0, 0))
        raise QueryError(f"the sink's node {place} is not alive", line=line, column=column, hint=did_you_mean(place, nodes))

    def build(numbers: Sequence[int], turns_us: Sequence[int] = (), /) -> Plan:
        wiring = Wiring(query, wishes, numbers, turns_us)
        builder = PlanBuilder(query, nodes, notes, wishes, wiring)
        builder.sink(lowered, sink, place)
        if wishes.dealing == WINDOW and instances != 1 and not wiring.windows_dealt:
            line, column = getattr(statement, "places", {}).get("dealing", (0, 0))
            what = "the query has no pattern whose windows could be dealt"
            raise QueryError(f"dealing = '{WINDOW}', but {what}", line=line, column=column, hint="write instances = 2 beside a pattern")
        if instances != 1 and not wiring.dealt:
            line, column = getattr(statement, "places", {}).get("instances", (0, 0))
            asked = "instances = 'auto'" if instances == AUTO else f"{instances} instances"
            raise QueryError(f"{asked}, but {NO_KEYS}", line=line, column=column, hint="leave instances out, or group by a key")
        if wishes.after_crash is not None and after_crash(wiring.operators) is None:
            line, column = getattr(statement, "places", {}).get("after_crash", (0, 0))
            raise QueryError(
                "after_crash, but the query has no windows, sessions, joins or OVER",
                line=line,
                column=column,
                hint="leave it out",
            )
        if wishes.on_miss == DEFER:
            _check_defer(wiring.operators, getattr(statement, "places", {}).get("on_miss", (0, 0)))
        operators, links, sizings = tuple(wiring.operators), tuple(wiring.links), tuple(wiring.sizings)
        given = Changed(instances=changed.instances)
        made = Plan(query, name, sql, operators, links, wishes.delay_ms, wishes.latency_ms, builder.profile(), sizings, given)
        return estimate(exchanged_again(with_reads(made), changed.exchanges))

    return build


def _check_defer(operators: Sequence[OperatorSpec], place: tuple[int, int]) -> None:
    """Refuses `on_miss = 'defer'` if an operator depends on the order of rows, or no function has keys.

    Raises
    ------
    QueryError
        Rows cannot be put off; points at the option.
    """
    line, column = place
    hint = "take on_miss = 'shed' or 'finish'"
    for spec in operators:
        if (keeps_state(spec.params) or isinstance(spec.params, FunctionParams)) and not getattr(spec.params, "commutes", False):
            what = describe(spec.params)
            raise QueryError(f"on_miss = 'defer', but {what} does not say that its updates commute", line=line, column=column, hint=hint)
    if not any(isinstance(spec.params, FunctionParams) and spec.params.defers for spec in operators):
        raise QueryError("on_miss = 'defer', but the query has no function with keys", line=line, column=column, hint=hint)
