"""Commands that take SQL, or name a query or one of its operators: sql, explain, tail, drop, migrate, replan."""

import contextlib
import difflib
from typing import Annotated, Any

import typer

from sbon.cli.client import ControlClient, RefusedError, find_socket
from sbon.cli.crashes import crash_rows
from sbon.cli.options import Json, Socket, SqlFile, SqlText, Wide, read_sql
from sbon.cli.output import (
    amount,
    json_text,
    number,
    print_error,
    print_json,
    print_note,
    print_now,
    print_sql_error,
    print_table,
    say,
    step_order,
)
from sbon.cli.tables import Column, Shorten
from sbon.cost.explaining import table
from sbon.printable import printable
from sbon.query.ids import is_short_for
from sbon.query.limits import INSTANCES_MAX

QueryName = Annotated[
    str, typer.Argument(metavar="QUERY", help="Id, an unambiguous beginning or end of it, or name, as `sbon queries` lists them.")
]

PLACED_COLUMNS = (Column("operator"), Column("kind"), Column("node", keep=True), Column("reused"))
PLAN_COLUMNS = (
    Column("operator"),
    Column("kind", wide=True),
    Column("node", keep=True),
    Column("why there", shorten=Shorten.END),
    Column("what it does", shorten=Shorten.END, keep=True),
)
CANDIDATE_COLUMNS = (
    Column("operator"),
    Column("candidate", keep=True),
    Column("in transit", right=True),
    Column("load ms", right=True),
)
LINK_COLUMNS = (
    Column("from"),
    Column("to", keep=True),
    Column("latency", right=True),
    Column("rate", right=True),
    Column("rows/s", right=True),
)

CRASH_COLUMNS = (
    Column("host"),
    Column("operators", shorten=Shorten.LIST),
    Column("run again", shorten=Shorten.END, keep=True),
    Column("lost", shorten=Shorten.END, keep=True),
)

LISTED = {"nodes": Shorten.LIST, "remarks": Shorten.END, "reason": Shorten.END, "call": Shorten.END}
"""Columns of listings whose cells may be shortened."""

_READ = """read from it with: sbon sql -c 'SELECT * FROM {name}'"""
_DROP = "drop it with: sbon sql -c 'DROP "
SELECTING = {
    "view": _READ,
    "source": _READ,
    "system stream": _READ,
    "sink": "its query has ended; `sbon queries` lists those that run",
    "operator": "its query is {query}",
    "node": "`sbon queries` lists the queries",
}
"""Hint for following a name that is no query, by its kind."""
DROPPING = {
    "view": _DROP + "VIEW {name}'",
    "source": _DROP + "SOURCE {name}'",
    "system stream": "every agent has it, and nothing ends it",
    "sink": _DROP + "SINK {name}'",
    "operator": "its query is {query}",
    "node": "run `sbon leave` there to take it out of the overlay",
}
"""Hint for ending a name that is no query, by its kind."""

MIGRATE_TIMEOUT_S = 900.0
"""Longest wait for the answer to a migration; longer than migration.copy_timeout_s, which a large state on a slow path may need."""


def register(app: typer.Typer) -> None:
    """Adds the commands to the program."""
    for command in (sql, explain, tail, drop, migrate, replan):
        app.command()(command)


def sql(file: SqlFile = None, command: SqlText = None, socket: Socket = None, json: Json = False, wide: Wide = False) -> None:
    """Submit SQL statements.

    CREATE SOURCE, SINK or MATERIALIZED VIEW, SELECT, DROP; DESCRIBE and SHOW show what exists. Queries run until they are dropped.

    \b
    Examples:
      sbon sql queries.sql
      sbon sql -c "SELECT node, cpu FROM sys.load WHERE cpu > 0.9"
      echo "DROP VIEW busy" | sbon sql -
      sbon sql -c "DESCRIBE sys.load; SHOW SOURCES"
    """
    text, origin = read_sql(file, command)
    result = ask_about_sql("submit", text, origin, socket)
    if json:
        print_json(result)
        return
    for statement in result:
        if "rows" in statement:
            print_listing(statement["columns"], statement["rows"], wide=wide)
            continue
        say(statement["message"])
        if placed := statement.get("operators"):
            rows = [[o["id"], o["kind"], o["node"], "yes" if o.get("reused") else ""] for o in sorted(placed, key=step_order)]
            print_table(PLACED_COLUMNS, rows, wide=wide)


