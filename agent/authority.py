"""Checks whether another agent is entitled to send a message (`sbon.wire.authority`): provides the facts, and counts and logs refused
messages. The node asks before it handles a message.

Refused messages are counted by type, logged at a bounded rate, and otherwise ignored; the connection stays open.
"""

import ipaddress
from collections import Counter
from functools import lru_cache
from typing import Any, Protocol

import structlog

from sbon.errors import AuthorityError, ProtocolError, UnsupportedError
from sbon.links.places import Standing, Whereabouts
from sbon.types import Address, LinkId, NodeId, OperatorId
from sbon.wire.authority import Way, judge, ways
from sbon_agent.engine.flow import Flow
from sbon_agent.host import Host
from sbon_agent.migration.migrations import Migrations
from sbon_agent.network.connection import Connection

log = structlog.get_logger()

LOG_PAUSE_S = 60.0
"""Seconds between two log lines for the same node and type: a peer that sends refused messages at will must not fill the disk."""
LOGGED_MAX = 256


class Owned(Protocol):
    """Queries that this agent has taken."""

    def places(self, operator: OperatorId) -> list[Whereabouts]:
        """Returns where an operator of theirs runs."""


class Members(Protocol):
    """Addresses of members."""

    def address_of(self, node: NodeId) -> Address | None:
        """Returns a member's address; None if it is unknown or has left."""


class Authority:
    """Check of messages before they are handled; implements `sbon.wire.authority.Facts`."""

    def __init__(self, host: Host, me: NodeId, flow: Flow, migrations: Migrations, owned: Owned, members: Members, check: bool) -> None:
        self._host = host
        self._me = me
        self._flow = flow
        self._migrations = migrations
        self._owned = owned
        self._members = members
        self._check_addresses = check
        self._refused: Counter[str] = Counter()
        self._totals = {"messages_refused": 0, "messages_late": 0, "messages_unsupported": 0}
        self._logged_at_s: dict[tuple[NodeId, str], float] = {}

    @property
    def counters(self) -> dict[str, int]:
        """Number of all refused messages, and of those of each type."""
        return {**self._totals, **{f"messages_refused_{name}": count for name, count in sorted(self._refused.items())}}

    def speaker(self, connection: Connection) -> NodeId:
        """Returns the node that speaks on a connection; empty if that cannot be shown.

        A connection that this agent dialled leads to the member's address. An accepted one only proves that it comes from *some* member: it
        must come from the address of the member that it names, as far as that is known.
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
        self._log("message.refused", claimed or speaker, name, str(problem))
        return problem

    def unsupported(self, node: NodeId, problem: ProtocolError) -> None:
        """Counts and logs a message that this release does not know."""
        self._totals["messages_unsupported"] += 1
        self._log("message.unsupported", node, "", str(problem))

    # ------------------------------------------------------------------------------------------------------------ facts

    def sending_end(self, link: LinkId) -> Whereabouts | None:
        """Returns where a link begins whose receiving end is here."""
        return self._flow.input(link)

    def receiving_end(self, link: LinkId) -> Whereabouts | None:
        """Returns where a link leads whose sending end is here."""
        carrier = self._flow.carrier(link)
        return None if carrier is None else carrier[1]

    def places(self, operator: OperatorId) -> list[Whereabouts]:
        """Returns all that is known here about where an operator on another host runs."""
        return self._flow.places(operator) + self._owned.places(operator)

    def coordinator(self, operator: OperatorId) -> tuple[NodeId, int] | None:
        """Returns the host that moves an operator to here, and the epoch."""
        return self._migrations.coordinator(operator)

    def holder(self, operator: OperatorId) -> NodeId | None:
        """Returns the host for whose migration of this operator neighbours here are locked."""
        return self._migrations.holder(operator)

    def _log(self, event: str, node: NodeId, name: str, reason: str) -> None:
        now, key = self._host.now(), (node, name)
        if now - self._logged_at_s.get(key, float("-inf")) < LOG_PAUSE_S:
            return
        if len(self._logged_at_s) >= LOGGED_MAX:
            del self._logged_at_s[next(iter(self._logged_at_s))]
        self._logged_at_s[key] = now
        log.warning(event, node=self._me, peer=node, reason=reason)


@lru_cache(maxsize=4096)
def are_other_machines(one: str, other: str) -> bool:
    """Tells whether two hosts are surely different machines: both are addresses, and not the same one. Host names prove nothing.

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
