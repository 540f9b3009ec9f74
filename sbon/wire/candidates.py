"""Messages before placement: which nodes would host operators, with what room and at what distances."""

from typing import Annotated

import msgspec

from sbon.message_limits import MANY, Amount, Delay, Few, Node, Operator, Query, Text
from sbon.query.plan import LinkSpec, OperatorSpec
from sbon.wire.costs import TOLD_MAX, NodeTold, OperatorCosts


class CandidateAsk(msgspec.Struct, frozen=True, tag="candidate?"):
    """Asks a node whether it would host operators, to measure its RTT to some nodes, and to report what it runs and can take."""

    about: Annotated[tuple[Node, ...], MANY]
    signatures: Annotated[tuple[Text, ...], MANY]
    query: Query = ""
    """The query, for which room is reserved for a while."""
    slots: Few = 0
    """Number of the query's operators that might come; 0: reserve no room."""
    functions: Annotated[tuple[tuple[Text, Text], ...], MANY] = ()
    """Users' functions, by name and version, that the host must have."""
    stateful: bool = False
    """Some operators keep state, for which there must be memory."""


class CandidateAnswer(msgspec.Struct, frozen=True, tag="candidate"):
    """A candidate's offer."""

    node: Node
    rtts_ms: Annotated[dict[Node, Delay], MANY]
    free_slots: Few
    """Slots not reserved for others."""
    load_ms: Delay
    running: Annotated[dict[Text, Operator], MANY]
    reserved: Few = 0
    """Slots reserved for others, which may become free again."""
    upstream_delay_ms: Annotated[dict[Operator, Delay], MANY] = {}
    """For running operators, latency of the longest path from a producer, if known."""
    memory_short: bool = False
    """The operators asked for keep state, for which there is no memory."""
    costs: Annotated[tuple[OperatorCosts, ...], msgspec.Meta(max_length=TOLD_MAX)] = ()
    """Costs that it has measured of the signatures asked for."""
    host: NodeTold | None = None
    """Capacities of the host."""


class SampleAsk(msgspec.Struct, frozen=True, tag="sample?"):
    """Asks the host of sources to send a few of their rows through operators of a query that never ran. No row leaves that host."""

    operators: Annotated[tuple[OperatorSpec, ...], msgspec.Meta(max_length=TOLD_MAX)]
    """Sources there, and what only they feed, upstream first."""
    links: Annotated[tuple[LinkSpec, ...], MANY]


class Sampled(msgspec.Struct, frozen=True, tag="sample"):
    """Costs of operators that a sample went through; the others are left out."""

    costs: Annotated[tuple[OperatorCosts, ...], msgspec.Meta(max_length=TOLD_MAX)] = ()


class Reserve(msgspec.Struct, frozen=True, tag="reserve"):
    """The query has been placed: so many of its operators will come here; 0: none, and its reservation ends."""

    query: Query
    slots: Few


class RttsAsk(msgspec.Struct, frozen=True, tag="rtts?"):
    """Asks for RTTs remembered from probing: those of the `nearest` nodes, and known ones to the nodes in `about`."""

    nearest: Few
    about: Annotated[tuple[Node, ...], MANY] = ()


class Rtts(msgspec.Struct, frozen=True, tag="rtts"):
    """Answer to RttsAsk."""

    remembered: Annotated[tuple[tuple[Node, Delay, Amount], ...], MANY]
    """Node, filtered RTT in ms, and its age in s."""
