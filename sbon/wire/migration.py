"""Messages that move an operator (`sbon.migration`): lock its neighbours, prepare its new host, transfer its state, and commit or
abandon."""

from typing import Annotated

import msgspec

from sbon.message_limits import MANY, Count, Data, Epoch, Lease, Node, Operator, Share, Text
from sbon.query.plan import OperatorSpec


class Lock(msgspec.Struct, frozen=True, tag="lock"):
    """Asks to lock the neighbours of `operator` here for its migration, until unlocked or `lease_s` after the last request."""

    operator: Operator
    neighbours: Annotated[tuple[Operator, ...], MANY]
    coordinator: Node
    lease_s: Lease
    there: Node = ""
    """The operator's new host. It may speak for the operator from now on, because the old host may die before it can report the move."""
    epoch: Epoch = 0
    """The operator's epoch on the new host."""
    sends: bool = True
    """The neighbours here will send to the new host, so a connection is opened before the lock is granted."""


class Unlock(msgspec.Struct, frozen=True, tag="unlock"):
    """The migration of `operator` has ended, with or without a move."""

    operator: Operator
    moved: bool = False
    """The operator runs on the host that was named with the lock. A receiver that was considered failed during the migration gets no other
    message about the move."""


class Prepare(msgspec.Struct, frozen=True, tag="prepare"):
    """Reserve room for a migrating operator, and connect to the operators that it feeds."""

    spec: OperatorSpec
    epoch: Epoch
    coordinator: Node
    feeds: Annotated[tuple[Node, ...], MANY] = ()


class StateChunk(msgspec.Struct, frozen=True, tag="state"):
    """A piece of the state of a prepared operator, acknowledged when it has been applied; the last one installs the state."""

    operator: Operator
    epoch: Epoch
    index: Count
    last: bool
    data: Data
    urgent: Share = 0.0
    """Urgency from 0 (may wait for other work) to 1 (must not wait)."""


class Activate(msgspec.Struct, frozen=True, tag="activate"):
    """The migration is committed: run."""

    operator: Operator
    epoch: Epoch


class Abandon(msgspec.Struct, frozen=True, tag="abandon"):
    """The migration is abandoned: drop the prepared operator."""

    operator: Operator
    epoch: Epoch


class OutcomeAsk(msgspec.Struct, frozen=True, tag="outcome?"):
    """Asks the coordinator for the outcome. Sent by a host that has prepared the operator and has heard nothing since."""

    operator: Operator
    epoch: Epoch


class Outcome(msgspec.Struct, frozen=True, tag="outcome"):
    """Answers OutcomeAsk: `committed`, `abandoned`, `undecided`, or `forgotten` from a host that has restarted."""

    verdict: Text
