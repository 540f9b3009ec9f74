"""How many examples properties try, and which seeds stories have: some in every run, many more in a long one."""

import os
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings

SOAK = 10
"""A long run tries so many times as many."""
SHARE = 0.4
"""Part of the examples that `make test` tries. The mutation run, which looks for rare mistakes, tries all."""
_times = 1.0 if os.environ.get("SBON_TEST_PROFILE") == "mutants" else SHARE


def try_many() -> None:
    """Makes properties that are imported from now on try many examples."""
    global _times
    _times = SOAK


def examples(count: int) -> settings:
    """Returns the settings of a property that has `count` examples, of which a run tries a part, all, or many times as many."""
    return settings(max_examples=max(1, round(count * _times)))


def seeds(every: Iterable[Any], long: Iterable[Any]) -> list[Any]:
    """Returns parameters for a test, or tuples of them: those of every run, and those of a long run (`--soak`) alone."""
    return [*every, *(pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.soak) for case in long)]