def print_listing(columns: list[str], rows: list[dict[str, Any]], *, wide: bool = False) -> None:
    """Prints the answer to DESCRIBE or SHOW: a table, or the text of a statement as it was written."""
    if columns == ["name", "statement"]:
        for row in rows:
            for line in str(row["statement"]).splitlines():
                say(line)
        return
    shown = [Column(name, shorten=LISTED.get(name, Shorten.NEVER), keep=name in LISTED) for name in columns]
    print_table(shown, [[_listed(row, name) for name in columns] for row in rows], wide=wide)


def _listed(row: dict[str, Any], column: str) -> str:
    """Formats a cell of a listing: list items without commas; a dash for an empty value, and for a query's name that is only its id."""
    text = row[column] or "-"
    if column == "name" and text == row.get("query"):
        return "-"
    return text.replace(", ", " ") if LISTED.get(column) is Shorten.LIST else text


def explain(
    file: SqlFile = None,
    command: SqlText = None,
    socket: Socket = None,
    json: Json = False,
    candidates: Annotated[bool, typer.Option("--candidates", help="Show every node that was considered.")] = False,
    wide: Wide = False,
) -> None:
    """Show how a query would be placed.

    Its operators, where each would go and why, the links, the network usage. Nothing is started. The rate of a link is that of frames
    between two agents, before compression, with 100 batches a second from each source.

    \b
    Examples:
      sbon explain query.sql
      sbon explain --candidates -c "SELECT * FROM sys.probes WHERE rtt_ms > 200"
    """
    text, origin = read_sql(file, command)
    result = ask_about_sql("explain", text, origin, socket)
    if json:
        print_json(result)
    else:
        print_plan(result, candidates=candidates, wide=wide)


def print_plan(plan: dict[str, Any], *, candidates: bool, wide: bool = False) -> None:
    """Prints the tables of `explain`."""
    operators = sorted(plan["operators"], key=step_order)
    rows = [[o["id"], o["kind"], o["node"], _reason(o), o["text"]] for o in operators]
    print_table(PLAN_COLUMNS, rows, title="operators", wide=wide)
    if candidates:
        considered = [
            [
                operator["id"],
                ("> " if c["node"] == operator["node"] else "  ") + c["node"],
                amount(c.get("network_usage"), "B"),
                number(c.get("load_ms")),
            ]
            for operator in operators
            for c in operator.get("candidates") or ()
        ]
        print_table(CANDIDATE_COLUMNS, considered, title="\ncandidates", empty="no operator is free to choose its node", wide=wide)
    links = [
        [
            link["source"],
            link["target"],
            f"{number(link.get('latency_ms'))} ms {'measured' if link.get('latency_measured') else 'estimated'}",
            amount(link.get("rate_bytes_per_s"), "B/s"),
            number(link.get("rate_rows_per_s")),
        ]
        for link in plan.get("links", ())
    ]
    print_table(LINK_COLUMNS, links, title="\nlinks", wide=wide)
    if plan.get("instances"):
        say()
        for one in plan["instances"]:
            print_note(f"instances  {one['text']}")
    if plan.get("prediction") is not None:
        say()
        for line in table(plan["prediction"]):
            print_note(line)
    if (recovery := plan.get("recovery")) is not None:
        print_recovery(recovery, wide=wide)
    usage = plan["network_usage"]
    say()
    say("network usage (bytes in transit; less is better):")
    for name, what in (("here", "as placed"), ("producer", "at the producers"), ("consumer", "at the consumer")):
        if usage.get(name) is not None:
            say(f"  {what:<18}{amount(usage[name], 'B'):>10}{_compared(usage, name)}")
    if plan.get("delay_ms") is not None:
        bound = plan.get("delay_bound_ms")
        say()
        print_note(f"longest path from a source: {number(plan['delay_ms'])} ms" + (f", bound {bound:g} ms" if bound is not None else ""))
    for note in plan.get("notes", ()):
        say()
        print_note(f"note: {note}")


def print_recovery(told: dict[str, Any], *, wide: bool = False) -> None:
    """Prints what a crash of each host would cost, and when its operators would run again."""
    if not told["heals"]:
        say()
        print_note("crashes: operators of a host that crashes are not made again, as engine.heal is off here")
        return
    print_table(CRASH_COLUMNS, crash_rows(told), title="\nif a host crashes", wide=wide)
    least, most = told["detection_s"]
    after = f"; engine.heal_after_s adds {told['after_s']:g} s" if told["after_s"] else ""
    if told.get("windows") is not None:
        what = "are left out" if told["windows"] == "leave_out" else "are answered with the rows that come later"
        print_note(f"windows, sessions and joins that lose rows in a crash {what} (after_crash = '{told['windows']}')")
    print_note(
        f"a crash is noticed after {least:.1f} to {most:.1f} s ({told['detection']}){after}; the rest is placing and making operators"
    )


