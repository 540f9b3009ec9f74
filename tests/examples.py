"""Number of examples of properties, and seeds of stories: some in every run, many more in a long run."""

import os
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings

SOAK = 10
"""Factor by which a long run tries more examples."""
SHARE = 0.13
"""Share of the examples that `make test` tries. The mutation run tries all, because it looks for rare mistakes."""
_times = 1.0 if os.environ.get("SBON_TEST_PROFILE") == "mutants" else SHARE


def try_many() -> None:
    """Makes properties that are imported after this call try many examples."""
    global _times
    _times = SOAK


def examples(count: int) -> settings:
    """Returns the settings of a property with `count` examples; a run tries a share of them, all, or many times as many."""
    return settings(max_examples=max(1, round(count * _times)))


def seeds(every: Iterable[Any], long: Iterable[Any]) -> list[Any]:
    """Returns parameters for a test, or tuples of them: `every` for every run, `long` only for a long run (`--soak`)."""
    return [*every, *(pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.soak) for case in long)]
