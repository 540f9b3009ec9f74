"""The membership machine of one agent; tests of its parts are in `test_membership_parts`."""

import msgspec
import numpy as np
import pytest

from sbon.cost_space.coordinate import ORIGIN, Coordinate
from sbon.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from sbon.membership import (
    Capacity,
    CoordinateHeard,
    MemberChanged,
    Membership,
    MembershipConfig,
    MemberStatus,
    PushPull,
    RttMeasured,
    SendDatagram,
)
from sbon.membership.messages import (
    HELD_US_MAX,
    Ack,
    Alive,
    Envelope,
    Failed,
    Gossip,
    IndirectProbe,
    Left,
    Nack,
    Probe,
    Relayed,
    Row,
    State,
    Suspect,
    Vitals,
    decode,
    encode,
    pack_vitals,
    with_held,
)

HERE = Coordinate((1.0, 2.0, 3.0), 4.0, 0.75, 0.0)  # too unsure of itself to shorten a timeout
A, B, C = ("10.0.0.1", 7946), ("10.0.0.2", 7946), ("10.0.0.3", 7946)
ALIVE, SUSPECT, FAILED, LEFT = MemberStatus.ALIVE, MemberStatus.SUSPECT, MemberStatus.FAILED, MemberStatus.LEFT


def make_membership(name="a", address=A, seed=1, **settings):
    config = MembershipConfig(**settings)
    return Membership(config, name, address, {}, 0, lambda: HERE, np.random.default_rng(seed))


def alive(name, address=B, incarnation=0, boot=5):
    return Alive(name, incarnation, boot, *address, {})


def envelope(name="b", *, incarnation=0, boot=5, version=0, data=None, news=(), vitals=()):
    return Envelope(name, incarnation, boot, version, pack_vitals(HERE, Capacity()) if data is None else data, list(news), list(vitals))


def gossip(machine, *news, now=0.0, **speaker):
    return machine.receive(encode(Gossip(envelope(news=news, **speaker))), B, now)


def answer_all(machine, actions, now=0.0):
    """Answers all probes at once; returns the actions of the machine after that."""
    done = []
    for address, probe in sent(actions, Probe):
        done += machine.receive(encode(Ack(envelope(probe.target), probe.sequence, 0)), address, now)
    return done


def joined(**settings):
    """Returns a machine that knows b and c."""
    machine = make_membership(**settings)
    machine.join([], 0.0)
    answer_all(machine, gossip(machine, alive("b"), alive("c", C)))
    assert set(machine.members) == {"a", "b", "c"}
    return machine


def sent(actions, kind):
    return [
        (action.address, message)
        for action in actions
        if isinstance(action, SendDatagram) and isinstance(message := decode(action.data), kind)
    ]


def next_probe(machine):
    """Runs the machine to its next probe of its own; returns time, address and probe."""
    while True:
        now = machine.next_wake()
        probes = sent(machine.wake(now), Probe)
        if probes:
            return now, *probes[0]


def run_to(machine, until):
    """Wakes the machine whenever it asks for it, until an instant; returns its actions."""
    actions = []
    while (when := machine.next_wake()) is not None and when <= until:
        actions += machine.wake(when)
    return actions


def test_an_answered_probe_gives_the_rtt_without_the_time_that_the_peer_held_it():
    machine = joined()
    now, address, probe = next_probe(machine)
    ack = Ack(envelope(probe.target, version=3), probe.sequence, held_us=20_000)
    actions = machine.receive(encode(ack), address, now + 0.08, received_at=now + 0.05)
    (measured,) = [action for action in actions if isinstance(action, RttMeasured)]
    assert measured.peer == probe.target
    assert measured.rtt_ms == pytest.approx(30.0)
    assert measured.coordinate == HERE
    assert not [action for action in actions if isinstance(action, CoordinateHeard)]


