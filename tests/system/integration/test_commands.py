"""The `sbon` command against a control socket: output for people and for scripts, exit codes, errors in one line."""

import io
import json
import os
import pty
import signal
import stat
import subprocess
import sys

import msgspec
import pytest

from sbon.cli.__main__ import run
from sbon.cli.client import ControlClient
from sbon.cli.output import rich_lines
from sbon.cli.statements import print_plan
from sbon.cli.tables import Column, table_lines
from sbon.control import ControlReply
from sbon.errors import QueryError
from sbon.sealing import KeyRing
from sbon.supervision.homes import bare_row
from sbon_agent.control import ControlConfig
from tests.canned_agent import MEMBERS, OPERATORS, PLAN, QUERIES, STATUS, FakeAgent, serving


@pytest.fixture
def agent(tmp_path, monkeypatch):
    fake = FakeAgent()
    with serving(tmp_path, fake, ControlConfig()) as server:
        monkeypatch.setenv("SBON_SOCKET", str(server.path))
        yield fake


def sbon(capsys, *arguments: str) -> tuple[int, str, str]:
    code = run(list(arguments))
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["status"], STATUS),
        (["operators"], OPERATORS),
        (["queries"], QUERIES),
        (["members"], [MEMBERS[1], MEMBERS[0]]),
        (["members", "--status", "failed"], [MEMBERS[0]]),
        (["explain", "-c", "SELECT 1"], PLAN),
        (["drop", "q1"], {"dropped": ["q1"]}),
    ],
)
def test_json_is_what_the_agent_said(agent, capsys, arguments, expected):
    code, out, err = sbon(capsys, *arguments, "--json")

    assert (code, json.loads(out), err) == (0, expected, "")


def test_leaving_says_what_was_handed_over_and_what_was_not(agent, capsys):
    stayed = {"operator": "q1.0", "queries": ["q1"], "reason": "it is pinned"}
    agent.answers["leave"] = {"left": True, "moved": 1, "stayed": [stayed]}

    assert sbon(capsys, "leave", "--within", "60")[:2] == (0, "left; 1 operator was handed over\nq1.0 ended with it: it is pinned\n")
    assert agent.asked[-1].arguments == {"within_s": 60.0}
    assert json.loads(sbon(capsys, "leave", "--json")[1]) == agent.answers["leave"]
    assert agent.asked[-1].arguments == {}


def test_status_is_a_short_table(agent, capsys):
    code, out, _ = sbon(capsys, "status")

    assert code == 0
    assert out.splitlines()[:9] == [
        "name               ams1",
        "address            127.0.0.1:7946",
        "status             alive",
        "labels             region=eu site=ams",
        "version            0.1.0",
        "up                 2 h 3 min",
        "members            15 alive, 1 failed",
        "coordinate         (1.0, -2.5, 30.0) ms, height 4.0 ms",
        "load               12.0 ms",
    ]
    assert "datagrams refused  4" in out


@pytest.mark.parametrize(
    ("committed", "outcome", "expected"),
    [
        (True, "", (0, "moved q1.2 to rome: paused 3 ms, 1000 bytes of state copied in 0.50 s before\n", "")),
        (False, "rome failed", (1, "", "sbon: q1.2 runs where it was: rome failed\n")),
        (
            True,
            "rome failed after the decision",
            (1, "", "sbon: q1.2 has moved to rome and is lost with it: rome failed after the decision; see `sbon queries`\n"),
        ),
    ],
)
def test_a_migration_has_moved_it_or_not_or_has_lost_it(agent, capsys, committed, outcome, expected):
    agent.answers["migrate"] = {"committed": committed, "outcome": outcome, "state_bytes": 1000, "copy_s": 0.5, "pause_s": 0.003}
    assert sbon(capsys, "migrate", "q1.2", "rome") == expected


def test_an_interrupted_migration_goes_on(agent, capsys, monkeypatch):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ControlClient, "ask", interrupted)
    code, out, err = sbon(capsys, "migrate", "q1.2", "rome")
    assert (code, out) == (130, "")
    assert "the migration of q1.2 to rome continues" in err


