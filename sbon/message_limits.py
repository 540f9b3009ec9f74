"""Limits of numbers, texts and lists in messages between agents. They are part of the types, so that decoding checks them.

No correct agent sends a value beyond these limits; a message with one is refused as a whole (`sbon.wire.messages.decode`). NaN is beyond
every limit. The limits protect arithmetic and memory, and are far above real values; the configuration sets the limits of normal use. Every
field of a message has such a type; a test checks this.
"""

from typing import Annotated, TypeAlias

import msgspec

from sbon.types import LinkId, NodeId, OperatorId, QueryId

ORIGINS_MAX = 64
"""Most inputs of an operator that sends the origin of its rows."""
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
"""Numbers of rows, batches, bytes, nanoseconds."""
Origin: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=ORIGINS_MAX)]
"""Number of an input of an operator (`sbon.links.origins`)."""
Few: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
"""Numbers of operators, slots, nodes, ports, pieces of a state."""
Epoch: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
"""Epoch of an operator, or number of moves of a link's end: enough for all epochs of all owners of a query."""
OwnerEpoch: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**29)]
"""Ownership epoch of a query: enough for one change of owner, or attempt, every five seconds for 80 years."""
Amount: TypeAlias = Annotated[float, msgspec.Meta(ge=0.0, le=1e18)]
"""Rates, shares that may exceed 1, ages."""
Share: TypeAlias = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
Delay: TypeAlias = Annotated[float, msgspec.Meta(ge=0.0, le=1e9)]
"""Milliseconds; the limit is more than a week."""
Slack: TypeAlias = Annotated[float, msgspec.Meta(ge=-1e9, le=1e9)]
"""Milliseconds; below 0 if a bound is exceeded."""
Lease: TypeAlias = Annotated[float, msgspec.Meta(ge=0.0, le=86_400.0)]
"""Duration in seconds that one agent may ask another for."""
Watermark: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""Microseconds since 1970, from the first watermark to the stream's end."""
Instant: TypeAlias = Annotated[float, msgspec.Meta(ge=-1e15, le=1e15)]
"""Seconds since 1970."""

NAME_CHARACTERS_MAX = 255
ID_CHARACTERS_MAX = 1024
LINK_CHARACTERS_MAX = 4096
TEXT_CHARACTERS_MAX = 65_536
ITEMS_MAX = 65_536
BYTES_MAX = 2**26

Node: TypeAlias = Annotated[NodeId, msgspec.Meta(max_length=NAME_CHARACTERS_MAX)]
Query: TypeAlias = Annotated[QueryId, msgspec.Meta(max_length=ID_CHARACTERS_MAX)]
Operator: TypeAlias = Annotated[OperatorId, msgspec.Meta(max_length=ID_CHARACTERS_MAX)]
Link: TypeAlias = Annotated[LinkId, msgspec.Meta(max_length=LINK_CHARACTERS_MAX)]
Text: TypeAlias = Annotated[str, msgspec.Meta(max_length=TEXT_CHARACTERS_MAX)]
"""Reasons, kinds, signatures, names of functions."""
Data: TypeAlias = Annotated[bytes, msgspec.Meta(max_length=BYTES_MAX)]
MANY = msgspec.Meta(max_length=ITEMS_MAX)
"""Limit of lists and tables: `Annotated[tuple[Node, ...], MANY]`."""
RowsByOrigin: TypeAlias = Annotated[tuple[Annotated[tuple[Count, ...], MANY], ...], msgspec.Meta(max_length=ORIGINS_MAX)]
"""Several numbers of rows for each origin."""
