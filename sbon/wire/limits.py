"""Limits of the numbers, texts and lists in messages between agents: part of the types, so that decoding checks them.

A value beyond them is one that no sound agent sends; the message is refused whole (`sbon.wire.messages.decode`). NaN is beyond any. They
protect arithmetic and memory, and are far above what happens: what one agent allows another is its configuration's business. Every
field of a message has such a type; a test looks at all of them.
"""

from typing import Annotated, TypeAlias

import msgspec

from sbon.types import LinkId, NodeId, OperatorId, QueryId

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
"""Rows, batches, bytes, nanoseconds, numbers of batches."""
Few: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
"""Operators, slots, nodes, ports, pieces of a state."""
Epoch: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**40)]
"""How often an operator has migrated, or a link's end been handed on: one a second for 30,000 years."""
Amount: TypeAlias = Annotated[float, msgspec.Meta(ge=0.0, le=1e18)]
"""Rates, shares that may exceed 1, ages."""
Share: TypeAlias = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
Delay: TypeAlias = Annotated[float, msgspec.Meta(ge=0.0, le=1e9)]
"""Milliseconds; more than a week is nonsense."""
Slack: TypeAlias = Annotated[float, msgspec.Meta(ge=-1e9, le=1e9)]
"""Milliseconds; below 0 where a bound is exceeded."""
Lease: TypeAlias = Annotated[float, msgspec.Meta(ge=0.0, le=86_400.0)]
"""Seconds that one agent may ask another for."""
Watermark: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""Microseconds since 1970, from nothing promised to the stream's end."""
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
"""For lists and tables: `Annotated[tuple[Node, ...], MANY]`."""