def test_members_are_a_table_nearest_first(agent, capsys):
    assert sbon(capsys, "members")[1].splitlines() == [
        "name     status  rtt ms  estimated ms  labels       address",
        "paris-2  alive      9.5           9.1  region=eu    127.0.0.1:7947",
        "tokyo-1  failed       -             -  region=asia  127.0.0.1:7948",
    ]
    assert sbon(capsys, "members", "--wide")[1].splitlines()[:2] == [
        "name     status  rtt ms  estimated ms  labels       address         load ms",
        "paris-2  alive      9.5           9.1  region=eu    127.0.0.1:7947      3.5",
    ]


def test_members_are_seen_from_another_node_by_their_coordinates(agent, capsys):
    further = {**MEMBERS[1], "name": "rome-1", "coordinate": {"vector": [3.0, 4.0, 0.0], "height_ms": 2.0, "error": 0.1, "load_ms": 0.0}}
    agent.answers["members"] = [*MEMBERS, further]

    code, out, _ = sbon(capsys, "members", "--near", "rome-1", "--json")
    assert code == 0
    assert [(m["name"], m["estimated_rtt_ms"], m["measured_rtt_ms"]) for m in json.loads(out)] == [
        ("rome-1", 0.0, None),
        ("paris-2", 8.0, None),
        ("tokyo-1", None, None),
    ]
    assert sbon(capsys, "members", "--near", "tokyo-1")[0] == 1


def test_degraded_query_shows_its_reason(agent, capsys):
    code, out, _ = sbon(capsys, "queries")

    assert code == 0
    assert out.splitlines() == [
        "query           state     rows out  operators on  sink at  sql",
        "load_by_region  degraded        10  paris-2       ams1     SELECT ...",
        "load_by_region is degraded: tokyo-1 failed and took a source with it",
    ]
    assert sbon(capsys, "queries", "-w")[1].splitlines()[1].split() == (
        ["load_by_region", "q1", "-", "degraded", "10", "paris-2", "ams1", "-", "2", "-", "0", "12.5", "kB", "SELECT", "..."]
    )


def test_a_query_that_waits_after_a_restart_and_one_that_leaves_rows_out_say_why(agent, capsys):
    waits = bare_row("q7", "prices", "waiting", "its source trades is on nyc, which has not been heard from yet", "ams1", "SELECT 1", "q2")
    misfits = [
        {"operator": "q1.0", "node": "ams1", "column": "age", "cause": "is not an integer (BIGINT)", "rows": 3, "text": "", "line": ""}
    ]
    leaves_out = {**QUERIES[0], "state": "running", "reason": "source s: 3 rows left out", "dropped_rows": 3, "misfits": misfits}
    agent.answers["queries"] = [waits, leaves_out]

    out = sbon(capsys, "queries")[1].splitlines()
    assert out[1].split()[:2] == ["prices", "waiting"]
    assert out[3:] == [
        "prices is waiting: its source trades is on nyc, which has not been heard from yet",
        "load_by_region is running: source s: 3 rows left out",
    ]
    assert sbon(capsys, "queries", "--wide")[1].splitlines()[1].split()[:4] == ["prices", "q7", "q2", "waiting"]


def test_a_query_goes_by_its_id_where_its_name_is_that_of_others(agent, capsys):
    agent.answers["queries"] = [{**QUERIES[0], "id": "q1"}, {**QUERIES[0], "id": "q7"}, {**QUERIES[0], "id": "q8", "name": "q8"}]

    assert [line.split()[0] for line in sbon(capsys, "queries")[1].splitlines()[1:4]] == ["q1", "q7", "q8"]


def test_rtt_tells_estimate_and_measurement_apart(agent, capsys):
    assert sbon(capsys, "rtt", "paris-2")[1] == (
        "paris-2 - ams1: estimated 9.1 ms, measured 9.5 ms (expect the estimate to be off by 10.0 %)\n"
    )
    assert sbon(capsys, "rtt", "paris-2", "tokyo-1")[1].startswith("paris-2 - tokyo-1: estimated 9.1 ms (expect")


def test_explain_shows_places_links_and_network_usage(agent, capsys):
    code, out, _ = sbon(capsys, "explain", "--candidates", "-c", "SELECT 1")

    assert code == 0
    assert "q2.1      paris-2  best of 2  window 10 s: avg(cpu)" in out
    assert "> paris-2" in out
    assert "0.0 ms measured" in out
    assert "  at the consumer        250 B   2.50 times as much" in out


