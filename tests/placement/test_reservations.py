"""Room kept for queries that are being placed, and when a running operator is offered."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from sbon.optimiser.offers import why_not_share
from sbon.placement.reservations import HostingConfig, Reservations

SLOTS = 5
QUERIES = st.sampled_from("abcd")


def make(**config):
    return Reservations(HostingConfig(**config))


def test_a_query_is_told_what_is_not_promised_to_others():
    room = make()

    assert room.reserve("a", wanted=3, free=5, now=0.0) == 5
    assert room.reserve("b", wanted=4, free=5, now=0.0) == 2
    assert room.held(0.0) == 5
    assert room.reserve("a", wanted=3, free=5, now=1.0) == 3, "its own promise does not count against a"
    assert not room.fill("c", free=5, now=1.0)


def test_a_promise_ends_with_time_and_asking_again_prolongs_it():
    room = make(reservation_s=10.0)
    room.reserve("a", 2, 5, now=0.0)
    room.reserve("b", 1, 5, now=0.0)
    room.reserve("a", 2, 5, now=6.0)

    assert room.held(9.9) == 3
    assert room.held(10.0) == 2
    assert room.held(16.0) == 0


def test_what_was_decided_is_kept_and_filled_one_by_one():
    room = make()
    room.reserve("a", 4, 5, now=0.0)
    room.decided("a", 2, now=1.0)

    assert room.held(1.0) == 2
    assert room.fill("a", free=5, now=1.0)
    assert room.held(1.0) == 1
    assert room.fill("a", free=4, now=1.0)
    assert room.held(1.0) == 0
    room.reserve("b", 1, 5, now=2.0)
    room.decided("b", 0, now=2.0)
    assert room.held(2.0) == 0


def test_without_a_promise_only_what_nobody_was_promised_is_taken():
    room = make()
    room.reserve("a", 2, 3, now=0.0)

    assert room.fill("late", free=3, now=0.0)
    assert not room.fill("late", free=2, now=0.0)


def test_the_number_of_promises_is_bounded():
    room = make(reservations_max=2)
    for query in "abc":
        assert room.reserve(query, 1, 100, now=0.0) > 0
    assert room.held(0.0) == 2


class Host(RuleBasedStateMachine):
    """Questions, decisions and operators in any order: promises and operators fit into the slots, and promises are kept."""

    def __init__(self) -> None:
        super().__init__()
        self.room = make(reservation_s=10.0)
        self.now = 0.0
        self.operators = 0
        self.promised: dict[str, tuple[int, float]] = {}

    @property
    def free(self) -> int:
        return SLOTS - self.operators

    @rule(query=QUERIES, wanted=st.integers(0, 4))
    def ask(self, query, wanted):
        told = self.room.reserve(query, wanted, self.free, self.now)
        self.promised[query] = (min(wanted, told), self.now + 10.0)

    @rule(query=QUERIES, slots=st.integers(0, 3))
    def decide(self, query, slots):
        kept, until = self.promised.get(query, (0, 0.0))
        self.room.decided(query, slots, self.now)
        if until > self.now:
            self.promised[query] = (min(kept, slots), self.now + 10.0)

    @rule(query=QUERIES)
    def instantiate(self, query):
        kept, until = self.promised.get(query, (0, 0.0))
        kept = kept if until > self.now else 0
        taken = self.room.fill(query, self.free, self.now)
        assert taken or not kept, "a promise was broken"
        self.promised[query] = (max(0, kept - 1), until)
        self.operators += taken

    @rule()
    def operator_ends(self):
        self.operators = max(0, self.operators - 1)

    @rule(seconds=st.floats(0.1, 12.0))
    def time_passes(self, seconds):
        self.now += seconds

    @invariant()
    def nothing_is_overfilled(self):
        assert self.operators + self.room.held(self.now) <= SLOTS


TestHost = Host.TestCase


def offer(config=None, **changes):
    figures = {"outputs": 1, "bytes_per_s_one_more": 100.0, "bytes_per_s_here": 500.0, "load": 0.3, "stalled": False, **changes}
    return why_not_share(config or HostingConfig(), **figures)


def test_a_running_operator_is_offered_only_with_resources_for_one_more_output():
    assert offer() == ""
    assert "waits" in offer(stalled=True)
    assert "load is 1.90" in offer(load=1.9)
    assert offer(load=1.9, movable=False) == "", "a second source would run on the same host"
    assert "waits" in offer(stalled=True, movable=False)
    assert "64 outputs" in offer(outputs=64)
    assert offer(HostingConfig(share_bytes_per_s_max=600.0)) == ""
    assert "601 bytes/s would leave" in offer(HostingConfig(share_bytes_per_s_max=600.0), bytes_per_s_here=501.0)
