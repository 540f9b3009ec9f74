"""The statements of the README are of the dialect."""

import re
from pathlib import Path

import msgspec
import pytest

from sbon.query.catalog import Catalog
from sbon.query.named_calls import function_names
from sbon.query.planner import plan
from sbon.query.sql import CreateSink, CreateSource, CreateView, SelectQuery, parse
from tests.query_worlds import NODES

README = Path(__file__).resolve().parents[2] / "README.md"


def test_the_statements_of_the_readme_can_be_planned() -> None:
    blocks = re.findall(r"```sql\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    if not blocks:
        pytest.skip("the README shows no SQL")
    catalog = Catalog()
    planned = 0
    for block in blocks:
        for statement in parse(block):
            if isinstance(statement, CreateSource):
                source = msgspec.structs.replace(statement.definition, home="a")
                catalog.put("source", statement.name, sql=statement.sql, owner="a", stamp=1, source=source)
            elif isinstance(statement, CreateView):
                catalog.put("view", statement.name, sql=statement.sql, owner="a", stamp=1)
            elif isinstance(statement, SelectQuery | CreateSink):
                planned += len(plan(statement, catalog, NODES, "a", "q").operators)
    assert planned > 0


def test_the_readme_names_every_function() -> None:
    """Hints send people there."""
    text = README.read_text(encoding="utf-8")
    section = text[text.index("## SQL") :].lower()
    assert [name for name in function_names() if not re.search(rf"\b{name}\b", section)] == []
