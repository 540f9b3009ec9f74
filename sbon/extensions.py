"""What is installed beside us on one agent: names of connectors, and functions that queries may call.

Whoever looks for installed packages makes one of these (`agent.extensions` does); the library only asks it.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Extensions:
    """Connectors by entry point, beside the built-in ones."""

    connectors: tuple[str, ...] = ()
    """Names, sorted. Whether one is a source or a sink shows when it is made."""


NOTHING = Extensions()
"""Nothing but what is built in."""