def test_explain_says_where_load_has_outweighed_network_usage(capsys):
    operator = {**PLAN["operators"][1], "node": "ams1", "candidates": [dict(c) for c in PLAN["operators"][1]["candidates"]]}

    print_plan({**PLAN, "operators": [operator]}, candidates=False)
    assert "ams1  best of 2  window 10 s: avg(cpu)\n" in capsys.readouterr().out

    operator["candidates"][1]["load_ms"] = 1.0
    print_plan({**PLAN, "operators": [operator]}, candidates=False)
    assert "ams1  best of 2: less load than paris-2  window" in capsys.readouterr().out


def test_sql_file_is_submitted_and_the_places_of_its_operators_shown(agent, capsys, tmp_path):
    (tmp_path / "q.sql").write_text("SELECT region FROM sys.load")

    code, out, _ = sbon(capsys, "sql", str(tmp_path / "q.sql"))

    assert code == 0
    assert agent.asked[-1].arguments == {"sql": "SELECT region FROM sys.load"}
    assert out.splitlines()[0] == "query q2 is running"
    assert out.splitlines()[-1].split() == ["q2.1", "window", "paris-2"]


def test_answers_to_describe_and_show_are_tables(agent, capsys):
    text = {"columns": ["name", "statement"], "rows": [{"name": "v", "statement": "CREATE VIEW v AS\n  SELECT 1"}]}
    table = {"columns": ["column", "type", "remarks"], "rows": [{"column": "ts", "type": "TIMESTAMP", "remarks": None}]}
    agent.answers["submit"] = [{"statement": "show", "name": "v", "message": "", **told} for told in (table, text)]

    out = sbon(capsys, "sql", "-c", "DESCRIBE v; SHOW CREATE VIEW v")[1]
    assert [line.split() for line in out.splitlines()[:2]] == [["column", "type", "remarks"], ["ts", "TIMESTAMP", "-"]]
    assert out.splitlines()[2:] == ["CREATE VIEW v AS", "  SELECT 1"]
    assert json.loads(sbon(capsys, "sql", "--json", "-c", "DESCRIBE v")[1])[0]["rows"] == table["rows"]


def test_rows_that_a_source_could_not_use_are_told_of(agent, capsys):
    agent.answers["queries"] = [{**QUERIES[0], "dropped_rows": 1}, {**QUERIES[0], "id": "q7", "dropped_rows": 0}]
    agent.answers["operators"] = [{**OPERATORS[0], "dropped_rows": 2000}]

    assert sbon(capsys, "queries")[1].splitlines()[-1] == "q1 has left out 1 row that could not be used"
    last = sbon(capsys, "operators")[1].splitlines()[-1]
    assert last == f"{OPERATORS[0]['id']} has left out 2,000 rows that could not be used"


def test_no_statement_at_all_is_wrong_usage(agent, capsys, tmp_path):
    (tmp_path / "empty.sql").write_text(" \n")
    for given, named in ((["-c", ""], "-c"), ([str(tmp_path / "empty.sql")], "empty.sql")):
        for command in ("sql", "explain"):
            code, out, err = sbon(capsys, command, *given)
            assert (code, out) == (2, "")
            assert f"{named}; write a SELECT or a CREATE" in err
    assert agent.asked == []


def test_sql_error_shows_the_line_and_a_caret_under_the_column(agent, capsys, tmp_path):
    path = tmp_path / "q.sql"
    path.write_text("SELECT node,\n\tregoin\nFROM sys.load")

    assert sbon(capsys, "sql", str(path)) == (1, "", f"{path}:2:2: no column regoin; did you mean region?\n   regoin\n   ^\n")


def test_tail_prints_rows_in_columns_and_as_json_lines(agent, capsys):
    assert sbon(capsys, "tail", "load_by_region", "--limit", "2")[1].splitlines() == [
        "region  cpu         alert",
        "eu      0.5         NULL",
        "asia    123456.789  true",
    ]
    assert agent.asked[-1].arguments == {"query": "q1", "limit": 2}
    out = sbon(capsys, "tail", "q1", "--limit", "2", "--json")[1]
    assert json.loads(out.splitlines()[0]) == {"region": "eu", "cpu": 0.5, "alert": None}


