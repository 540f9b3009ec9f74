"""Parts of messages that report costs: of operators by signature, of a node, and its bandwidth to others.

The fields are those of `sbon.cost.statistics` and `sbon.cost.resources`. Decoding refuses values beyond the limits given here. The
receiver's cost store refuses and counts values that are impossible for an operator or a node.
"""

from typing import Annotated, Literal, TypeAlias

import msgspec

from sbon.message_limits import MANY, Amount, Delay, Node, Share, Text

Moment: TypeAlias = Annotated[float, msgspec.Meta(ge=0.0, le=1e45)]
Covariance: TypeAlias = Annotated[float, msgspec.Meta(ge=-1e45, le=1e45)]
SourceName: TypeAlias = Literal["measured", "sampled", "declared", "rule"]
ORDER_MAX = 16
"""Most coefficients of a law, ports of an operator, or classes of rows."""
FEW = msgspec.Meta(max_length=ORDER_MAX)
BINS = msgspec.Meta(max_length=60)
TOLD_MAX = 64
"""Most operators whose costs one message reports."""


class FigureTold(msgspec.Struct, frozen=True, kw_only=True):
    """A number with its bounds (`sbon.cost.figure.Figure`)."""

    value: Amount
    low: Amount
    high: Amount
    source: SourceName
    samples: Amount = 0.0
    age_s: Amount = 0.0


class MomentsTold(msgspec.Struct, frozen=True, kw_only=True):
    """The first three moments (`sbon.cost.moments.Moments`)."""

    count: Amount
    first: Moment
    second: Moment
    third: Moment


class LawTold(msgspec.Struct, frozen=True, kw_only=True):
    """The cost law of batches at a port (`sbon.cost.law.Law`)."""

    coefficients: Annotated[tuple[Amount, ...], FEW]
    covariance: Annotated[tuple[Annotated[tuple[Covariance, ...], FEW], ...], FEW]
    source: SourceName
    scatter: Amount = 0.0
    classes: Annotated[tuple[Text, ...], FEW] = ("",)
    shares: Annotated[tuple[Amount, ...], FEW] = (1.0,)
    samples: Amount = 0.0
    age_s: Amount = 0.0


class PortTold(msgspec.Struct, frozen=True, kw_only=True):
    """One input port (`sbon.cost.statistics.PortStatistics`)."""

    law: LawTold
    selectivity: FigureTold
    service: MomentsTold | None = None
    open_windows: Amount = 0.0
    rows_per_s: Amount = 0.0
    rows_per_batch: Amount = 0.0


class OperatorCosts(msgspec.Struct, frozen=True, kw_only=True):
    """Operators with one signature (`sbon.cost.statistics.OperatorStatistics`)."""

    signature: Text
    ports: Annotated[tuple[PortTold, ...], FEW]
    state_bytes: FigureTold | None = None
    state_rows_per_s: Amount = 0.0
    row_bytes: FigureTold | None = None


class UseTold(msgspec.Struct, frozen=True):
    """Cores that others use (`sbon.cost.resources.UseSeries`)."""

    seconds: Annotated[tuple[Amount, ...], BINS]
    tens: Annotated[tuple[Amount, ...], BINS] = ()


class WaitsTold(msgspec.Struct, frozen=True):
    """Waits of batches for a processor (`sbon.cost.waiting.Waits`)."""

    mean_s: Annotated[tuple[Amount, ...], BINS]
    most_s: Annotated[tuple[Amount, ...], BINS]
    mean_tens_s: Annotated[tuple[Amount, ...], BINS] = ()
    most_tens_s: Annotated[tuple[Amount, ...], BINS] = ()
    quantiles_s: Annotated[tuple[Amount, ...], FEW] = ()


class NodeTold(msgspec.Struct, frozen=True, kw_only=True):
    """Resources of a node (`sbon.cost.resources.NodeResources`), and its bandwidth and latencies to others."""

    node: Node
    cores: Amount
    speed: FigureTold
    memory_bytes: Amount = 0.0
    others: UseTold | None = None
    agent: Amount = 0.0
    """Cores that the node's agent uses besides operators; `others` includes them."""
    operators: UseTold | None = None
    share: Share | None = None
    """Share of a core that uninterrupted work gets on the node; None: not measured."""
    share_low: Share | None = None
    """The least that this share may be; None: not measured."""
    waits: WaitsTold | None = None
    spare_s: Amount | None = None
    """Time by which work on the node may become longer before a query exceeds its `max_latency`; None: no query there has one."""
    uplink_bytes_per_s: Amount = 0.0
    """Declared limit of the rate to all other nodes together; 0: none."""
    bandwidths: Annotated[tuple[tuple[Node, Amount], ...], MANY] = ()
    """Measured rate to other nodes while the buffer was full, in bytes/s."""
    latencies_ms: Annotated[tuple[tuple[Node, Delay], ...], MANY] = ()
    """Best known one-way latencies to the nodes that operators on this node send to."""
