"""SQL of README and docs/: each statement can be planned with the sources of its page, and docs/sql.md names every function."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import pytest

from sbon.errors import QueryError
from sbon.query.catalog import Catalog
from sbon.query.named_calls import function_names
from sbon.query.planner import plan
from sbon.query.sql import CreateSink, CreateSource, CreateView, SelectQuery, parse
from sbon.query.statements import DropStatement
from tests.documents import PAGES, ROOT, all_blocks, commands
from tests.query_worlds import NODES

CONTINUES = {"docs/concepts.md": "docs/tutorial.md"}
"""Pages whose statements use the names of another page."""
ELSEWHERE = {"docs/reference/commands.md": {"busy"}}
"""Names in examples of single commands."""


@dataclass(frozen=True)
class Sql:
    """Statements of a page. `refusal`: the error that the page shows for them; empty: they can be planned."""

    line: int
    text: str
    refusal: str = ""


def sql_of(page: str) -> Iterator[Sql]:
    """Yields the statements of a page: of blocks, of files that it shows, and of command lines."""
    for block in all_blocks():
        if block.page == page and block.language == "sql":
            yield Sql(block.line, block.text)
        for command in commands(block) if block.page == page else ():
            for words in command.steps():
                if words[0] == "cat" and words[1].endswith(".sql"):
                    yield Sql(command.line, command.output)
                elif words[0] == "sbon" and "-c" in words:
                    refusal = re.match(r"command line:\d+:\d+: (.*)", command.output)
                    yield Sql(command.line, words[words.index("-c") + 1], refusal[1] if refusal else "")
                elif words[0] == "echo" and "sbon sql -" in command.text:
                    yield Sql(command.line, words[1])


STATEMENTS = {name: found for page in PAGES if (found := list(sql_of(name := str(page.relative_to(ROOT)))))}


def planned(statements: list[Sql], catalog: Catalog, elsewhere: set[str]) -> int:
    """Plans statements one after the other, enters what they create into a catalogue, and returns how many operators they have."""
    operators = 0
    for one in statements:
        for statement in parse(one.text):
            if isinstance(statement, CreateSource):
                source = msgspec.structs.replace(statement.definition, home="a")
                catalog.put("source", statement.name, sql=statement.sql, owner="a", stamp=1, source=source)
            elif isinstance(statement, CreateView):
                operators += len(plan(statement.query, catalog, NODES, "a", "q").operators)
                catalog.put("view", statement.name, sql=statement.sql, owner="a", stamp=1)
            elif isinstance(statement, SelectQuery | CreateSink) and one.refusal:
                with pytest.raises(QueryError) as caught:
                    plan(statement, catalog, NODES, "a", "q")
                assert one.refusal in str(caught.value)
            elif isinstance(statement, SelectQuery | CreateSink):
                operators += len(plan(statement, catalog, NODES, "a", "q").operators)
                if isinstance(statement, CreateSink):
                    elsewhere = elsewhere | {statement.name}
            elif isinstance(statement, DropStatement):
                assert catalog.get(statement.name) is not None or statement.name in elsewhere, (one, statement.name)
    return operators


@pytest.mark.parametrize("page", STATEMENTS)
def test_the_statements_of_a_page_can_be_planned(page: str) -> None:
    catalog = Catalog()
    if page in CONTINUES:
        planned(STATEMENTS[CONTINUES[page]], catalog, set())

    assert planned(STATEMENTS[page], catalog, ELSEWHERE.get(page, set())) > 0


def test_statements_are_found_in_blocks_in_files_and_on_command_lines() -> None:
    pages = ("concepts", "tutorial", "sql", "connectors", "mqtt", "lookup-tables")
    assert set(STATEMENTS) >= {"README.md", *(f"docs/{name}.md" for name in pages)}
    assert len(STATEMENTS["README.md"]) == 4
    assert len(STATEMENTS["docs/reference/commands.md"]) >= 5
    assert [one.refusal for one in STATEMENTS["README.md"] if one.refusal] == ["there is no column memroy; did you mean memory?"]


@pytest.mark.parametrize("text", ["SELECT a FROM s", "CREATE VIEW v AS SELECT a FROM s", "DROP VIEW v", "SELECT k FROM"])
def test_wrong_statements_are_found(text: str) -> None:
    source = Sql(1, "CREATE SOURCE s (ts TIMESTAMP, k TEXT, WATERMARK FOR ts AS ts) WITH (connector = 'datagen')")

    with pytest.raises((QueryError, AssertionError)):
        planned([source, Sql(2, text)], Catalog(), set())


def test_the_page_on_sql_names_every_function() -> None:
    """Hints of errors refer to that page."""
    text = (ROOT / "docs" / "sql.md").read_text(encoding="utf-8").lower()
    assert [name for name in function_names() if not re.search(rf"\b{name}\b", text)] == []
