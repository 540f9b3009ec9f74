"""Push-pull: two agents exchange their whole tables, which repairs whatever gossip has missed and joins newcomers."""

from sbon.membership.actions import Action
from sbon.membership.members import MemberStatus
from sbon.membership.messages import Alive, Failed, Left, Row, State, encode
from sbon.membership.roster import Roster

STATUSES = (MemberStatus.ALIVE, MemberStatus.SUSPECT, MemberStatus.FAILED, MemberStatus.LEFT)
_NUMBER = {status: number for number, status in enumerate(STATUSES)}


def write_state(roster: Roster, now: float) -> bytes:
    """Our table, as bytes for `decode_state`."""
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
    ]
    return encode(State(roster.own.name, rows))


def merge_state(roster: Roster, state: State, now: float, out: list[Action]) -> None:
    """Take in another agent's table.

    A member that the other side holds for failed, and we do not, becomes a suspect only: after a partition it is the other side that
    is out of date, and the member must have its chance to object.
    """
    for row in state.rows:
        status = STATUSES[row.status]
        record = Alive(row.name, row.incarnation, row.boot, row.host, row.port, row.labels)
        member = roster.members.get(row.name)
        if member is None and not (status is MemberStatus.ALIVE or status is MemberStatus.SUSPECT):
            if row.age_s < roster.config.failed_keep_s:
                roster.add(record, status, now - row.age_s, out)
        elif status is MemberStatus.ALIVE:
            roster.hear_alive(record, now, out)
        elif status is MemberStatus.LEFT:
            roster.hear(Left(row.name, row.incarnation), now, out)
        elif member is not None and not member.reachable:
            roster.hear(Failed(row.name, row.incarnation, state.name), now, out)
        else:
            _doubt(roster, record, state.name, now, out)
        if row.vitals is not None and row.vitals.name == row.name:
            roster.hear_vitals(row.vitals, out)
        if row.hosted_version[1] >= 0:
            roster.set_digest(row.name, row.hosted_version, row.digest, out)


def _doubt(roster: Roster, record: Alive, by: str, now: float, out: list[Action]) -> None:
    """The other side suspects a member, or holds it for failed while we do not."""
    if record.name == roster.own.name:
        roster.hear(Failed(record.name, record.incarnation, by), now, out)
        return
    roster.hear_alive(record, now, out)
    member = roster.members.get(record.name)
    if member is not None and member.incarnation == record.incarnation:
        roster.suspect(member, record.incarnation, by, now, out)
