"""The replacement of a query's broken links: the names that the new ones get. The test answers the messages."""

import itertools
from collections.abc import Callable

import msgspec
import pytest

from sbon.errors import LinkError, SbonError, UnsupportedError
from sbon.links.link_names import link_id
from sbon.query.params.rowwise import MapParams
from sbon.query.params.source import SinkParams, SourceParams
from sbon.query.params.windowed import WindowParams
from sbon.query.plan import Begin, LinkSpec, OperatorSpec, Plan
from sbon.supervision.account import Account
from sbon.supervision.continuation import Continuation
from sbon.supervision.deployment import Deployed
from sbon.supervision.generations import generation
from sbon.supervision.record import QueryRecord, QueryState
from sbon.supervision.recovery import Recovered
from sbon.supervision.recovery_picture import Rules
from sbon.supervision.refeeding import ROUNDS, Refeeding
from sbon.types import NodeId
from sbon.watermarks import WATERMARK_MIN
from sbon.wire.deployment import LeaveOut, Refeed, Renew, Renewed
from sbon.wire.messages import Done, Message
from sbon.wire.reports import OperatorReport

QUERY = "ams.t.1"
GENERATION = 65_536
MAP, SINK = f"{QUERY}.0", f"{QUERY}.1"
SPECS = (OperatorSpec(MAP, MapParams(None, None), (), None, None, ""), OperatorSpec(SINK, SinkParams("k", "file", ()), (), None, "nyc", ""))
LINK = LinkSpec(link_id(MAP, SINK, 0), MAP, SINK, 0, 1.0, 1.0)


class Services:
    """Answers messages with these answers, one after the other."""

    def __init__(self, answers: list[Message | SbonError]) -> None:
        self.me: NodeId = "ams"
        self.asked: list[Refeed | Renew | LeaveOut] = []
        self._answers = answers
        self.given: list[Message | SbonError] = []

    def request(self, node: NodeId, message: Message, done: Callable[[Message | SbonError], None], timeout_s: float = 0.0) -> None:
        assert isinstance(message, Refeed | Renew | LeaveOut)
        self.asked.append(message)
        self.given.append(self._answers.pop(0))
        done(self.given[-1])

    def tell(self, node: NodeId, message: Message) -> None:
        """Does nothing."""


def record(name: str | None) -> QueryRecord:
    """Returns a query whose link has this name at its source, or is missing there."""
    one = QueryRecord(Plan(QUERY, "k", "", SPECS, (LINK,)), Deployed(SPECS, (LINK,), {MAP: "fra", SINK: "nyc"}), "ams", 0.0)
    one.reported(OperatorReport(MAP, "running", "fra", links=() if name is None else ((name, 0, 0, 0.0, 0.0),)))
    one.reported(OperatorReport(SINK, "running", "nyc", received=((LINK.id, 0),)))
    return one


def test_a_replacement_that_is_repeated_has_the_same_name_and_no_attempt_of_a_recovery_has_it():
    services, one = Services([Done(), LinkError("silent"), Done(), Done()]), record(None)
    refeeding = Refeeding(services)
    for _ in range(ROUNDS + 1):
        refeeding.look(one, 0.0)
    names = {message.end.link.id for message in services.asked if not isinstance(message, LeaveOut)}
    assert (len(services.asked), len(names)) == (4, 1)
    assert [link.id for link in one.links] == [*names]
    assert f"{LINK.id}+{generation(one.health.healing.begins_anew())}" not in names


def test_a_replacement_goes_on_though_one_end_has_the_new_name_by_now():
    services, one = Services([Done(), LinkError("the answer is lost"), Done(), Done()]), record(None)
    refeeding = Refeeding(services)
    for _ in range(ROUNDS):
        refeeding.look(one, 0.0)
    last = services.asked[-1]
    assert isinstance(last, Refeed)
    new = last.end.link.id
    one.reported(OperatorReport(MAP, "running", "fra", links=((new, 0, 0, 0.0, 0.0),)))
    refeeding.look(one, 0.0)
    assert [type(message) for message in services.asked] == [Refeed] * 4
    assert [link.id for link in one.links] == [new]


def test_an_end_that_an_attempt_has_turned_under_a_later_name_is_turned_again():
    services, one = Services([LinkError("silent")]), record(f"{LINK.id}+7")
    one.health.healing.attempted = 7 * 2**16
    Refeeding(services).look(one, 0.0)
    [message] = services.asked
    assert isinstance(message, Renew)
    assert message.end.link.id == f"{LINK.id}+8"


