"""Random queries have DuckDB's answers, except for the differences in `choices`."""

import re
import signal
from itertools import pairwise
from pathlib import Path

import duckdb
import pytest

from sbon.errors import SbonError
from sbon.operators import scalars
from sbon.query.functions import FUNCTIONS
from sbon_testbed.random_queries.aggregates import AGGREGATES
from sbon_testbed.random_queries.comparing import difference
from sbon_testbed.random_queries.data import COLUMNS, DELAY_US, FLOAT, SECOND, make_data, write
from sbon_testbed.random_queries.forms import FORMS
from sbon_testbed.random_queries.oracle import Oracle
from sbon_testbed.random_queries.parts import QUERIES, Query
from sbon_testbed.random_queries.reading import read
from sbon_testbed.random_queries.statements import SHAPES
from tests.examples import seeds
from tests.processes import Process, wait_until
from tests.system.differential import choices, run
from tests.system.differential.choices import CHOICES, REFUSED, Choice
from tests.system.differential.run import Overlay, failures_of, problem_of, queries_of, told

SEEDS = range(1, 5)
SOAK_SEEDS = (0, 5, *range(1_000, 1_000 + -(-10_000 // QUERIES)))


def check(seed: int, folder: Path) -> None:
    print(f"seed {seed}, {QUERIES} queries")
    _, failures = failures_of(seed, range(QUERIES), folder)
    assert not failures, told(failures, folder)


@pytest.mark.parametrize("seed", seeds([3], (1, 2, 4)))
def test_random_queries_have_the_answers_of_duckdb(seed, tmp_path):
    check(seed, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("seed", SOAK_SEEDS)
def test_ten_thousand_random_queries_have_the_answers_of_duckdb(seed, tmp_path):
    check(seed, tmp_path)


def test_every_function_form_aggregate_and_shape_is_asked_for():
    queries = [query for seed in SEEDS for query in queries_of(make_data(seed), range(QUERIES))]
    used = frozenset[str]().union(*(query.used for query in queries))

    assert {form.function for form in FORMS} >= set(FUNCTIONS)
    assert used >= {form.function for form in FORMS} | set(AGGREGATES)
    assert {query.shape for query in queries} == set(SHAPES)
    assert len({(query.ours, query.before) for query in queries}) > 0.95 * len(queries)


def test_the_rows_have_what_goes_wrong_easily():
    data = [make_data(seed) for seed in SEEDS]
    rows = [row for one in data for table in one.tables.values() for row in table.rows]
    floats = {repr(row[place]) for row in rows for place, kind in enumerate(COLUMNS.values()) if kind == FLOAT}
    times = [row[0] for row in rows if row[0] is not None]

    assert floats >= {"nan", "inf", "-inf", "-0.0", "0.0", "None"}
    assert min(times) < 0 < max(times)
    assert any(time % SECOND == 0 for time in times)
    assert any(later < earlier for earlier, later in pairwise(times))
    assert sum(one.late_rows for one in data) > 0
    assert any(not row[7].isascii() for row in rows if row[7])
    assert {one.format for one in data} == {one.sink for one in data} == {"csv", "ndjson", "parquet"}


# The comparison can fail


@pytest.mark.parametrize(
    ("theirs", "ordered"),
    [
        ([(1, 0.0, "a"), (2, None, "b")], False),  # the sign of zero
        ([(1, -0.0, "a"), (2, float("nan"), "b")], False),  # NULL is not NaN
        ([(1, -0.0, "a"), (2, None, "b"), (2, None, "b")], False),  # one row twice
        ([(1, -0.0, "a")], False),
        ([(1, -0.0, "a"), (2, None, None)], False),
        ([(1.0, -0.0, "a"), (2, None, "b")], False),  # other types
        ([(2, None, "b"), (1, -0.0, "a")], True),  # order
    ],
)
def test_answers_that_differ_are_told_apart(theirs, ordered):
    ours = [(1, -0.0, "a"), (2, None, "b")]

    assert difference(ours, theirs, (1e-9,) * 3, ordered=ordered)
    assert not difference(ours, list(ours), (1e-9,) * 3, ordered=ordered)


def test_floats_are_compared_to_nine_digits():
    assert not difference([(1.0,)], [(1.0 + 1e-12,)], (1e-9,), ordered=False)
    assert difference([(1.0,)], [(1.0 + 1e-7,)], (1e-9,), ordered=False)
    assert not difference([(float("inf"), float("nan"))], [(float("inf"), float("nan"))], (1e-9,) * 2, ordered=False)
    assert difference([(float("inf"),)], [(float("-inf"),)], (1e-9,), ordered=False)


def test_a_function_that_is_wrong_is_noticed_with_the_rows_that_show_it(tmp_path, monkeypatch):
    monkeypatch.setitem(scalars.SCALARS, "abs", lambda values, types, literals: values[0])
    monkeypatch.setattr(run, "SHRINK_TRIES", 8)

    asked = [number for number, query in enumerate(queries_of(make_data(1), range(QUERIES))) if "ABS(" in query.ours]
    _, failures = failures_of(1, asked[:8], tmp_path / "all")

    assert failures
    assert all("ABS(" in failure.query.ours or any("ABS(" in view for view, _ in failure.query.before) for failure in failures)
    text = told(failures[:1], tmp_path)
    assert failures[0].query.ours in text
    assert "engine only" in text or "DuckDB only" in text
    assert "rows that reproduce it" in text


# Deliberate differences


@pytest.fixture(scope="module")
def both_sides(tmp_path_factory):
    """Returns the answers of an agent and of DuckDB to all choices."""
    folder, oracle = tmp_path_factory.mktemp("choices"), Oracle()
    table = choices.rows()
    data = make_data(2)._replace(format="csv", tables={"e": table})
    overlay = Overlay(data, folder)
    oracle.load([table])
    queries = [Query(choice.query, "", (choice.kind,), (1e-9,), "") for choice in CHOICES]
    try:
        answers = overlay.answers(queries)
        ours = [REFUSED if answer.error.startswith("refused") else tuple(answer.rows) for answer in answers]
        return dict(zip(CHOICES, zip(ours, [_of_duckdb(oracle, choice) for choice in CHOICES], strict=True), strict=True))
    finally:
        overlay.close()
        oracle.close()


def _of_duckdb(oracle: Oracle, choice: Choice):
    try:
        return tuple(oracle.connection.execute(choice.duckdb).fetchall())
    except duckdb.Error:
        return REFUSED


@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: choice.query)
def test_a_stated_choice_is_what_both_do(choice, both_sides):
    ours, theirs = both_sides[choice]

    assert sorted(map(repr, ours)) == sorted(map(repr, choice.gives))
    assert sorted(map(repr, theirs)) == sorted(map(repr, choice.other))


def test_the_page_on_sql_states_every_choice():
    page = re.sub(r"\s+", " ", (Path(__file__).parents[3] / "docs" / "sql.md").read_text(encoding="utf-8"))

    assert [choice.stated for choice in CHOICES if choice.stated not in page] == []
    assert all(choice.reason for choice in CHOICES)


# A real agent


def test_a_real_agent_gives_the_same_answers(tmp_path):
    data = make_data(3)
    numbers = range(0, 24)
    agent, oracle = Process(tmp_path, "a", "--bind", "127.0.0.1:0"), Oracle(data)
    queries = queries_of(data, numbers)
    problems: list[str] = []
    try:
        agent.wait_until_ready()
        for table in data.tables.values():
            path = tmp_path / f"{table.name}.{data.format}"
            write(table, data.format, path)
            columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
            for suffix, option in (("", ""), ("2", ", batch_rows_max = 2")):
                agent.ask(
                    "submit",
                    sql=f"CREATE SOURCE {table.name}{suffix} ({columns}, WATERMARK FOR ts AS ts - INTERVAL '{DELAY_US / SECOND} s')"
                    f" WITH (connector = 'file', path = '{path}'{option})",
                )
        asked: dict[str, Query] = {}
        for number, query in zip(numbers, queries, strict=True):
            sink = f"CREATE SINK o{number} AS {query.ours} WITH (connector = 'file', path = '{tmp_path}/o{number}.{data.sink}')"
            try:
                agent.ask("submit", sql=";\n".join([*(view for view, _ in query.before), sink]))
                asked[f"o{number}"] = query
            except SbonError as error:
                problems.append(problem_of(data, oracle, query, run.Answer([], str(error))))
        wait_until(lambda: all(query["state"] != "running" for query in agent.ask("queries")))
        assert {query["name"]: query["state"] for query in agent.ask("queries")} == dict.fromkeys(asked, "finished")
        for name, query in asked.items():
            answer = run.Answer(read(tmp_path / f"{name}.{data.sink}", query.kinds))
            problems.append(problem_of(data, oracle, query, answer))
    finally:
        agent.end(signal.SIGTERM)
        oracle.close()

    assert not any(problems), problems
