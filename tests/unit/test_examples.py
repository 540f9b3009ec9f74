"""The examples in docstrings do what they say."""

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def modules_with_examples() -> list[str]:
    paths = [path for folder in ("sbon", "agent", "testbed") for path in sorted((ROOT / folder).rglob("*.py"))]
    return [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths if ">>> " in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("name", modules_with_examples())
def test_examples_in_docstrings_hold(name):
    outcome = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)

    assert outcome.attempted > 0
    assert outcome.failed == 0
