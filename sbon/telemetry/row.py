"""Base types of all telemetry rows.

The names of fields have units. A field that may be None is null if its value is unknown or not finite, because JSON has no infinity. New
fields go to the end of a struct and have a default, so that older spools can be read; any other change needs a new `VERSION`.
"""

from typing import Annotated, TypeAlias

import msgspec

VERSION = 1
"""Version of all tables together."""

Instant: TypeAlias = Annotated[int, msgspec.Meta(extra={"instant": True})]
"""Wall clock, microseconds since 1970, UTC; a timestamp in the tables."""


class Row(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One record; its kind is the tag."""


class Part(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Base of the elements of lists in rows."""