FIRST = "ams.t.0.4"
FED = LinkSpec(link_id(FIRST, SINK, 0), FIRST, SINK, 0, 1.0, 1.0)


def fed_by_another_query(patience_s: float) -> QueryRecord:
    """Returns a query whose sink is fed by an operator of another query; the operator is away, and its query has finished."""
    one = QueryRecord(Plan(QUERY, "k", "", SPECS[1:], (FED,)), Deployed(SPECS[1:], (FED,), {FIRST: "fra", SINK: "nyc"}), "ams", 0.0)
    one.health.healing.rules = Rules(0.0, patience_s)
    one.reported(OperatorReport(FIRST, "running", "fra", rows_out=90, links=((FED.id, 70, 60, 0.0, 0.0),)))
    one.reported(OperatorReport(SINK, "running", "nyc", received=((FED.id, 60),)))
    one.node_failed("fra")
    one.reported(OperatorReport(FIRST, "over", "fra", rows_out=100, links=((FED.id, 80, 60, 0.0, 0.0),)))
    one.settle()
    return one


def test_a_link_from_an_operator_that_nobody_makes_again_ends_and_its_rows_are_counted_once():
    """The operator's own query has finished, so nobody makes it again; the query that it feeds would stay degraded for ever."""
    services, one = Services([LinkError("silent"), Done()]), fed_by_another_query(120.0)
    refeeding = Refeeding(services)
    for now, asked in ((10.0, 0), (100.0, 0), (130.0, 1), (132.0, 2), (134.0, 2)):
        refeeding.look(one, now)
        assert len(services.asked) == asked, "the host might come back with the operator"
    assert all(isinstance(message, Refeed) and message.is_over and not message.gives for message in services.asked)
    one.settle()
    assert (one.state, one.losses.rows) == (QueryState.RUNNING, 20)
    assert "about 20 rows" in one.reason
    one.node_failed("fra")
    one.reported(OperatorReport(FIRST, "missing", "fra"))
    assert not one.health.is_degraded, "the operator is not needed any more"
    last = services.asked[-1]
    assert isinstance(last, Refeed)
    assert last.end.link == one.links[0]


def test_a_link_that_has_ended_ends_once_more_when_its_target_has_begun_anew():
    services, one = Services([Done(), Done()]), fed_by_another_query(0.0)
    refeeding = Refeeding(services)
    refeeding.look(one, 0.0)
    [link] = one.links
    one.links = (LinkSpec(f"{FED.id}+9", FIRST, SINK, 0, 1.0, 1.0),)
    refeeding.look(one, 2.0)
    assert [message.lost for message in services.asked if isinstance(message, Refeed)] == [FED.id, f"{FED.id}+9"]
    assert link != one.links[0]


def test_an_operator_that_comes_back_with_its_host_in_time_goes_on():
    services, one = Services([]), fed_by_another_query(120.0)
    refeeding = Refeeding(services)
    refeeding.look(one, 0.0)
    one.reported(OperatorReport(FIRST, "finished", "fra", rows_out=100, links=((FED.id, 80, 60, 0.0, 0.0),)))
    refeeding.look(one, 130.0)
    assert not services.asked
    assert not one.health.is_degraded


def test_a_source_that_was_left_behind_with_two_operators_is_made_again(monkeypatch: pytest.MonkeyPatch):
    """If the source went on where it is, the operators behind its consumer would leave out too many rows."""
    monkeypatch.setattr(Account, "has_begun_without", lambda self, link, links: True)
    services, one = Services([]), record(f"{LINK.id}+7")
    Refeeding(services).look(one, 0.0)
    assert services.asked == []
    assert one.health.healing.turned == {MAP}


FILE, WINDOW = f"{QUERY}.0", f"{QUERY}.1"
WINDOWS = (
    OperatorSpec(FILE, SourceParams("s", "file", (), (), None), (), "ts", "fra", ""),
    OperatorSpec(WINDOW, WindowParams("ts", 10, 10, (), ()), (), "window_start", None, ""),
    OperatorSpec(f"{QUERY}.2", WindowParams("window_start", 20, 20, (), ()), (), "window_start", None, ""),
    OperatorSpec(f"{QUERY}.3", SinkParams("k", "file", ()), (), None, "nyc", ""),
)
CHAIN = tuple(LinkSpec(link_id(a.id, b.id, 0), a.id, b.id, 0, 1.0, 1.0) for a, b in itertools.pairwise(WINDOWS))


