"""Tests which lost sources resume in the middle of their files."""

import msgspec
import pytest

from sbon.query.params.ordered import OrderColumn, TopParams
from sbon.query.params.source import SinkParams, SourceParams
from sbon.query.plan import LinkSpec, OperatorSpec
from sbon.supervision.file_positions import may_begin
from sbon.supervision.recovery_attempt import Attempt
from sbon.supervision.recovery_picture import Picture
from sbon.supervision.rows_made import Made
from sbon.wire.deployment import Instantiate, Renewed, User
from sbon.wire.reports import FilePosition
from tests.supervision.test_recovery_machine import MAP, SINK, SOURCE, SPECS, picture

FILE = msgspec.structs.replace(SPECS[SOURCE], params=SourceParams("s", "file", (("path", "r.csv"),), (), None))
FROM_SOURCE, TO_SINK = f"{SOURCE}>{MAP}:0", f"{MAP}>{SINK}:0"
AT = {SOURCE: FilePosition(FROM_SOURCE, 100, (40,))}


def seen(lost: set[str], **changes: object) -> Picture:
    return picture(lost, specs={**SPECS, SOURCE: FILE}, **changes)


def taken(link: LinkSpec, rows: int) -> dict[str, Renewed]:
    return {link.id: Renewed(link, 9, rows, 0)}


@pytest.mark.parametrize(("rows", "begins"), [(39, False), (40, True), (55, True)])
def test_a_consumer_must_have_taken_all_rows_that_were_made(rows: int, begins: bool):
    one = seen({SOURCE, MAP})
    found = may_begin(one, {SOURCE, MAP}, taken(one.links[1], rows), AT)
    assert found == ({SOURCE: Made(100, (40,))} if begins else {})


def test_a_source_alone_begins_behind_what_its_consumer_has_taken():
    one = seen({SOURCE})
    assert may_begin(one, {SOURCE}, taken(one.links[0], 100), AT)
    assert not may_begin(one, {SOURCE}, taken(one.links[0], 99), AT)
    assert not may_begin(one, {SOURCE}, {}, AT), "the consumer is away"


def test_a_sink_that_is_lost_too_must_find_its_rows():
    everything = {SOURCE, MAP, SINK}
    assert may_begin(seen(everything, begun_at={SINK: 0}), everything, {}, AT)
    assert not may_begin(seen(everything), everything, {}, AT)
    tcp = msgspec.structs.replace(SPECS[SINK], params=SinkParams("k", "tcp", ()))
    one = picture(everything, specs={**SPECS, SOURCE: FILE, SINK: tcp}, begun_at={SINK: 0})
    assert not may_begin(one, everything, {}, AT)


def test_an_operator_with_state_that_is_lost_too_needs_all_rows():
    state = OperatorSpec(MAP, TopParams("ts", (OrderColumn("v", descending=False, nulls_first=False),), (), 1), (), None, None, "")
    one = picture({SOURCE, MAP}, specs={**SPECS, SOURCE: FILE, MAP: state})
    assert not may_begin(one, {SOURCE, MAP}, taken(one.links[1], 50), AT)


def test_rows_made_by_what_is_lost_must_be_known():
    one = seen({SOURCE, MAP})
    assert not may_begin(one, {SOURCE, MAP}, taken(one.links[1], 50), {SOURCE: FilePosition(FROM_SOURCE, 100)})


def test_another_link_other_queries_and_a_link_of_a_later_plan_are_read_from_the_first_row():
    one = seen({SOURCE, MAP})
    answers = taken(one.links[1], 50)
    assert not may_begin(one, {SOURCE, MAP}, answers, {SOURCE: FilePosition(TO_SINK, 100, (40,))})
    for change in ({"users": {MAP: (User("other", "ams"),)}}, {"joined": {TO_SINK: 3}}, {"carriers": {FROM_SOURCE: "m"}}):
        assert not may_begin(seen({SOURCE, MAP}, **change), {SOURCE, MAP}, answers, AT)


def test_a_position_with_which_an_attempt_has_failed_is_not_used_again():
    one = seen({SOURCE})
    link = one.links[0]
    for tried, begins in (({}, True), ({SOURCE: 70}, True), ({SOURCE: 100}, False)):
        lost = frozenset({SOURCE})
        attempt = Attempt(1, "q", User("q", "ams"), 65_536, lost, lost, {SOURCE: "fra"}, {link.id: link}, consumers=taken(link, 120))
        known = msgspec.structs.replace(one, positions=AT)
        attempt.decide(known, tried)
        [[step]] = attempt.make(known)
        assert isinstance(step.message, Instantiate)
        assert step.message.taken_up is not None
        assert step.message.taken_up.begins_behind == (100 if begins else msgspec.UNSET)
        assert [end.skip_rows for end in step.message.outputs] == [20 if begins else 120]