@pytest.mark.parametrize(("held_us", "sequence_off"), [(60_000, 0), (0, 1)])
def test_an_answer_that_cannot_be_true_measures_nothing(held_us, sequence_off):
    machine = joined()
    now, address, probe = next_probe(machine)
    ack = Ack(envelope(probe.target), probe.sequence + sequence_off, held_us)
    actions = machine.receive(encode(ack), address, now + 0.05)
    assert not [action for action in actions if isinstance(action, RttMeasured)]
    assert machine.counters["rtts_rejected"] + machine.counters["acks_late"] == 1


def test_an_answer_from_somebody_else_measures_nothing():
    machine = joined()
    now, address, probe = next_probe(machine)
    other = "c" if probe.target == "b" else "b"
    actions = machine.receive(encode(Ack(envelope(other), probe.sequence, 0)), address, now + 0.05)
    assert not [action for action in actions if isinstance(action, RttMeasured)]


def test_a_probe_is_answered_with_the_time_that_it_was_held():
    machine = joined()
    actions = machine.receive(encode(Probe(envelope("b"), 77, "a")), B, 10.5, received_at=10.25)
    ((address, ack),) = sent(actions, Ack)
    assert (address, ack.sequence, ack.held_us) == (B, 77, 250_000)
    assert ack.envelope.name == "a"


def test_a_probe_for_another_name_is_not_answered():
    machine = joined()
    assert sent(machine.receive(encode(Probe(envelope("b"), 77, "somebody")), B, 1.0), Ack) == []
    assert machine.counters["probes_misdirected"] == 1


def test_a_silent_peer_is_asked_for_through_others_and_then_suspected_and_failed():
    machine = joined(timeout_s_max=0.5, suspicion_s=2.0)
    now, _, probe = next_probe(machine)
    silent, helper = probe.target, "c" if probe.target == "b" else "b"
    actions = run_to(machine, now + 0.5)
    ((_, again),) = sent(actions, Probe)
    ((address, request),) = sent(actions, IndirectProbe)
    assert again.sequence != request.sequence == probe.sequence
    assert (request.target, address) == (silent, B if helper == "b" else C)
    machine.receive(encode(Nack(envelope(helper), probe.sequence)), address, now + 0.9)
    assert machine.members[silent].status is ALIVE
    run_to(machine, now + 1.5)
    assert machine.members[silent].status is SUSPECT
    assert machine.health_score == 0  # the helper answered, so our own network works
    run_to(machine, now + 1.5 + 6.0 + 0.01)
    assert machine.members[silent].status is FAILED


def test_a_helpers_word_saves_a_peer_but_measures_nothing():
    machine = joined()
    now, _, probe = next_probe(machine)
    run_to(machine, now + 0.5)
    helper = "c" if probe.target == "b" else "b"
    actions = machine.receive(encode(Relayed(envelope(helper), probe.sequence)), B if helper == "b" else C, now + 0.9)
    assert not [action for action in actions if isinstance(action, RttMeasured)]
    run_to(machine, now + 1.9)
    assert machine.members[probe.target].status is ALIVE or machine.counters["probes_sent"] > 1


@pytest.mark.parametrize(("which", "expected_ms"), [(0, 600.0), (1, 100.0)])
def test_an_answer_to_either_of_two_probes_measures_the_one_that_it_answers(which, expected_ms):
    """A peer whose path has become slow would otherwise never be measured again."""
    machine = joined()
    now, address, probe = next_probe(machine)
    ((_, again),) = sent(run_to(machine, now + 0.5), Probe)
    sequence = (probe.sequence, again.sequence)[which]
    actions = machine.receive(encode(Ack(envelope(probe.target), sequence, 0)), address, now + 0.6)
    (measured,) = [action for action in actions if isinstance(action, RttMeasured)]
    assert measured.rtt_ms == pytest.approx(expected_ms)
    actions = machine.receive(encode(Ack(envelope(probe.target), probe.sequence, 0)), address, now + 0.7)
    assert not [action for action in actions if isinstance(action, RttMeasured)]
    run_to(machine, now + 0.9)
    assert machine.counters["probes_unanswered"] == 0


