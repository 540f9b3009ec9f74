"""Messages before placement: ask nodes whether they would host operators, and for their room and distances."""

from typing import Annotated

import msgspec

from sbon.message_limits import MANY, Amount, Delay, Few, Node, Operator, Query, Text
from sbon.query.plan import LinkSpec, OperatorSpec
from sbon.wire.costs import TOLD_MAX, NodeTold, OperatorCosts


class CandidateAsk(msgspec.Struct, frozen=True, tag="candidate?"):
    """Asks a node whether it would host operators, for its RTTs to some nodes, and for the operators that it runs and its free slots."""

    about: Annotated[tuple[Node, ...], MANY]
    signatures: Annotated[tuple[Text, ...], MANY]
    query: Query = ""
    """The query for which slots are reserved for a while."""
    slots: Few = 0
    """Number of the query's operators that might come; 0: reserve no slots."""
    functions: Annotated[tuple[tuple[Text, Text], ...], MANY] = ()
    """User-defined functions that the host must have, by name and version."""
    stateful: bool = False
    """Some operators keep state, for which the host must have memory."""


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
    """Latency of the longest path from a producer to each running operator, if known."""
    memory_short: bool = False
    """The host has no memory for the state of the operators in question."""
    costs: Annotated[tuple[OperatorCosts, ...], msgspec.Meta(max_length=TOLD_MAX)] = ()
    """Measured costs of the signatures in question."""
    host: NodeTold | None = None
    """Capacities of the host."""


class SampleAsk(msgspec.Struct, frozen=True, tag="sample?"):
    """Asks the host of sources to send a few of their rows through operators of a query that has not run yet. No row leaves that host."""

    operators: Annotated[tuple[OperatorSpec, ...], msgspec.Meta(max_length=TOLD_MAX)]
    """Sources on that host, and the operators that only these feed, upstream first."""
    links: Annotated[tuple[LinkSpec, ...], MANY]


class Sampled(msgspec.Struct, frozen=True, tag="sample"):
    """Costs of the operators that the sample reached."""

    costs: Annotated[tuple[OperatorCosts, ...], msgspec.Meta(max_length=TOLD_MAX)] = ()


class Reserve(msgspec.Struct, frozen=True, tag="reserve"):
    """The query has been placed, and so many of its operators will come here; 0: none, and the reservation ends."""

    query: Query
    slots: Few


class RttsAsk(msgspec.Struct, frozen=True, tag="rtts?"):
    """Asks for RTTs known from probing: those to the `nearest` nodes, and to the nodes in `about`."""

    nearest: Few
    about: Annotated[tuple[Node, ...], MANY] = ()


class Rtts(msgspec.Struct, frozen=True, tag="rtts"):
    """Answer to RttsAsk."""

    remembered: Annotated[tuple[tuple[Node, Delay, Amount], ...], MANY]
    """Node, filtered RTT in ms, and its age in s."""
