"""Ranges of options that several commands have."""

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
