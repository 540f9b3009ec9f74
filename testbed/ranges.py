"""Ranges of options that several commands have."""

from collections.abc import Sequence

from sbon.errors import UsageError

SECONDS_MAX = 604_800.0
"""A week."""


def check_seconds(option: str, seconds: float, least: float) -> None:
    """Refuse a duration that is too short, longer than a week, or no number.

    Raises
    ------
    UsageError
        With the option as it is typed, and what is allowed.
    """
    if not least <= seconds <= SECONDS_MAX:
        raise UsageError(f"{option} {seconds:g}, expected at least {least:g}, at most {SECONDS_MAX:.0f} seconds")


def chosen(option: str, given: Sequence[str], offered: Sequence[str]) -> list[str]:
    """Those of what is offered that were asked for, in the order in which they are offered; all where none was.

    Raises
    ------
    UsageError
        Something else was asked for.
    """
    for one in given:
        if one not in offered:
            raise UsageError(f"{option} {one}, expected one of {', '.join(offered)}")
    return [one for one in offered if one in given or not given]
