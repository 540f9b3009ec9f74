"""How many examples properties try, and which seeds stories have: some in every run, many more in a long one."""

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings

SOAK = 10
"""A long run tries so many times as many."""
_times = 1


def try_many() -> None:
    """Makes properties that are imported from now on try many examples."""
    global _times
    _times = SOAK


def examples(count: int) -> settings:
    """Returns the settings of a property that tries `count` examples in every run."""
    return settings(max_examples=count * _times)


def seeds(every: Iterable[Any], long: Iterable[Any]) -> list[Any]:
    """Returns parameters for a test, or tuples of them: those of every run, and those of a long run (`--soak`) alone."""
    return [*every, *(pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.soak) for case in long)]