def begun_without_its_source() -> QueryRecord:
    """Returns a query whose window was made again while its source was away."""
    nodes = {spec.id: spec.pinned or "osl" for spec in WINDOWS}
    one = QueryRecord(Plan(QUERY, "k", "", WINDOWS, CHAIN), Deployed(WINDOWS, CHAIN, nodes), "ams", 0.0)
    go_on = {WINDOW: Continuation(watermark_us=20)}
    one.health.healing.account.add(Recovered({WINDOW: "osl"}, GENERATION, (), go_on, 1, 0.5))
    anew = msgspec.structs.replace(CHAIN[0], id=f"{CHAIN[0].id}+1")
    one.links = (anew, *CHAIN[1:])
    one.reported(OperatorReport(FILE, "running", "fra", links=((CHAIN[0].id, 0, 0, 0.0, 0.0),)))
    one.reported(OperatorReport(WINDOW, "running", "osl", epoch=GENERATION, received=((anew.id, 0),)))
    return one


def test_a_window_behind_an_operator_that_began_without_its_source_learns_what_it_lacks_too():
    """Both were made again together; the operator between them keeps nothing itself."""
    between = OperatorSpec(f"{QUERY}.9", MapParams(None, None), (), "ts", None, "")
    specs = (WINDOWS[0], between, *WINDOWS[1:])
    links = tuple(LinkSpec(link_id(a.id, b.id, 0), a.id, b.id, 0, 1.0, 1.0) for a, b in itertools.pairwise(specs))
    nodes = {spec.id: spec.pinned or "osl" for spec in specs}
    one = QueryRecord(Plan(QUERY, "k", "", specs, links), Deployed(specs, links, nodes), "ams", 0.0)
    go_on = {WINDOW: Continuation(watermark_us=20), between.id: Continuation()}
    one.health.healing.account.add(Recovered(dict.fromkeys(go_on, "osl"), GENERATION, (), go_on, 1, 0.5))
    anew = msgspec.structs.replace(links[0], id=f"{links[0].id}+1")
    one.links = (anew, *links[1:])
    one.reported(OperatorReport(FILE, "running", "fra", links=((links[0].id, 0, 0, 0.0, 0.0),)))
    one.reported(OperatorReport(between.id, "running", "osl", epoch=GENERATION, received=((anew.id, 0),)))
    services = Services([Renewed(links[0], 4, 40, 35, sent_us=35), Done(), Done(), Renewed(links[0], 4, 40, 0)])
    Refeeding(services).look(one, 0.0)
    assert [(message.operator, message.us) for message in services.asked if isinstance(message, LeaveOut)] == [
        (WINDOW, 40),
        (f"{QUERY}.2", 60),
    ]
    account = one.health.healing.account
    assert (account.is_exact, account.history[0].go_on[WINDOW].begin) == (True, Begin("window_start", 40))


SENT, NOTHING = Renewed(CHAIN[0], 4, 40, 35, sent_us=35), Renewed(CHAIN[0], 0, 0, WATERMARK_MIN, sent_us=WATERMARK_MIN)


@pytest.mark.parametrize(
    ("answers", "is_exact", "left_out"),
    [
        ([SENT, Done(), Done(), Renewed(CHAIN[0], 4, 40, 0)], True, 40),
        ([SENT, Done(), UnsupportedError("old"), Renewed(CHAIN[0], 4, 40, 0)], False, 40),
        ([SENT, Done(), Done(), Renewed(CHAIN[0], 4, 40, 0, ahead_us=30)], False, 40),
        ([SENT, Done(), LinkError("silent")], True, None),
        ([NOTHING, Renewed(CHAIN[0], 0, 0, 0)], True, None),
    ],
    ids=["told", "an old host", "gone on without it", "not told yet", "nothing lacks"],
)
def test_a_window_that_began_without_its_source_is_told_what_to_leave_out_before_the_source_goes_on(
    answers: list[Message | SbonError], is_exact: bool, left_out: int | None
):
    services, one = Services(answers), begun_without_its_source()
    count = len(answers)
    Refeeding(services).look(one, 0.0)
    assert not answers
    assert len(services.asked) == count
    told = [(message.operator, message.us) for message in services.asked if isinstance(message, LeaveOut)]
    assert told == ([(WINDOW, 40), (f"{QUERY}.2", 60)] if count > 2 else [])
    account = one.health.healing.account
    begin = account.history[0].go_on[WINDOW].begin
    assert (account.is_exact, begin and begin.us) == (is_exact, left_out)
    takes = [message for message in services.asked if isinstance(message, Renew) and not message.gives]
    assert bool(takes) is not any(isinstance(answer, LinkError) for answer in [*services.given])
