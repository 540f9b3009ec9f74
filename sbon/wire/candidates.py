"""Before operators are placed: who would host them, with what room and at what distances."""

import msgspec

from sbon.types import NodeId, OperatorId, QueryId


class CandidateAsk(msgspec.Struct, frozen=True, tag="candidate?"):
    """Would you host these? Measure your RTT to these nodes and tell what you run and can take."""

    about: tuple[NodeId, ...]
    signatures: tuple[str, ...]
    query: QueryId = ""
    """For which; room is kept for it for a while."""
    slots: int = 0
    """How many operators of the query might come; 0: keep no room."""
    functions: tuple[tuple[str, str], ...] = ()
    """Users' functions, by name and version, without which there is no use in coming."""
    stateful: bool = False
    """Some of them keep state, for which there must be memory."""


class CandidateAnswer(msgspec.Struct, frozen=True, tag="candidate"):
    """What a candidate has to offer."""

    node: NodeId
    rtts_ms: dict[NodeId, float]
    free_slots: int
    """Room that others have not been promised."""
    load_ms: float
    running: dict[str, OperatorId]
    reserved: int = 0
    """Room promised to others, which may come free again."""
    upstream_delay_ms: dict[OperatorId, float] = {}
    """Of those running: latency of the longest way from a producer, where it is known."""
    memory_short: bool = False
    """States of operators take so much memory that there is no room for what keeps state, which was asked for."""


class Reserve(msgspec.Struct, frozen=True, tag="reserve"):
    """The query has been placed, and so many of its operators will come here; 0: none, what was promised it is free again."""

    query: QueryId
    slots: int


class RttsAsk(msgspec.Struct, frozen=True, tag="rtts?"):
    """Which RTTs do you remember from probing? Those of your `nearest` nodes, and to those of `about` that you know."""

    nearest: int
    about: tuple[NodeId, ...] = ()


class Rtts(msgspec.Struct, frozen=True, tag="rtts"):
    """Answer to RttsAsk."""

    remembered: tuple[tuple[NodeId, float, float], ...]
    """Node, filtered RTT in ms, and its age in s."""