def test_an_indirect_probe_is_made_and_its_answer_passed_on():
    machine = joined()
    actions = machine.receive(encode(IndirectProbe(envelope("b"), 9, "c", *C, 400)), B, 1.0)
    ((address, probe),) = sent(actions, Probe)
    assert (address, probe.target) == (C, "c")
    actions = machine.receive(encode(Ack(envelope("c"), probe.sequence, 0)), C, 1.1)
    ((address, relayed),) = sent(actions, Relayed)
    assert (address, relayed.sequence) == (B, 9)


def test_an_indirect_probe_without_an_answer_gives_a_nack():
    machine = joined()
    machine.receive(encode(IndirectProbe(envelope("b"), 9, "c", *C, 400)), B, 1.0)
    nacks = sent(run_to(machine, 1.41), Nack)
    assert [(address, nack.sequence) for address, nack in nacks] == [(B, 9)]


def test_no_more_probes_are_made_for_others_than_configured():
    machine = joined(pending_max=3)
    for sequence in range(10):
        machine.receive(encode(IndirectProbe(envelope("b"), sequence, "c", *C, 400)), B, 0.0)
    assert machine.counters["relays_refused"] == 7


def test_a_suspicion_against_us_is_outbid_and_makes_us_doubt_ourselves():
    machine = joined()
    gossip(machine, Suspect("a", 0, "c"))
    assert machine.incarnation == 1
    assert machine.health_score == 1
    told = [item for _, message in sent(run_to(machine, 0.3), Gossip) for item in message.envelope.news]
    assert any(isinstance(item, Alive) and item.name == "a" and item.incarnation == 1 for item in told)


def test_old_accusations_do_not_raise_the_incarnation_again():
    machine = joined()
    gossip(machine, Failed("a", 4, "c"))
    gossip(machine, Suspect("a", 2, "c"), Left("a", 3))
    assert machine.incarnation == 5


def test_a_suspect_that_probes_us_hears_of_the_suspicion_in_the_answer():
    machine = joined()
    gossip(machine, Suspect("b", 0, "c"))
    ((_, ack),) = sent(machine.receive(encode(Probe(envelope("b"), 1, "a")), B, 0.1), Ack)
    assert ack.envelope.news[0] == Suspect("b", 0, "a")


def test_a_bad_coordinate_is_dropped_and_the_news_beside_it_is_used():
    machine = joined()
    nan = pack_vitals(Coordinate((float("nan"), 0.0, 0.0), 0.0, 1.0), Capacity())
    huge = pack_vitals(Coordinate((1e30, 0.0, 0.0), 0.0, 1.0), Capacity())
    actions = gossip(machine, alive("d", ("10.0.0.4", 1)), vitals=[Vitals("c", 0, 9, nan)], version=9, data=huge)
    assert not [action for action in actions if isinstance(action, CoordinateHeard)]
    assert MemberChanged("d", None, ALIVE) in answer_all(machine, actions)
    assert machine.counters["coordinates_rejected"] == 2
    assert machine.members["c"].coordinate == HERE  # as of its first answer
    assert machine.members["b"].coordinate == HERE  # as of its first message


def test_older_coordinates_do_not_replace_newer_ones():
    machine = joined()
    there = pack_vitals(Coordinate((9.0, 9.0, 9.0), 0.0, 0.5), Capacity(2, 0.5))
    gossip(machine, version=7, data=there)
    gossip(machine, version=6)
    assert machine.members["b"].coordinate.vector == (9.0, 9.0, 9.0)
    assert machine.members["b"].capacity == Capacity(2, 0.5)


@pytest.mark.parametrize("data", [b"", b"\x01", b"\x02\x90", b"\x01\xc0", b"\x01" + b"\x91" * 1000, b"\x01" * 1300])
def test_nonsense_is_refused_and_changes_nothing(data):
    machine = joined()
    wake = machine.next_wake()
    with pytest.raises(RemoteProtocolError):
        machine.receive(data, B, 0.0)
    with pytest.raises(RemoteProtocolError):
        machine.merge(data, 0.0)
    assert set(machine.members) == {"a", "b", "c"}
    assert machine.next_wake() == wake


