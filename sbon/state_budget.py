"""Limits the memory of all operators' states on one host, and chooses the operator that fails when they exceed it.

    measured    -> the operator's state counts with this size
    forgotten   -> it no longer counts: destroyed, failed, moved away
    over the limit -> the operator with the largest state fails; by the pigeonhole principle it has more than an equal share
    nearly full -> the host takes no further operator that keeps state

Sizes are measured now and then (`is_due`), and the limit is a part of the machine's memory: between two measurements, and while a
window closes, an operator may take more for a moment.
"""

from typing import TYPE_CHECKING

import msgspec

from sbon.ports import Disk
from sbon.query.params.kinds import Params
from sbon.query.params.ordered import DeduplicateParams
from sbon.query.params.rowwise import FunctionParams
from sbon.state.room import StateRoom
from sbon.types import OperatorId

if TYPE_CHECKING:
    from sbon.execution.settings import EngineConfig

ADMIT_SHARE = 0.8
"""Share of the limit above which the host accepts no further operator with state: running ones need room to grow."""
MEASURE_BATCHES = 64
"""Batches after which a state is measured again, however small they were."""
MEASURE_BYTES_MIN, MEASURE_BYTES_MAX = 64 * 1024, 64 * 2**20
"""Input after which a state is measured again lies between these: a 64th of the limit."""
DEFAULT_SHARE = 0.5
"""Default limit as a share of the machine's memory."""


def room_of(config: "EngineConfig", limit_bytes: int, disk: Disk, process: str) -> StateRoom | None:
    """Returns the disk for states, without what a former process has left there; None if the settings want none.

    Parameters
    ----------
    limit_bytes : memory for all states
    process : text in the files' names that no former process of this host has used
    """
    share = int(ADMIT_SHARE * limit_bytes)
    memory_bytes = config.state_memory_max or limit_bytes // 4
    room = StateRoom(disk, memory_bytes, share, config.state_disk_max, config.quantum_rows, process, config.deferred_bytes)
    room.clear()
    return room if config.state_disk_max else None


class Excess(msgspec.Struct, frozen=True):
    """The operator that must fail, and why."""

    operator: OperatorId
    reason: str


class StateBudget:
    """The states of one host.

    Parameters
    ----------
    limit_bytes : for all of them together, at least 1
    room : disk for the states that may go there; None: none does
    """

    def __init__(self, limit_bytes: int, room: StateRoom | None = None) -> None:
        self.limit_bytes = limit_bytes
        self.room = room
        self.failed = 0
        """Number of operators that had to fail."""
        self._sizes: dict[OperatorId, int] = {}
        self._measure_bytes = min(max(limit_bytes // 64, MEASURE_BYTES_MIN), MEASURE_BYTES_MAX)

    @property
    def used_bytes(self) -> int:
        """Returns the bytes of all states, as last measured."""
        return sum(self._sizes.values())

    @property
    def room_bytes(self) -> int:
        """Returns the bytes left."""
        return max(0, self.limit_bytes - self.used_bytes)

    def arriving_bytes(self, params: Params) -> int:
        """Returns the size of a state that an operator may bring along: what fits into memory, and on disk where it may go there."""
        goes_to_disk = isinstance(params, DeduplicateParams) or (isinstance(params, FunctionParams) and params.partition)
        return self.room_bytes + (self.room.left_bytes if self.room is not None and goes_to_disk else 0)

    @property
    def is_nearly_full(self) -> bool:
        """Tells whether no further operator with state is accepted."""
        return self.used_bytes > ADMIT_SHARE * self.limit_bytes

    def would_exceed(self, more_bytes: int) -> bool:
        """Returns whether a further state of this size would be too much for the limit."""
        return self.used_bytes + more_bytes > self.limit_bytes

    def is_due(self, batches: int, size_bytes: int) -> bool:
        """Returns whether a state must be measured again that has taken this much input since the last time."""
        return batches >= MEASURE_BATCHES or size_bytes >= self._measure_bytes

    def measured(self, operator: OperatorId, state_bytes: int) -> Excess | None:
        """Notes the size of a state. Returns the operator that must end, if all states together exceed the limit now."""
        self._sizes[operator] = state_bytes
        used = self.used_bytes
        if used <= self.limit_bytes:
            return None
        largest = max(self._sizes, key=lambda one: (self._sizes[one], one))
        self.failed += 1
        size = self._sizes.pop(largest)
        return Excess(
            largest,
            f"its state of {size / 1e6:,.1f} MB is the largest of {len(self._sizes) + 1} on this host, which together take "
            f"{used / 1e6:,.1f} MB of {self.limit_bytes / 1e6:,.1f} MB (engine.memory_max); "
            "keep fewer groups or shorter windows, or raise that setting",
        )

    def forget(self, operator: OperatorId) -> None:
        """Stops counting an operator."""
        self._sizes.pop(operator, None)
