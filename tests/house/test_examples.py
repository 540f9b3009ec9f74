"""The examples in docstrings run and give the results that they show."""

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def modules_with_examples() -> list[str]:
    folders = {"sbon": "sbon", "agent": "sbon_agent", "testbed": "sbon_testbed"}
    paths = [(package, path) for folder, package in folders.items() for path in sorted((ROOT / folder).rglob("*.py"))]
    with_examples = [(package, path.relative_to(ROOT)) for package, path in paths if ">>> " in path.read_text(encoding="utf-8")]
    return [".".join((package, *path.with_suffix("").parts[1:])) for package, path in with_examples]


@pytest.mark.parametrize("name", modules_with_examples())
def test_examples_in_docstrings_hold(name):
    outcome = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)

    assert outcome.attempted > 0
    assert outcome.failed == 0
