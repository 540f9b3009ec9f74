"""Before operators are placed: who would host them, with what room and at what distances."""

from typing import Annotated

import msgspec

from sbon.wire.limits import MANY, Amount, Delay, Few, Node, Operator, Query, Text


class CandidateAsk(msgspec.Struct, frozen=True, tag="candidate?"):
    """Would you host these? Measure your RTT to these nodes and tell what you run and can take."""

    about: Annotated[tuple[Node, ...], MANY]
    signatures: Annotated[tuple[Text, ...], MANY]
    query: Query = ""
    """For which; room is kept for it for a while."""
    slots: Few = 0
    """How many operators of the query might come; 0: keep no room."""
    functions: Annotated[tuple[tuple[Text, Text], ...], MANY] = ()
    """Users' functions, by name and version, without which there is no use in coming."""
    stateful: bool = False
    """Some of them keep state, for which there must be memory."""


class CandidateAnswer(msgspec.Struct, frozen=True, tag="candidate"):
    """What a candidate has to offer."""

    node: Node
    rtts_ms: Annotated[dict[Node, Delay], MANY]
    free_slots: Few
    """Room that others have not been promised."""
    load_ms: Delay
    running: Annotated[dict[Text, Operator], MANY]
    reserved: Few = 0
    """Room promised to others, which may come free again."""
    upstream_delay_ms: Annotated[dict[Operator, Delay], MANY] = {}
    """Of those running: latency of the longest way from a producer, where it is known."""
    memory_short: bool = False
    """States of operators take so much memory that there is no room for what keeps state, which was asked for."""


class Reserve(msgspec.Struct, frozen=True, tag="reserve"):
    """The query has been placed, and so many of its operators will come here; 0: none, what was promised it is free again."""

    query: Query
    slots: Few


class RttsAsk(msgspec.Struct, frozen=True, tag="rtts?"):
    """Which RTTs do you remember from probing? Those of your `nearest` nodes, and to those of `about` that you know."""

    nearest: Few
    about: Annotated[tuple[Node, ...], MANY] = ()


class Rtts(msgspec.Struct, frozen=True, tag="rtts"):
    """Answer to RttsAsk."""

    remembered: Annotated[tuple[tuple[Node, Delay, Amount], ...], MANY]
    """Node, filtered RTT in ms, and its age in s."""