def tail(
    query: QueryName,
    limit: Annotated[int | None, typer.Option(min=1, help="End after this many rows.", show_default=False)] = None,
    socket: Socket = None,
    json: Json = False,
) -> None:
    """Show a query's rows as they come.

    Until the query ends, or Ctrl-C. With --json, one object per line.

    \b
    Examples:
      sbon tail paris-1.1t95lbp.02
      sbon tail paris-1.1t95lbp.02 --limit 100 --json > rows.ndjson
    """
    with contextlib.suppress(KeyboardInterrupt), ControlClient(find_socket(socket)) as agent:
        query_id = resolve_query(agent, query, SELECTING)
        printer = RowPrinter(as_json=json)
        for batch in agent.stream("tail", query=query_id, limit=limit):
            printer.rows(batch["columns"], batch["rows"])


def drop(query: QueryName, socket: Socket = None, json: Json = False) -> None:
    """Stop a query.

    Operators that other queries share go on.
    """
    with ControlClient(find_socket(socket)) as agent:
        result = agent.ask("drop", query=resolve_query(agent, query, DROPPING))
    if json:
        print_json(result)
    else:
        say(f"dropped {', '.join(result['dropped'])}")


def migrate(
    operator: Annotated[str, typer.Argument(metavar="OPERATOR", help="Its id, as `sbon operators` lists it.")],
    node: Annotated[str, typer.Argument(metavar="NODE", help="Where it should run.")],
    socket: Socket = None,
    json: Json = False,
) -> None:
    """Move an operator from this agent to another, with its state.

    Agents move operators by themselves where it saves network usage; this is for a machine that has to be emptied, or to try it out.
    The agents may move the operator again.

    \b
    Example:
      sbon migrate london.0r7k2x9.01.2 tokyo
    """
    with ControlClient(find_socket(socket), MIGRATE_TIMEOUT_S) as agent:
        try:
            result = agent.ask("migrate", operator=operator, node=node)
        except KeyboardInterrupt:
            print_error(
                f"stopped waiting; the migration of {operator} to {node} continues: `sbon operators` there shows it when it has moved"
            )
            raise
    if json:
        print_json(result)
    elif result["committed"] and not result["outcome"]:
        copied = f"{result['state_bytes']} bytes of state copied in {result['copy_s']:.2f} s before"
        say(f"moved {operator} to {node}: paused {result['pause_s'] * 1000:.0f} ms, {copied}")
    if not result["committed"]:
        raise RefusedError(f"{operator} runs where it was: {result['outcome']}")
    if result["outcome"]:
        raise RefusedError(f"{operator} has moved to {node} and is lost with it: {result['outcome']}; see `sbon queries`")


def replan(
    query: QueryName,
    instances: Annotated[
        int | None,
        typer.Option(min=1, max=INSTANCES_MAX, help="Number for each operator with keys; default: as the rates need.", show_default=False),
    ] = None,
    order: Annotated[bool, typer.Option("--order", help="Look for a better order of its operators instead.")] = False,
    socket: Socket = None,
    json: Json = False,
) -> None:
    """Give a running query another number of instances, or another order of its operators.

    Ask the agent that owns the query. The new operators begin beside the present ones, and take over where windows end; no answer is
    lost or repeated. An order must be better by a fifth, by the measured rates and costs; else the query keeps its own.

    \b
    Examples:
      sbon replan totals --instances 4
      sbon replan totals
      sbon replan totals --order
    """
    with ControlClient(find_socket(socket), MIGRATE_TIMEOUT_S) as agent:
        result = agent.ask("replan", query=resolve_query(agent, query, DROPPING), instances=instances, order=order)
    if json:
        print_json(result)
        return
    where = f"; they take over at event time {result['crosses_at']}" if result["crosses_at"] else ""
    if order:
        say(f"{result['name']}: {result['text']}{where}")
        return
    numbers = ", ".join(map(str, result["instances"]))
    say(f"{result['name']} gets {numbers} instances{where}: `sbon queries --history` shows when they have")


