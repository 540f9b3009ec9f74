"""Commands that show the state of an agent and its overlay: status, members, rtt, operators, queries."""

from collections import Counter
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from sbon.cli.client import ControlClient, RefusedError, find_socket
from sbon.cli.options import Json, Socket, Wide
from sbon.cli.output import (
    amount,
    count,
    number,
    pairs,
    print_json,
    print_note,
    print_record,
    print_table,
    say,
    share,
    span,
    step_order,
)
from sbon.cli.tables import Column, Shorten
from sbon.cost_space.coordinate import Coordinate, estimated_rtt_ms
from sbon.query.catalog import did_you_mean

Rows = list[list[str]]

MEMBER_COLUMNS = (
    Column("name"),
    Column("status", keep=True),
    Column("rtt ms", right=True),
    Column("estimated ms", right=True),
    Column("labels", shorten=Shorten.LIST),
    Column("address"),
    Column("load ms", right=True, wide=True),
)
OPERATOR_COLUMNS = (
    Column("operator"),
    Column("kind", wide=True),
    Column("state", keep=True),
    Column("rows/s in", right=True),
    Column("rows/s out", right=True),
    Column("queued", right=True),
    Column("out", right=True, wide=True),
    Column("late", right=True, wide=True),
    Column("left out", right=True, wide=True),
    Column("kept rows", right=True, wide=True),
    Column("kept", right=True, wide=True),
    Column("moved", right=True, wide=True),
    Column("CPU ns/row", right=True, wide=True),
    Column("age p99 ms", right=True, wide=True),
    Column("what it does", shorten=Shorten.END, keep=True),
)
QUERY_COLUMNS = (
    Column("query"),
    Column("id", wide=True),
    Column("former id", wide=True),
    Column("state", keep=True),
    Column("rows out", right=True),
    Column("operators on", shorten=Shorten.LIST),
    Column("sink at"),
    Column("99 % ms (predicted)", right=True, wide=True),
    Column("late", right=True, wide=True),
    Column("left out", right=True, wide=True),
    Column("lost", right=True, wide=True),
    Column("in transit", right=True, wide=True),
    Column("sql", shorten=Shorten.END, keep=True),
)
HISTORY_COLUMNS = (
    Column("time (UTC)"),
    Column("query", keep=True),
    Column("event", keep=True),
    Column("lost", shorten=Shorten.END),
    Column("operators", shorten=Shorten.LIST),
    Column("why", shorten=Shorten.END, keep=True),
)
STATUSES = ("alive", "suspect", "failed", "left")


def register(app: typer.Typer) -> None:
    """Adds the commands to the program."""
    for command in (status, members, rtt, operators, queries):
        app.command()(command)


def status(socket: Socket = None, json: Json = False) -> None:
    """Show the state of this agent.

    Its name and address, the members that it knows, its coordinate, its operators and queries, and its counters.
    """
    with ControlClient(find_socket(socket)) as agent:
        result = agent.ask("status")
    if json:
        print_json(result)
    else:
        print_record(status_rows(result))


def members(
    socket: Socket = None,
    json: Json = False,
    wide: Wide = False,
    status: Annotated[
        str | None, typer.Option(metavar="STATUS", help="Only this status: alive, suspect, failed or left.", show_default=False)
    ] = None,
    near: Annotated[
        str | None, typer.Option(metavar="NODE", help="Show round trips from this node, not from this agent.", show_default=False)
    ] = None,
) -> None:
    """List the agents that this one knows, nearest first."""
    if status not in (None, *STATUSES):
        raise typer.BadParameter(f"no member is {status}, expected one of {', '.join(STATUSES)}")
    with ControlClient(find_socket(socket)) as agent:
        result = agent.ask("members")
    if near is not None:
        result = seen_from(near, result)
    result = sorted((m for m in result if status in (None, m["status"])), key=_nearness)
    if json:
        print_json(result)
    else:
        print_table(MEMBER_COLUMNS, member_rows(result), empty="no members", wide=wide)


