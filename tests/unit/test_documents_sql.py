"""SQL of the README and of all pages of docs/ can be planned, and docs/sql.md names every function."""

import re
from pathlib import Path

import msgspec
import pytest

from sbon.query.catalog import Catalog
from sbon.query.named_calls import function_names
from sbon.query.planner import plan
from sbon.query.sql import CreateSink, CreateSource, CreateView, SelectQuery, parse
from tests.query_worlds import NODES

ROOT = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(r"(?:```sql\n|\$ cat \w+\.sql\n)(.*?)```", re.DOTALL)
BLOCKS = {
    path.name: blocks
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    if (blocks := _BLOCK.findall(path.read_text(encoding="utf-8")))
}


@pytest.mark.parametrize("page", BLOCKS)
def test_the_statements_of_a_page_can_be_planned(page: str) -> None:
    catalog = Catalog()
    planned = 0
    for block in BLOCKS[page]:
        for statement in parse(block):
            if isinstance(statement, CreateSource):
                source = msgspec.structs.replace(statement.definition, home="a")
                catalog.put("source", statement.name, sql=statement.sql, owner="a", stamp=1, source=source)
            elif isinstance(statement, CreateView):
                catalog.put("view", statement.name, sql=statement.sql, owner="a", stamp=1)
            elif isinstance(statement, SelectQuery | CreateSink):
                planned += len(plan(statement, catalog, NODES, "a", "q").operators)
    assert planned > 0


def test_pages_with_statements_are_found() -> None:
    assert set(BLOCKS) >= {"README.md", "tutorial.md", "sql.md", "connectors.md", "mqtt.md", "lookup-tables.md"}


def test_the_page_on_sql_names_every_function() -> None:
    """Hints of errors refer to that page."""
    text = (ROOT / "docs" / "sql.md").read_text(encoding="utf-8").lower()
    assert [name for name in function_names() if not re.search(rf"\b{name}\b", text)] == []
