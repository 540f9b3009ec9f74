"""Base types of all telemetry rows.

Units are in the names of fields, as everywhere. A field that may be None is null where it is not known, or where it has no finite value:
JSON has no infinity. New fields go to the end of a struct and have a default, so that older spools can be read; anything else needs a
new `VERSION`.
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