def seen_from(node: str, members: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the members with the RTTs that their coordinates predict from another node; only our own are measured.

    Raises
    ------
    RefusedError
        There is no such member, or its coordinate is not known.
    """
    there = next((member["coordinate"] for member in members if member["name"] == node), None)
    if there is None:
        names = [member["name"] for member in members]
        if node in names:
            raise RefusedError(f"the coordinate of {node} is not known yet; ask again when it has been heard from")
        raise RefusedError(f"there is no member {node}; {did_you_mean(node, names) or '`sbon members` lists them'}")
    origin = _coordinate(there)
    seen = []
    for member in members:
        here = member.get("coordinate")
        estimated = None if here is None else 0.0 if member["name"] == node else estimated_rtt_ms(origin, _coordinate(here))
        seen.append({**member, "estimated_rtt_ms": estimated, "measured_rtt_ms": None})
    return seen


def _coordinate(told: dict[str, Any]) -> Coordinate:
    return Coordinate(tuple(told["vector"]), told["height_ms"], told["error"])


def rtt(
    a: Annotated[str, typer.Argument(metavar="A", help="A node.")],
    b: Annotated[str | None, typer.Argument(metavar="B", help="Another node; this agent's own if left out.", show_default=False)] = None,
    socket: Socket = None,
    json: Json = False,
) -> None:
    """Show the round trip between two nodes.

    The one that their coordinates predict and, to or from this agent, the measured one.

    \b
    Examples:
      sbon rtt tokyo-1           # from this agent to tokyo-1
      sbon rtt tokyo-1 paris-2   # between two others
    """
    with ControlClient(find_socket(socket)) as agent:
        result = agent.ask("rtt", a=a, b=b)
    if json:
        print_json(result)
        return
    measured = result.get("measured_rtt_ms")
    tail = f", measured {number(measured)} ms" if measured is not None else ""
    say(f"{result['a']} - {result['b']}: estimated {number(result.get('estimated_rtt_ms'))} ms{tail}{_error(result)}")


def operators(socket: Socket = None, json: Json = False, wide: Wide = False) -> None:
    """List the operators on this agent, with their rates."""
    with ControlClient(find_socket(socket)) as agent:
        result = agent.ask("operators")
    if json:
        print_json(result)
    else:
        print_table(OPERATOR_COLUMNS, operator_rows(result), empty="no operators on this agent", wide=wide)
        _print_notes(sorted(result, key=step_order), {operator["id"]: operator["id"] for operator in result})


def queries(
    socket: Socket = None,
    json: Json = False,
    wide: Wide = False,
    history: Annotated[bool, typer.Option("--history", help="Show the events of each query, oldest first.")] = False,
) -> None:
    """List queries and where their operators run.

    With --history: where operators were placed and moved, which were lost in a crash and run again, and what that cost. The home of a
    query keeps the latest hundred events of the query, as long as the home runs and `sbon queries` shows the query.
    """
    with ControlClient(find_socket(socket)) as agent:
        result = agent.ask("queries", history=True) if history else agent.ask("queries")
    if json:
        print_json(result)
    elif history:
        print_table(HISTORY_COLUMNS, history_rows(result), empty="no events of queries are known", wide=wide)
    else:
        print_table(QUERY_COLUMNS, query_rows(result), empty="no queries; submit one with `sbon sql`", wide=wide)
        _print_notes(result, query_names(result))


def _print_notes(told: list[dict[str, Any]], names: dict[str, str]) -> None:
    """Prints notes on operators or queries below the table: reasons, and left-out rows that these do not mention."""
    for one in told:
        if one.get("reason"):
            print_note(f"{names[one['id']]} is {one['state']}: {one['reason']}")
    for one in told:
        if (dropped := one.get("dropped_rows")) and not one.get("misfits"):
            print_note(f"{names[one['id']]} has left out {count(dropped)} {'row' if dropped == 1 else 'rows'} that could not be used")


def status_rows(result: dict[str, Any]) -> list[tuple[str, str]]:
    """Returns names and values for `status`."""
    known = result.get("members", {})
    coordinate = result.get("coordinate") or {}
    vector = ", ".join(number(x) for x in coordinate.get("vector", ()))
    rows = [
        ("name", result["name"]),
        ("address", result["address"]),
        ("status", result.get("status", "-")),
        ("labels", pairs(result.get("labels", {}))),
        ("version", str(result.get("version", "-"))),
        ("up", span(result.get("uptime_s"))),
        ("members", ", ".join(f"{known[state]} {state}" for state in STATUSES if known.get(state)) or "none"),
        ("coordinate", f"({vector}) ms, height {number(coordinate.get('height_ms'))} ms" if coordinate else "-"),
        ("load", f"{number(coordinate.get('load_ms'))} ms"),
        ("error estimate", share(coordinate.get("error"))),
        ("median error", share(result.get("median_relative_error"))),
        ("operators", count(_number_of(result.get("operators")))),
        ("queries", count(_number_of(result.get("queries")))),
        ("migrations", count(_number_of(result.get("migrations")))),
        ("event loop late", _lag(result.get("loop_lag"))),
        ("waits for a core", _processor_waits(result.get("processor_waits_ms"))),
        ("data directory", str(result.get("data_dir", "-"))),
    ]
    memory = result.get("memory")
    if memory:
        rows.append(("state of operators", f"{amount(memory['state_bytes'], 'B')} of {amount(memory['limit_bytes'], 'B')}"))
    spill = result.get("spill")
    if spill:
        rows.append(("on disk for far ends", f"{amount(spill['used_bytes'], 'B')} of {amount(spill['limit_bytes'], 'B')}"))
    if result.get("problem"):
        rows.insert(3, ("problem", result["problem"]))
    return rows + [(name.replace("_", " "), count(value)) for name, value in sorted(result.get("counters", {}).items()) if value]


def member_rows(result: list[dict[str, Any]]) -> Rows:
    """Returns the rows of the table of `members`."""
    return [
        [
            member["name"],
            member["status"],
            number(member.get("measured_rtt_ms")),
            number(member.get("estimated_rtt_ms")),
            pairs(member.get("labels", {})),
            member["address"],
            number((member.get("coordinate") or {}).get("load_ms")),
        ]
        for member in result
    ]


def operator_rows(result: list[dict[str, Any]]) -> Rows:
    """Returns the rows of the table of `operators`."""
    return [
        [
            operator["id"],
            operator["kind"],
            operator["state"],
            number(operator.get("rows_per_s_in")),
            number(operator.get("rows_per_s_out")),
            count(operator.get("queue_batches")),
            amount(operator.get("bytes_per_s_out"), "B/s"),
            count(operator.get("late_rows")),
            count(operator.get("dropped_rows")),
            count(operator.get("state_rows")),
            amount(operator.get("state_bytes"), "B"),
            count(operator.get("migrations")),
            number(operator.get("cpu_ns_per_row")),
            number((operator.get("latency") or {}).get("p99_ms")),
            operator["text"],
        ]
        for operator in sorted(result, key=step_order)
    ]


def query_rows(result: list[dict[str, Any]]) -> Rows:
    """Returns the rows of the table of `queries`."""
    names = query_names(result)
    return [
        [
            names[query["id"]],
            query["id"],
            query.get("former") or "-",
            query["state"],
            count(query.get("rows_out")),
            _places(query.get("operators", [])),
            query.get("sink_node") or "-",
            _latency(query.get("prediction")),
            count(query.get("late_rows")),
            count(query.get("dropped_rows")),
            lost_text(query.get("lost_rows"), query.get("lost") or []),
            amount(query.get("network_usage"), "B"),
            " ".join((query.get("sql") or "-").split()),
        ]
        for query in result
    ]


def history_rows(result: list[dict[str, Any]]) -> Rows:
    """Returns the rows of the table of `queries --history`: the events of all queries, oldest first."""
    names = query_names(result)
    events = [(happening, query) for query in result for happening in query.get("history", ())]
    return [
        [
            f"{datetime.fromtimestamp(happening['at_wall_s'], UTC):%Y-%m-%d %H:%M:%S}",
            names[query["id"]],
            happening["event"],
            lost_text(happening["rows"], [happening]) if happening["event"] == "recovered" else "-",
            _changes(happening["operators"]) or "-",
            happening["reason"] or "-",
        ]
        for happening, query in sorted(events, key=lambda event: event[0]["at_wall_s"])
    ]


def _changes(operators: list[dict[str, Any]]) -> str:
    """Formats where operators went: `1@ams`, `2@ams>nyc`, with the number of each in its query."""
    told = []
    for operator in operators:
        before, node = operator["from"], operator["node"]
        places = before if node is None else node if before in (None, node) else f"{before}>{node}"
        told.append(f"{operator['id'].rpartition('.')[2]}@{places or '?'}")
    return " ".join(told)


def lost_text(rows: int | None, recoveries: list[dict[str, Any]]) -> str:
    """Formats the losses of a query: rows, windows that are left out, and seconds until lost operators ran again.

    Examples
    --------
    >>> lost_text(12, [{"seconds": 4.25, "windows": 2}, {"seconds": 1.0, "windows": None}])
    '12 rows, 2+ windows, 5.2 s'
    >>> lost_text(0, []), lost_text(1, [])
    ('0', '1 row')
    """
    told = []
    if rows:
        told.append(f"{count(rows)} {'row' if rows == 1 else 'rows'}")
    windows = [recovery.get("windows", 0) for recovery in recoveries]
    known = sum(filter(None, windows))
    if known or None in windows:
        told.append(f"{count(known)}{'+' if None in windows else ''} {'window' if windows == [1] else 'windows'}")
    if recoveries:
        told.append(f"{sum(recovery['seconds'] for recovery in recoveries):.1f} s")
    return ", ".join(told) or "0"


def _latency(told: dict[str, Any] | None) -> str:
    """Formats the measured 99th percentile of a query's latency, and the predicted one."""
    if told is None:
        return "-"
    measured = (told.get("measured") or {}).get("p99_ms")
    return f"{number(measured)} ({number(told['p99_ms']) if told['p99_ms'] is not None else 'no end'})"


def query_names(result: list[dict[str, Any]]) -> dict[str, str]:
    """Returns the display name of each query, by its id: its name, or the id if it has no name or shares it with others."""
    named = Counter(query.get("name") for query in result)
    return {query["id"]: query["name"] if query.get("name") and named[query["name"]] == 1 else query["id"] for query in result}


def _places(placed: list[dict[str, Any]]) -> str:
    """Returns the nodes that run unpinned operators, whose place the overlay has chosen."""
    free = [operator for operator in placed if not operator.get("pinned")]
    return " ".join(sorted({f"{operator['node']}{'(lost)' if operator.get('lost') else ''}" for operator in free})) or "-"


def _number_of(value: Any) -> float | None:
    return len(value) if isinstance(value, list | dict) else value


def _nearness(member: dict[str, Any]) -> tuple[float, str]:
    for key in ("measured_rtt_ms", "estimated_rtt_ms"):
        if member.get(key) is not None:
            return float(member[key]), member["name"]
    return float("inf"), member["name"]


def _processor_waits(told: dict[str, float] | None) -> str:
    return "-" if not told else f"{number(told['mean'], 1)} ms (mean), {number(told['longest'], 1)} ms at most in the last minute"


def _lag(lag: dict[str, Any] | None) -> str:
    """Formats how late the event loop's timers have been."""
    return f"median {number(lag['p50_ms'])}, p99 {number(lag['p99_ms'])}, at most {number(lag['max_ms'])} ms" if lag else "-"


def _error(result: dict[str, Any]) -> str:
    value = result.get("error_estimate")
    return f" (expect the estimate to be off by {share(value)})" if value is not None else ""
