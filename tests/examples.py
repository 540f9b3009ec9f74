"""How many examples properties try: some in every run, many more in a long one."""

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
