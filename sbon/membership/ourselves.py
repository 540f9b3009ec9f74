"""This agent's own row in the table of members, and its answers to others' statements about it.

The agent answers a statement that it is not alive, and a statement about a former process of its name, with a higher incarnation.
"""

from collections import Counter
from collections.abc import Callable

from sbon.membership.actions import Action, NameConflict
from sbon.membership.incarnations import OwnIncarnation
from sbon.membership.members import Member
from sbon.membership.messages import Alive, Hosted, News

FORMER_SELVES_MAX = 3
FORMER_SELVES_S = 60.0
"""We outbid other processes of our name at most FORMER_SELVES_MAX times within this period, in seconds. Statements about a former process
end by then; another running agent keeps outbidding us, which is a name conflict."""


def alive_record(member: Member) -> Alive:
    """Returns a member's record as news."""
    return Alive(member.name, member.incarnation, member.boot, *member.address, member.labels)


class Ourselves:
    """This agent's own row.

    Parameters
    ----------
    pass_on : sends news to others
    """

    def __init__(self, row: Member, pass_on: Callable[[News], None], counters: Counter[str]) -> None:
        self.row = row
        self.leaving = False
        """True once this agent has announced its departure; it then no longer answers statements."""
        self._pass_on = pass_on
        self._counters = counters
        self._incarnation = OwnIncarnation()
        self._former_selves_at_s: list[float] = []

    def alive(self) -> Alive:
        """Returns this agent's record as news."""
        return alive_record(self.row)

    def hosted(self) -> Hosted:
        """Returns the digest of our own operators as news."""
        return Hosted(self.row.name, self.row.incarnation, self.row.digest_version[1], self.row.digest)

    def object(self, incarnation: int, now: float) -> None:
        """Refutes a statement that we are not alive, with a higher incarnation."""
        if self.leaving:
            return
        if incarnation < self.row.incarnation:
            self._pass_on(self.alive())  # our last objection did not reach the accuser
        elif self._outbid(incarnation, now):
            self._counters["refutations"] += 1

    def hear_former_self(self, item: Alive, now: float, out: list[Action]) -> None:
        """Handles a statement about another process with our name: our process before a restart, or another agent."""
        if item.boot == self.row.boot or item.incarnation < self.row.incarnation or self.leaving:
            return
        self._former_selves_at_s = [at_s for at_s in self._former_selves_at_s if now - at_s < FORMER_SELVES_S]
        if len(self._former_selves_at_s) >= FORMER_SELVES_MAX:
            self._counters["name_conflicts"] += 1
            out.append(NameConflict(item.name, (item.host, item.port)))
            return
        self._former_selves_at_s.append(now)
        self._outbid(item.incarnation, now)

    def hear_hosted(self, item: Hosted) -> bool:
        """Outbids a digest of our operators that we did not send: only a higher incarnation overrides it. Returns True if it was false."""
        row = self.row
        is_false = item.incarnation == row.incarnation and item.version > row.digest_version[1] and not self.leaving
        if is_false:
            self._raise_incarnation(row.incarnation + 1)
        return is_false

    def _outbid(self, incarnation: int, now: float) -> bool:
        fresh = self._incarnation.above(incarnation, self.row.incarnation, now)
        if fresh is None:
            self._counters["incarnations_refused"] += 1
            return False
        self._raise_incarnation(fresh)
        return True

    def _raise_incarnation(self, incarnation: int) -> None:
        row = self.row
        row.incarnation = incarnation
        self._pass_on(self.alive())
        if row.digest_version[1] >= 0:
            row.digest_version = (incarnation, row.digest_version[1] + 1)
            self._pass_on(self.hosted())
