"""Checks whether another agent is entitled to send a message (`sbon.wire.authority`). The node asks before it handles a message.

The facts come from the parts of the agent. Refused messages are counted by type, reported at a bounded rate, and otherwise ignored; the
connection stays open.
"""

import ipaddress
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Protocol

from sbon.errors import AuthorityError, ProtocolError, UnsupportedError
from sbon.links.ends import Ends
from sbon.links.places import Standing, Whereabouts
from sbon.types import Address, LinkId, NodeId, OperatorId, QueryId
from sbon.wire.authority import Way, judge, ways

REPORT_PAUSE_S = 60.0
"""Seconds between two reports about the same node and type, so that a peer cannot fill the disk with reports of refused messages."""
REPORTED_MAX = 256


class Migrations(Protocol):
    """Migrations that this host takes part in."""

    def coordinator(self, operator: OperatorId) -> tuple[NodeId, int] | None:
        """Returns the host that moves an operator to this host, and the epoch; None if none does."""

    def holder(self, operator: OperatorId) -> NodeId | None:
        """Returns the host that has locked this operator's neighbours here for a migration; None if none has."""


class Connection(Protocol):
    """A connection to another agent."""

    @property
    def dialled(self) -> bool: ...
    @property
    def node(self) -> NodeId: ...
    @property
    def address(self) -> Address: ...


class Owned(Protocol):
    """Queries that this agent has taken."""

    def places(self, operator: OperatorId) -> list[Whereabouts]:
        """Returns the known places of an operator of these queries."""

    def owner_of(self, query: QueryId) -> NodeId:
        """Returns the owner of a query."""

    def ownership_of(self, query: QueryId) -> int:
        """Returns the ownership epoch of a query."""


class Members(Protocol):
    """Addresses of members."""

    def address_of(self, node: NodeId) -> Address | None:
        """Returns a member's address; None if it is unknown or has left."""


class Authority:
    """Check of messages before they are handled; implements `sbon.wire.authority.Facts`.

    Parameters
    ----------
    check : True if a connection must come from the address of the member that it names
    now : returns monotonic seconds
    report : called with an event, the node that a message came from, and the reason why the message was refused
    """

    def __init__(
        self,
        me: NodeId,
        ends: Ends[Any, Any, Any],
        migrations: Migrations,
        owned: Owned,
        members: Members,
        check: bool,
        now: Callable[[], float],
        report: Callable[[str, NodeId, str], None],
    ) -> None:
        self._me = me
        self._ends = ends
        self._migrations = migrations
        self._owned = owned
        self._members = members
        self._check_addresses = check
        self._now = now
        self._report_to = report
        self._refused: Counter[str] = Counter()
        self._totals = {"messages_refused": 0, "messages_late": 0, "messages_unsupported": 0}
        self._reported_at_s: dict[tuple[NodeId, str], float] = {}

    @property
    def counters(self) -> dict[str, int]:
        """Counts of refused, late and unsupported messages, and of refused messages by type."""
        return {**self._totals, **{f"messages_refused_{name}": count for name, count in sorted(self._refused.items())}}

    def speaker(self, connection: Connection) -> NodeId:
        """Returns the node that speaks on a connection; empty if that cannot be proved.

        A connection that this agent dialled leads to the member's address. An accepted connection only proves that it comes from *some*
        member, so it must also come from the address of the member that it names, if that address is known.
        """
        if connection.dialled or not self._check_addresses:
            return connection.node
        known = self._members.address_of(connection.node)
        return connection.node if known is None or not are_other_machines(known[0], connection.address[0]) else ""

    def check(self, speaker: NodeId, message: Any, way: Way, claimed: NodeId = "") -> ProtocolError | None:
        """Judges one message; returns the reason to refuse it, or None.

        Parameters
        ----------
        speaker : result of `speaker`
        claimed : the name that the other end uses
        """
        name = type(message).__name__
        if not way & ways(type(message)):
            problem: ProtocolError = UnsupportedError(f"{name} is not {'a request' if way is Way.ASKED else 'said one way'}")
            self.unsupported(claimed or speaker, problem)
            return problem
        judgement = judge(message, speaker, self)
        if judgement.standing is Standing.SPEAKS:
            return None
        problem = AuthorityError(f"{self._me} refuses {name} from {claimed or speaker}: only {judgement.who} may say so")
        if claimed and not speaker:
            problem = AuthorityError(
                f"{problem}, and the connection does not come from the address of {claimed} "
                f"(its `advertise`, or peers.check_addresses here, may be wrong)"
            )
        if judgement.standing is Standing.LATE:
            self._totals["messages_late"] += 1
            return problem
        self._totals["messages_refused"] += 1
        self._refused[name] += 1
        self._report("message.refused", claimed or speaker, name, str(problem))
        return problem

    def unsupported(self, node: NodeId, problem: ProtocolError) -> None:
        """Counts and logs a message that this release does not know."""
        self._totals["messages_unsupported"] += 1
        self._report("message.unsupported", node, "", str(problem))

    # ------------------------------------------------------------------------------------------------------------ facts

    def sending_end(self, link: LinkId) -> Whereabouts | None:
        """Returns the place of a link's source, if the link's receiving end is here."""
        found = self._ends.takes(link)
        return None if found is None else found[1]

    def receiving_end(self, link: LinkId) -> Whereabouts | None:
        """Returns the place of a link's target, if the link's sending end is here."""
        found = self._ends.gives(link)
        return None if found is None else found[1]

    def places(self, operator: OperatorId) -> list[Whereabouts]:
        """Returns all known places of an operator that runs elsewhere."""
        return self._ends.places(operator) + self._owned.places(operator)

    def owner_of(self, query: QueryId) -> NodeId:
        """Returns the known owner of a query."""
        return self._owned.owner_of(query)

    def ownership_of(self, query: QueryId) -> int:
        """Returns the ownership epoch of the query's known owner."""
        return self._owned.ownership_of(query)

    def coordinator(self, operator: OperatorId) -> tuple[NodeId, int] | None:
        """Returns the host that moves an operator to this host, and the epoch; None if none does."""
        return self._migrations.coordinator(operator)

    def holder(self, operator: OperatorId) -> NodeId | None:
        """Returns the host that has locked this operator's neighbours here for a migration; None if none has."""
        return self._migrations.holder(operator)

    def _report(self, event: str, node: NodeId, name: str, reason: str) -> None:
        now, key = self._now(), (node, name)
        if now - self._reported_at_s.get(key, float("-inf")) < REPORT_PAUSE_S:
            return
        if len(self._reported_at_s) >= REPORTED_MAX:
            del self._reported_at_s[next(iter(self._reported_at_s))]
        self._reported_at_s[key] = now
        self._report_to(event, node, reason)


@lru_cache(maxsize=4096)
def are_other_machines(one: str, other: str) -> bool:
    """Tells whether two hosts are certainly different machines: both are IP addresses, and these differ. Host names prove nothing.

    Examples
    --------
    >>> [are_other_machines("10.0.0.1", other) for other in ("10.0.0.1", "::ffff:10.0.0.1", "10.0.0.2", "ams.example")]
    [False, False, True, False]
    """
    first, second = _ip(one), _ip(other)
    return first is not None and second is not None and first != second


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