def resolve_query(agent: ControlClient, name: str, instead: dict[str, str]) -> str:
    """Returns the id of the query with this id or name.

    Parameters
    ----------
    instead : hint by kind, if the name is that of something else

    Raises
    ------
    RefusedError
        There is no such query, or several have the name.
    """
    known = agent.ask("queries")
    if any(query["id"] == name for query in known):
        return name
    named = [query["id"] for query in known if query.get("name") == name]
    if len(named) == 1:
        return str(named[0])
    if not named:
        named = [query["id"] for query in known if is_short_for(name, query["id"])]
        if len(named) == 1:
            return str(named[0])
    if named:
        raise RefusedError(f"{len(named)} queries are called {name}; say which by its id: {', '.join(named)}")
    for kind, matches in _other_kinds(agent, known).items():
        if name in matches:
            hint = instead[kind].format(name=name, query=matches[name])
            raise RefusedError(f"{name} is {'an' if kind == 'operator' else 'a'} {kind}, not a query; {hint}")
    names = sorted({text for query in known for text in (query["id"], query.get("name")) if text})
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]}?" if close else "`sbon queries` lists those there are" if names else "this agent knows of none yet"
    raise RefusedError(f"no query is called {name}; {hint}")


def _other_kinds(agent: ControlClient, queries: list[dict[str, Any]]) -> dict[str, dict[str, str]]:
    """Returns the names that are no queries, by kind, each with the query to which it belongs, if any."""
    found: dict[str, dict[str, str]] = {kind: {} for kind in SELECTING}
    for entry in agent.ask("names"):
        found.setdefault(entry["kind"], {})[entry["name"]] = entry["query"] or ""
    found["operator"] = {operator["id"]: query["id"] for query in queries for operator in query.get("operators", ())}
    found["node"] = {member["name"]: "" for member in agent.ask("members")}
    return found


class RowPrinter:
    """Prints rows as they arrive: as NDJSON, or in columns that widen as needed."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._widths: list[int] = []
        self._columns: list[str] = []

    def rows(self, columns: list[str], rows: list[list[Any]]) -> None:
        """Prints more rows, with a header before the first ones."""
        if self._as_json:
            print_now(json_text(dict(zip(columns, row, strict=True))) for row in rows)
            return
        cells = [[cell_text(value) for value in row] for row in rows]
        if columns != self._columns:
            self._columns, self._widths = columns, [0] * len(columns)
            cells.insert(0, [printable(name) for name in columns])
        for row in cells:
            self._widths = [max(width, len(cell)) for width, cell in zip(self._widths, row, strict=True)]
        print_now("  ".join(cell.ljust(width) for cell, width in zip(row, self._widths, strict=True)).rstrip() for row in cells)


def cell_text(value: Any) -> str:
    """Formats a value in a column: floats short, NULL as in SQL, control characters made visible."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.10g}"
    return printable(str(value))


def ask_about_sql(command: str, text: str, origin: str, socket: str | None, **arguments: Any) -> Any:
    """Sends SQL to an agent with a request; prints an error with its place in the SQL.

    Raises
    ------
    typer.Exit
        The agent has refused it, and the reason is printed.
    """
    with ControlClient(find_socket(socket)) as agent:
        try:
            return agent.ask(command, sql=text, **arguments)
        except RefusedError as problem:
            print_sql_error(text, problem, origin)
            raise typer.Exit(1) from None


def _reason(operator: dict[str, Any]) -> str:
    if operator.get("reuse"):
        return f"runs there already ({operator['reuse']})"
    if operator.get("pinned"):
        return "pinned"
    considered = operator.get("candidates") or ()
    if not considered:
        return "chosen"
    best_of = f"best of {len(considered)}"
    chosen = next((c for c in considered if c["node"] == operator["node"]), None)
    least = min(considered, key=lambda c: c.get("network_usage") or 0.0)
    if chosen is None or (chosen.get("network_usage") or 0.0) <= (least.get("network_usage") or 0.0):
        return best_of
    # Not the least usage: then the load decided, if it is lower.
    lighter = (chosen.get("load_ms") or 0.0) < (least.get("load_ms") or 0.0)
    return f"{best_of}: less load than {least['node']}" if lighter else best_of


def _compared(usage: dict[str, Any], name: str) -> str:
    here, there = usage.get("here"), usage[name]
    if name == "here" or not here or not there:
        return ""
    times = there / here
    return f"   {times:,.2f} times as much" if times < 10 else f"   {times:,.0f} times as much"
