"""Moving an operator (`sbon.migration`): its neighbours keep still, its new host prepares, its state travels, and it runs there or not."""

from typing import Annotated

import msgspec

from sbon.query.plan import OperatorSpec
from sbon.wire.limits import MANY, Count, Data, Epoch, Lease, Node, Operator, Share, Text


class Lock(msgspec.Struct, frozen=True, tag="lock"):
    """May `operator` migrate? Its neighbours here promise not to, until unlocked or `lease_s` has passed since they were asked last."""

    operator: Operator
    neighbours: Annotated[tuple[Operator, ...], MANY]
    coordinator: Node
    lease_s: Lease
    there: Node = ""
    """Its new host: from now on this one may speak for the operator too, as the old host may die before it can tell that it has moved."""
    epoch: Epoch = 0
    """The operator's, once it is there."""
    sends: bool = True
    """The neighbours here will send to the new host: they open a connection before they promise."""


class Unlock(msgspec.Struct, frozen=True, tag="unlock"):
    """The migration of `operator` has ended, one way or the other."""

    operator: Operator
    moved: bool = False
    """It runs on the host that was named with the lock. Whoever was taken for failed meanwhile has not been told otherwise."""


class Prepare(msgspec.Struct, frozen=True, tag="prepare"):
    """Make room for a migrating operator, and reach those that it feeds."""

    spec: OperatorSpec
    epoch: Epoch
    coordinator: Node
    feeds: Annotated[tuple[Node, ...], MANY] = ()


class StateChunk(msgspec.Struct, frozen=True, tag="state"):
    """A piece of the state of a prepared operator, answered when it has had its effect; the last one installs it."""

    operator: Operator
    epoch: Epoch
    index: Count
    last: bool
    data: Data
    urgent: Share = 0.0
    """From 0, it may wait for other work, to 1, it must not."""


class Activate(msgspec.Struct, frozen=True, tag="activate"):
    """The migration is decided: run."""

    operator: Operator
    epoch: Epoch


class Abandon(msgspec.Struct, frozen=True, tag="abandon"):
    """The migration is off: forget what was prepared."""

    operator: Operator
    epoch: Epoch


class OutcomeAsk(msgspec.Struct, frozen=True, tag="outcome?"):
    """Asked of the coordinator by a host that has prepared and heard nothing since."""

    operator: Operator
    epoch: Epoch


class Outcome(msgspec.Struct, frozen=True, tag="outcome"):
    """`committed`, `abandoned` or `undecided`."""

    verdict: Text