@pytest.mark.parametrize("name", ["", "x" * 65, "white space", "new\nline", "end\n"])
def test_names_that_do_not_fit_are_refused(name):
    with pytest.raises(ConfigError):
        make_membership(name)
    machine = joined()
    with pytest.raises(RemoteProtocolError):
        gossip(machine, alive(name))


def test_labels_that_do_not_fit_are_refused():
    for labels in ({"a": "x" * 600}, {str(i): "" for i in range(17)}, {"": "x"}):
        with pytest.raises(ConfigError):
            Membership(MembershipConfig(), "a", A, labels, 0, lambda: ORIGIN, np.random.default_rng(1))


@pytest.mark.parametrize("address", [("", 7946), ("10.0.0.1", 0), ("10.0.0.1", 70_000), ("a b", 1)])
def test_an_address_that_nobody_could_use_is_refused(address):
    with pytest.raises(ConfigError):
        make_membership(address=address)


def test_a_digest_that_does_not_fit_is_refused():
    with pytest.raises(LocalProtocolError):
        make_membership().announce(bytes(257), Capacity())


@pytest.mark.parametrize(
    "settings",
    [
        {"interval_s": 0.0},
        {"timeout_s_min": 1.0},
        {"suspicion_ratio_max": 0.5},
        {"gossip_fanout": 0},
        {"stall_s": float("nan")},
        {"join_backoff_s_max": 0.1},
    ],
)
def test_settings_out_of_range_are_refused(settings):
    with pytest.raises(ValueError, match=next(iter(settings)).removesuffix("_min")):
        MembershipConfig(**settings)


def test_strangers_are_asked_for_their_table_but_not_too_often():
    machine = make_membership()
    machine.join([], 0.0)
    assert PushPull(B) in gossip(machine, now=5.0)
    assert PushPull(B) not in gossip(machine, now=5.1)
    assert PushPull(B) in gossip(machine, now=6.5)


def test_our_own_name_of_another_process_is_outbid_three_times_a_minute():
    """With a limit for all time instead of per minute, the fourth claim would win the name."""
    machine = joined()
    for now, outbid in ((1.0, True), (2.0, True), (3.0, True), (4.0, False), (60.5, False), (61.5, True)):
        before = machine.incarnation
        gossip(machine, alive("a", C, incarnation=before, boot=666), now=now)
        assert (machine.incarnation > before) is outbid, now
    assert machine.counters["name_conflicts"] == 2


def test_a_table_larger_than_may_wait_is_followed_by_another_when_all_have_been_asked():
    machine = joined(introductions_per_teller_max=2)
    rows = [Row(f"m{i}", 0, 0, 5, "10.0.1.1", 1 + i, {}, 0, None, (-1, -1), b"") for i in range(5)]
    actions = machine.merge(encode(State("b", rows)), 0.5, via=B)
    answered = answer_all(machine, actions, now=0.6)
    assert machine.counters["introductions_refused"] == 3
    assert [action for action in answered if isinstance(action, PushPull)], "asks a known member for the rest"


def test_our_own_name_from_the_network_is_ignored():
    machine = joined()
    assert gossip(machine, Suspect("b", 0, "c"), name="a") == []
    assert machine.members["b"].status is ALIVE


def test_a_late_timer_puts_off_what_we_wait_for():
    machine = joined()
    now, _, probe = next_probe(machine)
    machine.wake(now + 20.0)
    assert machine.counters["stalls"] == 1
    assert machine.members[probe.target].status is ALIVE


