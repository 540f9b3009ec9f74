"""The record of a finished migration, for telemetry and for people."""

import msgspec

from sbon.types import NodeId, OperatorId, QueryId


class MigrationRecord(msgspec.Struct, frozen=True):
    """One ended migration, for telemetry and `sbon operators`."""

    operator: OperatorId
    queries: tuple[QueryId, ...]
    here: NodeId
    there: NodeId
    committed: bool
    reason: str
    """Why the migration was wanted."""
    outcome: str
    pause_s: float
    seconds: float
    state_bytes: int
    """Bytes sent: the state, later input, and the engine's record."""
    phases: dict[str, float] = {}
    """Monotonic time at which each phase (`sbon.migration.coordinator.Phase`) was first entered, in seconds."""
    copy_s: float = 0.0
    """Seconds in which the state was copied while the operator ran on."""
    rounds: int = 0
    """Number of rounds in which later input was sent."""
