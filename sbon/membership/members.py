"""The known facts about one member, and the rule that decides between two statements about it.

Statements about one member are ordered by (incarnation, rank of the status). The greater statement wins in whatever order they arrive, so
all tables converge. Only the member itself raises its incarnation; by this it refutes a suspicion.

    rank     0 alive -> 1 suspect -> 2 failed -> 3 left          (same incarnation: only to the right)
    any  --- alive with a higher incarnation ---> alive          (refuted, rejoined, restarted)

Source: SWIM (Das et al., DSN 2002), section 4.2; `left` is added, as Serf has it.
"""

import enum

import msgspec

from sbon.cost_space.coordinate import Coordinate
from sbon.types import Address, NodeId


class MemberStatus(enum.Enum):
    """Status of a member, named as in Serf, with SWIM's suspicion."""

    ALIVE = "alive"
    SUSPECT = "suspect"
    FAILED = "failed"
    LEFT = "left"


RANK: dict[MemberStatus, int] = {MemberStatus.ALIVE: 0, MemberStatus.SUSPECT: 1, MemberStatus.FAILED: 2, MemberStatus.LEFT: 3}


def overrides(incarnation: int, status: MemberStatus, than_incarnation: int, than_status: MemberStatus) -> bool:
    """Tells whether the first statement about a member replaces the second."""
    if incarnation != than_incarnation:
        return incarnation > than_incarnation
    return RANK[status] > RANK[than_status]


class Capacity(msgspec.Struct, frozen=True, array_like=True):
    """Free capacity of a member."""

    free_operators: int = 0
    """Number of operators that the member would accept now."""
    load: float = 0.0
    """CPU use, 0 to 1 per core."""


class Member(msgspec.Struct, kw_only=True):
    """One row of the table. It changes in place as news arrives, so do not keep it; only the roster writes to it."""

    name: NodeId
    address: Address
    status: MemberStatus
    incarnation: int
    boot: int
    """Random number drawn when the process started; it distinguishes a restarted member from its former process."""
    labels: dict[str, str]
    coordinate: Coordinate | None = None
    capacity: Capacity = Capacity()
    digest: bytes = b""
    """Digest of the member's operators (`sbon.membership.digest`)."""
    since_s: float = 0.0
    """When the status last changed, by our clock, seconds."""
    vitals_version: tuple[int, int] = (-1, -1)
    digest_version: tuple[int, int] = (-1, -1)

    @property
    def reachable(self) -> bool:
        """Tells whether the member is alive or suspected: such members are probed and get news."""
        return self.status is MemberStatus.ALIVE or self.status is MemberStatus.SUSPECT