@pytest.mark.parametrize("command", ["tail", "drop"])
def test_unknown_query_is_refused_with_the_nearest_name(agent, capsys, command):
    assert sbon(capsys, command, "load_by_regoin") == (1, "", "sbon: no query is called load_by_regoin; did you mean load_by_region?\n")


@pytest.mark.parametrize(
    ("command", "name", "said"),
    [
        ("tail", "busy", "busy is a view, not a query; read from it with: sbon sql -c 'SELECT * FROM busy'"),
        ("tail", "readings", "readings is a source, not a query; read from it with: sbon sql -c 'SELECT * FROM readings'"),
        ("tail", "sys.load", "sys.load is a system stream, not a query; read from it with: sbon sql -c 'SELECT * FROM sys.load'"),
        ("tail", "written", "written is a sink, not a query; its query has ended; `sbon queries` lists those that run"),
        ("tail", "q1.2", "q1.2 is an operator, not a query; its query is q1"),
        ("tail", "paris-2", "paris-2 is a node, not a query; `sbon queries` lists the queries"),
        ("drop", "busy", "busy is a view, not a query; drop it with: sbon sql -c 'DROP VIEW busy'"),
        ("drop", "readings", "readings is a source, not a query; drop it with: sbon sql -c 'DROP SOURCE readings'"),
        ("drop", "sys.load", "sys.load is a system stream, not a query; every agent has it, and nothing ends it"),
        ("drop", "written", "written is a sink, not a query; drop it with: sbon sql -c 'DROP SINK written'"),
        ("drop", "q1.2", "q1.2 is an operator, not a query; its query is q1"),
        ("drop", "paris-2", "paris-2 is a node, not a query; run `sbon leave` there to take it out of the overlay"),
    ],
)
def test_what_is_no_query_is_refused_with_what_to_do_instead(agent, capsys, command, name, said):
    assert sbon(capsys, command, name) == (1, "", f"sbon: {said}\n")


def test_names_are_a_table_and_of_one_kind_if_asked(agent, capsys):
    assert sbon(capsys, "names")[1].splitlines() == [
        "name      kind           created at  query",
        "busy      view           ams1        -",
        "readings  source         ams1        -",
        "sys.load  system stream  -           -",
        "written   sink           paris-2     q9",
    ]
    assert [entry["name"] for entry in json.loads(sbon(capsys, "names", "--kind", "stream", "--json")[1])] == ["sys.load"]
    code, _, err = sbon(capsys, "names", "--kind", "table")
    assert code == 2
    assert "there is no kind table, expected one of source, view, sink, stream" in err


def test_names_of_members_and_their_statuses_are_checked(agent, capsys):
    assert sbon(capsys, "members", "--near", "paris-3")[::2] == (1, "sbon: there is no member paris-3; did you mean paris-2?\n")
    code, _, err = sbon(capsys, "members", "--status", "aliv")
    assert code == 2
    assert "no member is aliv, expected one of alive, suspect, failed, left" in err


def test_sql_in_the_place_of_a_file_is_recognised(agent, capsys):
    code, _, err = sbon(capsys, "sql", "SELECT 1")
    assert code == 2
    assert "cannot read SELECT 1: No such file or directory; give SQL itself with -c" in err


def test_name_of_several_queries_is_refused_with_their_ids(agent, capsys):
    agent.answers["queries"] = [{**QUERIES[0], "id": "q1"}, {**QUERIES[0], "id": "q7"}]

    assert sbon(capsys, "drop", "load_by_region")[2] == "sbon: 2 queries are called load_by_region; say which by its id: q1, q7\n"


