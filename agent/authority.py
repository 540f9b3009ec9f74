"""Whether another agent may say what it says (`sbon.wire.authority`): the facts for it, and what becomes of refused messages.

Refused messages are counted by type and logged at a bounded rate. Nothing is done for them, and the connection stands.
"""

import ipaddress
from collections import Counter
from functools import lru_cache
from typing import Any, Protocol

import structlog

from sbon.errors import AuthorityError, ProtocolError, UnsupportedError
from sbon.types import Address, LinkId, NodeId, OperatorId
from sbon.whereabouts import Standing, Whereabouts
from sbon.wire.authority import Way, judge, ways
from sbon_agent.engine.flow import Flow
from sbon_agent.host import Host
from sbon_agent.network.connection import Connection
from sbon_agent.optimising.migrations import Migrations

log = structlog.get_logger()

LOG_PAUSE_S = 60.0
"""One line a minute for each node and type: who sends refused messages at will must not fill the disk."""
LOGGED_MAX = 256


class Owned(Protocol):
    """The queries that this agent has taken."""

    def places(self, operator: OperatorId) -> list[Whereabouts]:
        """Where an operator of theirs is."""


class Members(Protocol):
    """Who is where."""

    def address_of(self, node: NodeId) -> Address | None:
        """Where a member is; None if it is unknown or has left."""


class Authority:
    """The check before any message is handled (`sbon.wire.authority.Facts`)."""

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
        """All refused messages, and those of each type."""
        return {**self._totals, **{f"messages_refused_{name}": count for name, count in sorted(self._refused.items())}}

    def speaker(self, connection: Connection) -> NodeId:
        """Who speaks on a connection; empty where that cannot be shown.

        A connection that we have dialled leads to the member's address. One that was accepted says only that it comes from *some* member:
        it must come from the address of the one that it names, as far as that is known.
        """
        if connection.dialled or not self._check_addresses:
            return connection.node
        known = self._members.address_of(connection.node)
        return connection.node if known is None or not are_other_machines(known[0], connection.address[0]) else ""

    def check(self, speaker: NodeId, message: Any, way: Way, claimed: NodeId = "") -> ProtocolError | None:
        """Judges one message; returns why nothing may be done for it, or None.

        Parameters
        ----------
        speaker : as `speaker` has found
        claimed : the name that the other end goes by
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
        """A message that this release does not know."""
        self._totals["messages_unsupported"] += 1
        self._log("message.unsupported", node, "", str(problem))

    # ------------------------------------------------------------------------------------------------------------ facts

    def sending_end(self, link: LinkId) -> Whereabouts | None:
        """Where a link begins whose receiving end is here."""
        return self._flow.input(link)

    def receiving_end(self, link: LinkId) -> Whereabouts | None:
        """Where a link leads whose sending end is here."""
        carrier = self._flow.carrier(link)
        return None if carrier is None else carrier[1]

    def places(self, operator: OperatorId) -> list[Whereabouts]:
        """All that is known here of where an operator is that is elsewhere."""
        return self._flow.places(operator) + self._owned.places(operator)

    def coordinator(self, operator: OperatorId) -> tuple[NodeId, int] | None:
        """Which host moves an operator to here."""
        return self._migrations.coordinator(operator)

    def holder(self, operator: OperatorId) -> NodeId | None:
        """For which host operators here keep still while this one moves."""
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
    """Tells whether two hosts are surely different: both are addresses, and not the same one. Names of hosts prove nothing.

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
