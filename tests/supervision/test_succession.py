"""A new owner waits for those agents that may run something of its query, and for no others."""

from typing import Any

import msgspec
import pytest

from sbon.membership.members import Member, MemberStatus
from sbon.supervision.deployment import Deployed
from sbon.supervision.kept_record import Content, decode_content, encode_content, may_run_on
from sbon.supervision.owning import Owning
from sbon.supervision.record import QueryRecord
from sbon.supervision.register import Register
from sbon.supervision.succession import Owned, Succession
from sbon.wire.ownership import Holder, Own, Record
from sbon.wire.reports import OperatorReport, OperatorReports
from tests.supervision.test_kept_record import LINK, MAP, PLAN, QUERY, SINK, SPECS, record
from tests.supervision.test_ownership import SILENCE, Services

ME, AMS = Holder("osl", 4), Holder("ams", 1)
AGENTS = [ME, *(Holder(name, 2) for name in ("fra", "nyc", "rio"))]
RUNS = OperatorReport(MAP, "running", "fra", epoch=3)


def written() -> bytes:
    """Returns the record of the former owner, ams: a projection on fra, which may move, and a sink on nyc."""
    one = QueryRecord(PLAN, Deployed(SPECS, (LINK,), {MAP: "fra", SINK: "nyc"}), "ams", 0.0)
    one.epochs.update({MAP: 3})
    return encode_content(one)


def content() -> Content:
    return decode_content(written())


@pytest.mark.parametrize(
    ("report", "silent", "may"),
    [
        (RUNS, {"rio"}, False),
        (RUNS, {"nyc"}, True),
        (OperatorReport(SINK, "running", "nyc"), {"rio"}, True),
        (msgspec.structs.replace(RUNS, state="finished", epoch=4), {"rio"}, False),
        (msgspec.structs.replace(RUNS, state="blocked"), {"rio"}, False),
        (msgspec.structs.replace(RUNS, epoch=2), {"rio"}, True),
        (msgspec.structs.replace(RUNS, state="paused"), {"rio"}, True),
        (msgspec.structs.replace(RUNS, state="prepared", epoch=4), {"rio"}, True),
    ],
    ids=[
        "all is known",
        "a pinned operator",
        "it has moved",
        "it has finished",
        "it waits",
        "an old copy",
        "it is moving",
        "it is about to run",
    ],
)
def test_an_operator_is_looked_for_everywhere_unless_it_is_pinned(report: OperatorReport, silent: set[str], may: bool) -> None:
    assert may_run_on(content(), [report], silent) is may


@pytest.mark.parametrize("change", [{"multicasts": decode_content(encode_content(record())).multicasts}, {"retiring": {"former": "rio"}}])
def test_what_the_record_need_not_name_by_now_is_looked_for_everywhere(change: dict[str, Any]) -> None:
    reports = [RUNS, OperatorReport(SINK, "running", "nyc")]
    assert not may_run_on(content(), reports, {"rio"})
    assert may_run_on(msgspec.structs.replace(content(), **change), reports, {"rio"})


@pytest.mark.parametrize("is_silent", [False, True])
def test_a_new_owner_takes_over_without_the_farthest_agent_and_knows_at_once_what_a_host_has_not(is_silent: bool) -> None:
    found: list[QueryRecord | ValueError] = []
    services, register = Services("osl"), Register("osl")
    members = {
        one.name: Member(name=one.name, address=("127.0.0.1", 1), status=MemberStatus.ALIVE, incarnation=1, boot=one.boot, labels={})
        for one in AGENTS
    }
    version = Record(QUERY, 0, 3, AMS, ((AMS, ME),), written())
    one = Owned(Owning(QUERY, ME, 1, version), version)
    Succession(services, lambda: 0.0, services, ME, lambda: members, register, lambda owned, record: found.append(record)).announce(one)

    asked = {node: done for node, message, done in services.asked if isinstance(message, Own)}
    assert asked.keys() == members.keys()
    asked["osl"](OperatorReports(reports=()))
    one.told.add(Holder("nyc", 2))  # nyc was told once more and has answered
    asked["nyc"](SILENCE if is_silent else OperatorReports(reports=()))
    assert not found, "the projection may be on rio"
    asked["fra"](OperatorReports(reports=(RUNS,)))
    [after] = found
    assert isinstance(after, QueryRecord)
    assert after.lost == (set() if is_silent else {SINK})
    asked["rio"](OperatorReports(reports=()))
    assert (len(found), one.told) == (1, set(AGENTS))
