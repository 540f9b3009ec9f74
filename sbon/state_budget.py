"""Limits the memory of all operators' states on one host, and chooses the operator that fails when they exceed it.

    measured    -> the operator's state counts with this size
    forgotten   -> the operator no longer counts: destroyed, failed, moved away
    over the limit -> the operator with the largest state fails; by the pigeonhole principle it has more than an equal share
    nearly full -> the host takes no further operator that keeps state

Sizes are measured only now and then (`is_due`). Between two measurements, and while a window closes, an operator may take more for a
moment. Therefore the limit is only a part of the machine's memory.
"""

from typing import TYPE_CHECKING

import msgspec

from sbon.ports import Disk
from sbon.query.params.kinds import Params
from sbon.query.params.ordered import DeduplicateParams
from sbon.query.params.rowwise import FunctionParams
from sbon.query.params.windowed import SessionParams, WindowParams
from sbon.state.room import StateRoom
from sbon.types import OperatorId

if TYPE_CHECKING:
    from sbon.execution.settings import EngineConfig

ADMIT_SHARE = 0.8
"""Above this share of the limit, the host accepts no further operator with state, because the running ones need room to grow."""
MEASURE_BATCHES = 64
"""A state is measured again after this many batches, however small."""
MEASURE_BYTES_MIN, MEASURE_BYTES_MAX = 64 * 1024, 64 * 2**20
"""A state is measured again after an input of 1/64 of the limit, but of at least and at most these bytes."""
DEFAULT_SHARE = 0.5
"""Default limit as a share of the machine's memory."""


def room_of(config: "EngineConfig", limit_bytes: int, disk: Disk, process: str) -> StateRoom | None:
    """Returns the disk for states, after removing a former process's files; None if the settings allow no disk.

    Parameters
    ----------
    limit_bytes : memory for all states
    process : prefix of the files' names that no former process of this host has used
    """
    share = int(ADMIT_SHARE * limit_bytes)
    memory_bytes = config.state_memory_max or limit_bytes // 4
    room = StateRoom(disk, memory_bytes, share, config.state_disk_max, config.quantum_rows, process, config.deferred_bytes)
    room.clear()
    return room if config.state_disk_max else None


class Excess(msgspec.Struct, frozen=True):
    """The operator that must fail, and the reason."""

    operator: OperatorId
    reason: str


class StateBudget:
    """The states of one host.

    Parameters
    ----------
    limit_bytes : memory for all states together, at least 1
    room : disk for states that may go there; None: all states stay in memory
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
        """Returns the bytes that are still free."""
        return max(0, self.limit_bytes - self.used_bytes)

    def arriving_bytes(self, params: Params) -> int:
        """Returns the largest state that an arriving operator may have: the free memory, plus the free disk if its state may go there."""
        match params:
            case FunctionParams():
                goes_to_disk = bool(params.partition)
            case WindowParams() | SessionParams():
                goes_to_disk = bool(params.keys)
            case _:
                goes_to_disk = isinstance(params, DeduplicateParams)
        return self.room_bytes + (self.room.left_bytes if self.room is not None and goes_to_disk else 0)

    @property
    def is_nearly_full(self) -> bool:
        """Tells whether no further operator with state is accepted."""
        return self.used_bytes > ADMIT_SHARE * self.limit_bytes

    def would_exceed(self, more_bytes: int) -> bool:
        """Tells whether a further state of this size would exceed the limit."""
        return self.used_bytes + more_bytes > self.limit_bytes

    def is_due(self, batches: int, size_bytes: int) -> bool:
        """Tells whether a state must be measured again after this much input since the last measurement."""
        return batches >= MEASURE_BATCHES or size_bytes >= self._measure_bytes

    def measured(self, operator: OperatorId, state_bytes: int) -> Excess | None:
        """Notes the size of a state. If all states together now exceed the limit, returns the operator that must fail."""
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
