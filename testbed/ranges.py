"""Checks of options that several commands share."""

from collections.abc import Sequence

from sbon.errors import UsageError

SECONDS_MAX = 604_800.0
"""Longest duration: a week."""


def check_seconds(option: str, seconds: float, least: float) -> None:
    """Refuses a duration that is too short, longer than a week, or no number.

    Raises
    ------
    UsageError
        The duration is out of range; the message has the option as typed, and the allowed range.
    """
    if not least <= seconds <= SECONDS_MAX:
        raise UsageError(f"{option} {seconds:g}, expected at least {least:g}, at most {SECONDS_MAX:.0f} seconds")


def chosen(option: str, given: Sequence[str], offered: Sequence[str]) -> list[str]:
    """Returns the requested items in the order in which they are offered; all if none was requested.

    Raises
    ------
    UsageError
        An unknown item was requested.
    """
    for one in given:
        if one not in offered:
            raise UsageError(f"{option} {one}, expected one of {', '.join(offered)}")
    return [one for one in offered if one in given or not given]
