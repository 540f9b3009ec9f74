"""Actions for the host of a migrating operator, returned by `sbon.migration.coordinator`."""

from typing import TypeAlias

import msgspec

from sbon.types import NodeId, OperatorId


class AskLock(msgspec.Struct, frozen=True):
    """Ask a neighbour's host to lock its operators."""

    node: NodeId
    neighbours: tuple[OperatorId, ...]


class SendUnlock(msgspec.Struct, frozen=True):
    """Tell a neighbour's host that the migration has ended."""

    node: NodeId
    moved: bool = False
    """The operator runs on the new host."""


class AskPrepare(msgspec.Struct, frozen=True):
    """Ask the new host to build the operator."""

    node: NodeId


class Copy(msgspec.Struct, frozen=True):
    """Send the state while the operator runs on, calling `Migration.progressed`; then call `Migration.copied`."""

    node: NodeId


class CopyMore(msgspec.Struct, frozen=True):
    """Send the input that the operator has received since the last round; then call `Migration.copied` again."""


class StopCopying(msgspec.Struct, frozen=True):
    """End the copy."""


class Pause(msgspec.Struct, frozen=True):
    """Let the operator finish its batch and run no further one; then call `Migration.paused`."""


class Transfer(msgspec.Struct, frozen=True):
    """Send the rest of the state; then call `Migration.transferred`."""

    node: NodeId


class Commit(msgspec.Struct, frozen=True):
    """Drop the old copy, and tell late senders the new host."""


class SendActivate(msgspec.Struct, frozen=True):
    """Tell the new host to run."""

    node: NodeId


class SendMoved(msgspec.Struct, frozen=True):
    """Tell a neighbour's host, or an owner, the operator's new place."""

    node: NodeId


class Resume(msgspec.Struct, frozen=True):
    """Let the old copy continue."""


class SendAbandon(msgspec.Struct, frozen=True):
    """Tell the new host to drop the operator that it has prepared."""

    node: NodeId


class Ended(msgspec.Struct, frozen=True):
    """No further action will come."""

    committed: bool
    reason: str
    pause_s: float
    """Seconds from the pause until the new copy was known to run (or the old one ran again); 0 if it never paused."""
    seconds: float
    copy_s: float = 0.0
    """Seconds from the first piece of the state to the pause."""
    rounds: int = 0
    """Number of rounds in which later input was sent."""


Action: TypeAlias = (
    AskLock
    | SendUnlock
    | AskPrepare
    | Copy
    | CopyMore
    | StopCopying
    | Pause
    | Transfer
    | Commit
    | SendActivate
    | SendMoved
    | Resume
    | SendAbandon
    | Ended
)
