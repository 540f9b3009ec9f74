"""Room for operators on one host: slots, reservations of slots, and memory for states."""

from collections.abc import Sized

from sbon.errors import PlacementError
from sbon.placement.reservations import HostingConfig, Reservations
from sbon.query.params.kinds import keeps_state
from sbon.query.plan import OperatorSpec
from sbon.state_budget import StateBudget
from sbon.types import NodeId


class Room:
    """The room of one host. Keys of reservations are query ids, or ids of operators that are migrating here.

    Parameters
    ----------
    hosted : the operators that are here
    slots : most operators that may be here at a time
    """

    def __init__(self, me: NodeId, hosted: Sized, slots: int, hosting: HostingConfig, budget: StateBudget) -> None:
        self._me = me
        self._hosted = hosted
        self._slots = slots
        self.budget = budget
        self.reservations = Reservations(hosting)
        self.is_leaving = False
        """True while this host is leaving: it takes no operators, and offers none of its own for sharing."""

    @property
    def empty_slots(self) -> int:
        """Number of slots without an operator, reserved ones included."""
        return 0 if self.is_leaving else max(0, self._slots - len(self._hosted))

    def free_slots(self, now: float) -> int:
        """Returns the number of further operators that could be taken, reserved slots excluded."""
        return max(0, self.empty_slots - self.reservations.held(now))

    def reserve(self, key: str, slots: int, now: float) -> int:
        """Reserves up to `slots` slots, replacing an earlier reservation; returns the number to report, at least the reserved one."""
        return self.reservations.reserve(key, slots, self.empty_slots, now)

    def check_memory(self, spec: OperatorSpec) -> None:
        """Checks whether there is memory for one more operator with state.

        Raises
        ------
        PlacementError
            The states of the running operators leave too little memory.
        """
        if keeps_state(spec.params) and self.budget.is_nearly_full:
            raise PlacementError(
                f"{self._me} takes no further operator that keeps state: those that run take {self.budget.used_bytes / 1e6:,.0f} MB of "
                f"{self.budget.limit_bytes / 1e6:,.0f} MB (engine.memory_max)"
            )

    def enter(self, spec: OperatorSpec, key: str, now: float) -> None:
        """Takes a new operator, and uses up a slot reserved under this key.

        Raises
        ------
        PlacementError
            There is no room, or this host is leaving.
        """
        if self.is_leaving:
            raise PlacementError(f"{self._me} is leaving, and takes no more operators")
        self.check_memory(spec)
        if not self.reservations.fill(key, self.empty_slots, now):
            raise PlacementError(
                f"{self._me} hosts {len(self._hosted)} operators, has promised the room for {self.reservations.held(now)} more, "
                f"and takes no more than {self._slots} (engine.operators_max)"
            )

    def enter_moved(self, key: str, state_bytes: int, now: float) -> None:
        """Takes an operator that has moved here with its state, and uses up the slot reserved for it.

        Raises
        ------
        PlacementError
            There is no room.
        """
        if not self.reservations.fill(key, self.empty_slots, now):
            raise PlacementError(f"{self._me} takes no more operators")
        if self.budget.would_exceed(state_bytes):
            raise PlacementError(f"{self._me} has no room for a state of {state_bytes} bytes (engine.memory_max)")
        self.budget.measured(key, state_bytes)
