"""Push-pull: two agents exchange their whole tables, which repairs what gossip has missed and lets newcomers join."""

from sbon.membership.actions import Action
from sbon.membership.introductions import STRANGERS
from sbon.membership.members import MemberStatus
from sbon.membership.messages import Alive, Failed, Left, Row, State, encode
from sbon.membership.roster import Roster
from sbon.types import Address, NodeId

STATUSES = (MemberStatus.ALIVE, MemberStatus.SUSPECT, MemberStatus.FAILED, MemberStatus.LEFT)
_NUMBER = {status: number for number, status in enumerate(STATUSES)}


def write_state(roster: Roster, now: float) -> bytes:
    """Encodes our table for `decode_state`."""
    rows = [
        Row(
            member.name,
            _NUMBER[member.status],
            member.incarnation,
            member.boot,
            member.address[0],
            member.address[1],
            member.labels,
            max(0, int(now - member.since_s)),
            roster.vitals.get(member.name),
            member.digest_version,
            member.digest,
        )
        for member in roster.members.values()
        if roster.has_answered(member.name)
    ]
    return encode(State(roster.own.name, rows))


def merge_state(roster: Roster, state: State, now: float, out: list[Action], via: Address | None) -> None:
    """Merges another agent's table; `via` is the address that we dialled, if the agent answered there.

    A member that only the other side considers failed becomes a suspect here, and so can object: after a partition, the other side may be
    out of date.
    """
    teller = state.name if via is not None or is_reachable(roster, state.name) else STRANGERS
    for row in state.rows:
        if row.status >= len(STATUSES):
            roster.counters["news_unknown"] += 1
            continue
        status = STATUSES[row.status]
        record = Alive(row.name, row.incarnation, row.boot, row.host, row.port, row.labels)
        member = roster.members.get(row.name)
        if member is None and not (status is MemberStatus.ALIVE or status is MemberStatus.SUSPECT):
            if row.age_s < roster.config.failed_keep_s:
                roster.told_dead(record, status, now - row.age_s, out)
        elif status is MemberStatus.ALIVE:
            shown = row.name == state.name and member is not None and member.address == via
            roster.hear_alive(record, now, out, teller, shown=shown)
        elif status is MemberStatus.LEFT:
            roster.hear(Left(row.name, row.incarnation), now, out, teller)
        elif member is not None and not member.reachable:
            roster.hear(Failed(row.name, row.incarnation, state.name), now, out, teller)
        else:
            _doubt(roster, record, state.name, now, out, teller)
        if row.vitals is not None and row.vitals.name == row.name:
            roster.hear_vitals(row.vitals, out)
        if row.hosted_version[1] >= 0:
            roster.set_digest(row.name, row.hosted_version, row.digest, out)


def is_reachable(roster: Roster, name: NodeId) -> bool:
    """Tells whether a name is a member that has answered us and has not been seen to fail or leave since."""
    member = roster.members.get(name)
    return member is not None and member.reachable


def _doubt(roster: Roster, record: Alive, by: str, now: float, out: list[Action], teller: NodeId) -> None:
    """Handles a member that the other side suspects or considers failed, but we do not consider failed."""
    if record.name == roster.own.name:
        roster.hear(Failed(record.name, record.incarnation, by), now, out, teller)
        return
    roster.hear_alive(record, now, out, teller)
    member = roster.members.get(record.name)
    if member is not None and member.incarnation == record.incarnation:
        roster.suspect(member, record.incarnation, by, now, out)