def test_top_looks_once_where_there_is_no_terminal(agent, capsys):
    code, out, _ = sbon(capsys, "top")

    assert code == 0
    assert out.startswith("ams1 127.0.0.1:7946   up 2 h 3 min   members: 15 alive, 1 failed   median error 6.1 %")
    assert "window 10 s by region: count(*)" in out


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["statsu"], 2, "sbon: No such command 'statsu'. Did you mean 'status'? see `sbon --help`\n"),
        (["status", "--jsn"], 2, "sbon: No such option: --jsn"),
        (["rtt"], 2, "sbon: Missing argument 'A'; see `sbon rtt --help`\n"),
        (["sql"], 2, "sbon: Invalid value: give a FILE, - for standard input, or -c 'SQL'"),
        (["sql", "nofile.sql"], 2, "sbon: Invalid value: cannot read nofile.sql: No such file or directory"),
        (["testbed", "mace", "--part", "all"], 2, "sbon: Invalid value for '--part': 'all' is not one of 'placement', "),
        (["tail", "q1", "--limit", "0"], 2, "sbon: Invalid value for '--limit'"),
        (["status", "--socket", "/nowhere/s"], 1, "sbon: no agent at /nowhere/s; start one with `sbon agent`"),
    ],
)
def test_mistakes_are_one_line_and_an_exit_code(agent, capsys, arguments, code, said):
    result, out, err = sbon(capsys, *arguments)

    assert (result, out, err.count("\n")) == (code, "", 1)
    assert err.startswith(said)


def test_key_is_printed_or_written_for_the_owner_alone_and_never_over_another(capsys, tmp_path):
    path = tmp_path / "cluster.key"

    code, out, _ = sbon(capsys, "keygen")
    assert code == 0
    assert len(KeyRing.parse(out).ids) == 1

    assert sbon(capsys, "keygen", "--out", str(path)) == (0, "", "")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    written = path.read_text()
    assert len(KeyRing.parse(written).ids) == 1

    code, _, err = sbon(capsys, "keygen", "--out", str(path))
    assert (code, path.read_text()) == (1, written)
    assert "exists" in err


def test_help_of_the_program_has_first_steps(capsys):
    code, out, _ = sbon(capsys)

    assert code == 0
    assert "sbon agent " in out
    assert "tail " in out


def test_interrupted_tail_ends_quietly(agent):
    process = subprocess.Popen(
        [sys.executable, "-m", "sbon.cli", "tail", "q1", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert json.loads(process.stdout.readline()) == {"region": "eu", "cpu": 0.5, "alert": None}
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)

    assert (process.returncode, err) == (0, "")


def test_reader_that_has_had_enough_ends_the_command_quietly(agent):
    process = subprocess.Popen([sys.executable, "-m", "sbon.cli", "tail", "q1", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    request = agent.asked[-1]
    agent.loop.call_soon_threadsafe(
        agent.streams[request.id], ControlReply(request.id, final=False, result={"columns": ["x"], "rows": [["y" * 9000]] * 100})
    )
    assert process.wait(timeout=120) == 0
    assert process.stderr.read() == b""
    process.stderr.close()


def test_answers_for_people_survive_a_terminal(agent, tmp_path):
    leader, follower = pty.openpty()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "sbon.cli", "members"],
            stdout=follower,
            stderr=subprocess.PIPE,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "120"},
        )
        _, err = process.communicate(timeout=120)
        seen = os.read(leader, 1 << 16).decode()
    finally:
        os.close(leader)
        os.close(follower)

    assert (process.returncode, err) == (0, b"")
    assert "paris-2" in seen
    assert "\x1b[" in seen


def test_ctrl_c_while_the_program_loads_is_no_traceback(tmp_path):
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt")
    load = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import sbon.cli.__main__"

    done = subprocess.run([sys.executable, "-c", load], capture_output=True, text=True)

    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


NASTY = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202eevil\r\n\x7f\udc80"
"""Text that would clear the screen, rename the window, colour it, write backwards and forge a line."""


def spoilt(value):
    """Returns an answer in which every text contains `NASTY`."""
    if isinstance(value, dict):
        return {key: item if key in ("id", "name", "node", "kind", "latency_measured") else spoilt(item) for key, item in value.items()}
    if isinstance(value, list):
        return [spoilt(item) for item in value]
    return value + NASTY if isinstance(value, str) else value


