"""The pages of `docs/reference/` are those that the generator makes, and have a text for everything."""

import ast
import re
from pathlib import Path

import pytest

from sbon.query.aggregate_names import AGGREGATE_NAMES
from sbon.query.forms import AGGREGATES, AGGREGATES_ALSO, CALLS, OPERATORS
from sbon.query.function_names import READ_BY_NAME, SYNONYMS
from sbon.query.functions import FUNCTIONS
from sbon.query.named_calls import function_names
from sbon_agent.connectors import registry
from sbon_testbed.reference.connectors import CONNECTORS, documented
from sbon_testbed.reference.pages import FOLDER, PAGES

ROOT = Path(__file__).parents[2]
READERS = {"choice", "duration_us", "flag", "integer", "number", "optional", "required", "text", "words"}
"""Methods of a statement's options; the first argument names the option that they read."""


@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_reference_page_says_what_the_code_says(name):
    written = (FOLDER / name).read_text(encoding="utf-8") if (FOLDER / name).exists() else ""

    assert written == PAGES[name](), f"docs/reference/{name} is out of date: renew it with `make reference`"


@pytest.mark.parametrize("name", sorted(PAGES))
def test_every_entry_of_a_reference_page_has_a_description(name):
    lines = (FOLDER / name).read_text(encoding="utf-8").splitlines()

    assert [line for line in lines if re.search(r"\| *\|$|^\s*- `[^:]*`:?\s*$", line)] == []


def test_every_function_and_aggregate_is_on_the_page():
    page = (FOLDER / "functions.md").read_text(encoding="utf-8").upper()
    typed = {*function_names(), *CALLS, *SYNONYMS, *AGGREGATE_NAMES, *OPERATORS.values()}

    assert (
        sorted(
            name for name in typed if not re.search(rf"(?<![A-Z_]){re.escape(name.upper().replace('|', chr(92) + '|'))}(?![A-Z_])", page)
        )
        == []
    )
    assert set(AGGREGATES) == set(AGGREGATE_NAMES)
    assert set(AGGREGATES_ALSO) <= set(AGGREGATES)
    assert set(OPERATORS) <= set(FUNCTIONS)
    assert {name.lower() for name in READ_BY_NAME} & set(CALLS)


def test_every_connector_is_on_the_page():
    assert {*registry._SOURCES, *registry._SINKS} - {"system"} == set(CONNECTORS)


def test_every_option_that_the_code_reads_is_on_the_page():
    read = {}
    for path in sorted((ROOT / "agent" / "connectors").glob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "options." in text else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in READERS:
                name = node.args[0] if node.args else None
                if "options" in ast.unparse(node.func) and isinstance(name, ast.Constant):
                    read[name.value] = path.name

    for path in sorted((ROOT / "sbon" / "query").glob("*.py")):
        text = path.read_text(encoding="utf-8")
        read |= dict.fromkeys(re.findall(r'(?:options\.pop\(|take_list\(text, options, )"(\w+)"', text), path.name)

    known = documented()
    assert len(read) > 40
    assert {name: path for name, path in read.items() if name not in known} == {}
