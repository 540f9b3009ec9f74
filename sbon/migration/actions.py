"""What the host of a migrating operator must do: the results of `sbon.migration.machine`."""

from typing import TypeAlias

import msgspec

from sbon.types import NodeId, OperatorId


class AskLock(msgspec.Struct, frozen=True):
    """Ask a neighbour's host to keep its operators still."""

    node: NodeId
    neighbours: tuple[OperatorId, ...]


class SendUnlock(msgspec.Struct, frozen=True):
    """Tell a neighbour's host that it is over."""

    node: NodeId
    moved: bool = False
    """It runs on the new host."""


class AskPrepare(msgspec.Struct, frozen=True):
    """Ask the new host to build the operator."""

    node: NodeId


class Copy(msgspec.Struct, frozen=True):
    """Send the state while the operator runs on, telling `Migration.progressed`; then `Migration.copied`."""

    node: NodeId


class CopyMore(msgspec.Struct, frozen=True):
    """Send what the operator has been given since; then `Migration.copied` again."""


class StopCopying(msgspec.Struct, frozen=True):
    """Forget the copy."""


class Pause(msgspec.Struct, frozen=True):
    """Let the operator finish its batch and run no further one; then `Migration.paused`."""


class Transfer(msgspec.Struct, frozen=True):
    """Send the rest; then `Migration.transferred`."""

    node: NodeId


class Commit(msgspec.Struct, frozen=True):
    """The old copy is no more: forget it, and tell latecomers where it went."""


class SendActivate(msgspec.Struct, frozen=True):
    """Tell the new host to run."""

    node: NodeId


class SendMoved(msgspec.Struct, frozen=True):
    """Tell a neighbour's host, or an owner, the new place."""

    node: NodeId


class Resume(msgspec.Struct, frozen=True):
    """The old copy goes on."""


class SendAbandon(msgspec.Struct, frozen=True):
    """Tell the new host to forget what it prepared."""

    node: NodeId


class Ended(msgspec.Struct, frozen=True):
    """Nothing more will come."""

    committed: bool
    reason: str
    pause_s: float
    """From the pause until the new copy was known to run (or the old one ran again); 0 if it never paused."""
    seconds: float
    copy_s: float = 0.0
    """From the first piece of the state to the pause."""
    rounds: int = 0
    """How often input given meanwhile was sent after."""


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