@pytest.mark.parametrize(
    "arguments",
    [
        *(["status"], ["members"], ["operators"], ["queries"], ["names"], ["explain", "-c", "SELECT 1"], ["tail", "q1", "--limit", "2"]),
        *(["top", "--once"], ["leave"], ["drop", "q1"], ["sql", "-c", "SELECT 1"], ["reload"], ["rtt", "tokyo-1"]),
    ],
    ids=lambda arguments: arguments[0],
)
def test_text_of_other_agents_does_nothing_to_a_terminal(agent, capsys, arguments):
    answers = {command: spoilt(answer) for command, answer in agent.answers.items()}
    answers["operators"] = [{**row, "id": row["id"] + NASTY, "node": NASTY, "reason": NASTY} for row in answers["operators"]]
    answers["members"] = [{**row, "name": row["name"] + NASTY} for row in answers["members"]]
    answers["leave"] = {"left": True, "moved": 0, "stayed": [{"operator": NASTY, "queries": [], "reason": NASTY}]}
    answers["drop"] = {"dropped": [NASTY]}
    answers["submit"] = [{"message": NASTY, "operators": [{"id": NASTY, "kind": "map", "node": NASTY}], "query": NASTY}]
    answers["reload"] = {"applied": [NASTY], "restart_needed": [NASTY]}
    answers["rtt"] = {"a": NASTY, "b": NASTY, "estimated_rtt_ms": 1.0}
    agent.answers.update(msgspec.msgpack.decode(msgspec.msgpack.encode(json.loads(json.dumps(answers).replace("\\udc80", "")))))
    agent.tail_rows = [[NASTY.replace("\udc80", ""), 0.5, None]]
    if arguments[0] == "tail":
        agent.answers["queries"] = QUERIES

    for form in ([], ["--json"]):
        if form and arguments[0] == "top":
            continue
        code, out, err = sbon(capsys, *arguments, *form)
        assert (code, err) == (0, "")
        unprintable = {character for character in out if not character.isprintable()}
        assert unprintable <= {"\n"}, arguments
        assert "evil" in out
        if form:
            assert all("\r\n\x7f" in text for text in texts(json.loads(out)) if "evil" in text)


def texts(value):
    """Yields all texts in a JSON document, except keys."""
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from texts(item)
    elif isinstance(value, str):
        yield value


def test_a_refusal_with_controls_in_it_is_one_printable_line(agent, capsys):
    agent.answers["submit"] = QueryError("no column a\x1b[2J\nsbon: all is well", line=1, column=8)
    code, out, err = sbon(capsys, "sql", "-c", "SELECT \x1b\x1b FROM s")
    assert (code, out) == (1, "")
    assert len(err.splitlines()) == 3
    assert "a\\x1b[2J\\nsbon: all is well" in err
    assert {character for character in err if not character.isprintable()} == {"\n"}


def test_a_table_on_a_terminal_is_printable(capsys):
    from rich.console import Console

    target = io.StringIO()
    table = rich_lines(table_lines([Column("node"), Column("reason")], [["alive", NASTY]], 200))
    Console(file=target, force_terminal=True, color_system=None, width=200).print(table)
    assert {character for character in target.getvalue() if not character.isprintable()} == {"\n"}


def test_plan_latency_sends_the_rows_of_a_file_and_shows_each_interval(agent, tmp_path, capsys):
    rows = tmp_path / "monday.txt"
    rows.write_text("10\n0\n400\n", encoding="utf-8")
    over = {"width_s": 0.5, "latest_ms": [12.0, 900.0], "mace_ms": [0.0, 850.0], "upper_ms": [30.0, None]}
    agent.answers["plan"] = {"text": "worst 900 ms", "intervals": over, "notes": []}

    code, out, _ = sbon(capsys, "plan", "latency", "-c", "SELECT 1", "--arrivals", str(rows), "--width", "0.5")

    assert code == 0
    assert agent.asked[-1].arguments["options"] == {"arrivals": [10, 0, 400], "width": 0.5, "speed": 1.0}
    assert out.splitlines()[0] == "worst 900 ms"
    assert [line.split() for line in out.splitlines()[-2:]] == [["0", "12.0", "0.0", "30.0"], ["0.5", "900.0", "850.0", "-"]]


@pytest.mark.parametrize(
    ("text", "said"),
    [(None, "cannot read {}: No such file or directory"), ("10\nten\n\n", "{}:2: 'ten', expected a whole number of rows")],
)
def test_plan_latency_refuses_a_file_without_numbers(agent, tmp_path, capsys, text, said):
    rows = tmp_path / "monday.txt"
    if text is not None:
        rows.write_text(text, encoding="utf-8")

    code, _, problem = sbon(capsys, "plan", "latency", "-c", "SELECT 1", "--arrivals", str(rows))

    assert code == 2
    assert said.format(rows) in problem
    assert "the rows of each quarter of a second, one a line" in problem
    assert agent.asked == []