def test_settings_can_change_while_it_runs():
    machine = joined()
    gossip(machine, Suspect("a", 0, "c"))
    machine.reconfigure(MembershipConfig(health_max=0, interval_s=0.1))
    assert machine.health_score == 0
    before = machine.counters["probes_sent"]
    run_to(machine, 3.0)
    assert machine.counters["probes_sent"] - before > 10


def test_a_suspect_is_called_before_it_is_declared_failed_and_its_answer_clears_it():
    """Gossip misses one member in a few thousand: that member would miss the suspect's objection and declare it failed."""
    machine = joined(interval_s=1000.0, suspicion_s=2.0)
    gossip(machine, Suspect("b", 0, "c"), name="c", now=10.0)
    run_to(machine, 11.49)
    ((address, call),) = sent(run_to(machine, 11.5), Probe)
    assert (address, call.target) == (B, "b")
    assert call.envelope.news[0] == Suspect("b", 0, "a")
    objection = Ack(envelope("b", incarnation=1, news=[alive("b", incarnation=1)]), call.sequence, held_us=0)
    machine.receive(encode(objection), B, 11.6)
    assert machine.members["b"].status is ALIVE
    run_to(machine, 30.0)
    assert machine.members["b"].status is ALIVE


def test_a_probe_s_time_begins_when_it_leaves_and_not_when_it_was_written():
    machine = joined()
    now = machine.next_wake()
    while not (probes := [action for action in machine.wake(now) if isinstance(action, SendDatagram) and action.probe is not None]):
        now = machine.next_wake()
    probe = decode(probes[0].data)
    assert probe.sequence == probes[0].probe

    machine.probe_leaves(probes[0].probe, now + 0.004)
    machine.probe_leaves(probes[0].probe + 1, now + 0.004)  # no such probe: forgotten in the meantime
    actions = machine.receive(encode(Ack(envelope(probe.target), probe.sequence, held_us=0)), probes[0].address, now + 0.01)

    assert [action.rtt_ms for action in actions if isinstance(action, RttMeasured)] == [pytest.approx(6.0)]


@pytest.mark.parametrize(("held_s", "held_us"), [(0.0123, 12_300), (0.0, 0), (-1e-6, 0), (1e9, HELD_US_MAX)])
def test_an_ack_says_how_long_it_was_held_until_it_leaves(held_s, held_us):
    machine = joined()
    (ack,) = machine.receive(encode(Probe(envelope(), 9, "a")), B, now=1.002, received_at=1.0)
    assert ack.answers_at == 1.0
    assert decode(ack.data).held_us == 2000

    later = decode(with_held(ack.data, held_s))

    assert later == msgspec.structs.replace(decode(ack.data), held_us=held_us)


def test_a_suspect_gets_the_time_back_for_which_we_stood_still():
    machine = joined(interval_s=1000.0, suspicion_s=2.0)
    gossip(machine, Suspect("b", 0, "c"), name="c", now=10.0)
    machine.wake(40.0)
    assert machine.counters["stalls"] == 1
    machine.wake(40.1)
    assert machine.members["b"].status is SUSPECT
    gossip(machine, Suspect("b", 0, "d"), name="c", now=40.2)  # a second accuser leaves the suspect less time, but some
    machine.wake(40.3)
    assert machine.members["b"].status is SUSPECT
    run_to(machine, 60.0)
    assert machine.members["b"].status is FAILED


def test_a_member_that_is_taken_for_failed_is_told_so_when_it_speaks():
    machine = joined(interval_s=1000.0)
    gossip(machine, Failed("b", 0, "c"), name="c", now=10.0)
    assert machine.members["b"].status is FAILED

    told = sent(gossip(machine, name="b", now=11.0), Gossip)
    assert [address for address, _ in told] == [B]


def test_an_outdated_peer_is_corrected_once_a_second():
    machine = joined(interval_s=1000.0)
    gossip(machine, alive("b", incarnation=3), now=10.0)

    told = [len(sent(gossip(machine, name="b", incarnation=0, now=now), Gossip)) for now in (11.0, 11.5, 12.1)]
    assert told == [1, 0, 1]
