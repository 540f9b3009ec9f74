"""The table of members: which entries stay or go, and what others are told. The machine is the one of `test_membership`."""

import pytest

from sbon.membership import MemberChanged, SendDatagram
from sbon.membership.actions import MemberForgotten, NameConflict
from sbon.membership.messages import Ack, Failed, Gossip, IndirectProbe, Nack, Probe, Relayed, Suspect, decode, encode
from tests.membership.test_membership import (
    ALIVE,
    FAILED,
    SUSPECT,
    A,
    B,
    C,
    alive,
    answer_all,
    envelope,
    gossip,
    joined,
    next_probe,
    run_to,
    sent,
)


def told(actions):
    """Returns all news in the datagrams sent."""
    return [item for action in actions if isinstance(action, SendDatagram) for item in decode(action.data).envelope.news]


def test_prompt_answers_end_our_doubt_in_ourselves():
    machine = joined()
    gossip(machine, Suspect("a", 0, "c"))
    assert machine.health_score == 1
    now, address, probe = next_probe(machine)
    machine.receive(encode(Ack(envelope(probe.target), probe.sequence, 0)), address, now + 0.05)

    assert machine.health_score == 0


def test_helpers_have_as_long_as_the_peer_and_they_themselves_may_take():
    machine = joined(timeout_s_max=0.5)
    now, _, probe = next_probe(machine)
    helper, address = ("c", C) if probe.target == "b" else ("b", B)
    ((_, request),) = sent(run_to(machine, now + 0.5), IndirectProbe)
    assert request.patience_ms == 500
    run_to(machine, now + 1.4)  # the helper's 0.5 s, and 0.4 s of the round trip to it
    assert machine.members[probe.target].status is ALIVE
    machine.receive(encode(Relayed(envelope(helper), probe.sequence)), address, now + 1.4)
    run_to(machine, now + 1.5)

    assert machine.counters["probes_unanswered"] == 0


def test_word_of_life_that_the_suspicion_is_about_does_not_end_it():
    machine = joined(interval_s=1000.0)
    gossip(machine, Suspect("b", 0, "c"), name="c")
    gossip(machine, alive("b"), name="c")
    assert machine.members["b"].status is SUSPECT
    gossip(machine, alive("b", incarnation=1), name="c")

    assert machine.members["b"].status is ALIVE


def test_suspicions_and_failures_are_passed_on():
    machine = joined(timeout_s_max=0.5, suspicion_s=2.0)
    now, _, probe = next_probe(machine)
    heard = told(run_to(machine, now + 12.0))

    assert Suspect(probe.target, 0, "a") in heard
    assert Failed(probe.target, 0, "a") in heard


def test_suspicion_of_another_is_passed_on_once_and_each_new_accuser_of_it():
    machine = joined(interval_s=1000.0, suspicion_s=1000.0)
    gossip(machine, Suspect("b", 0, "c"), name="c", now=1.0)
    assert Suspect("b", 0, "c") in told(run_to(machine, 3.0))
    gossip(machine, Suspect("b", 0, "d"), name="c", now=3.0)

    assert Suspect("b", 0, "d") in told(run_to(machine, 5.0))


def test_table_takes_no_more_members_than_configured():
    machine = joined(members_max=4)
    actions = gossip(machine, *(alive(f"n{number}", ("10.0.1.1", 1000 + number)) for number in range(9)))
    while asked := sent(actions, Probe):
        assert all(probe.target.startswith("n") for _, probe in asked)
        actions = answer_all(machine, actions)

    assert len(machine.members) == 4
    assert machine.counters["members_refused"] == 8


def test_failed_member_gets_nothing_more_and_is_forgotten_after_a_while():
    machine = joined(failed_keep_s=100.0, suspicion_s=1000.0)
    actions = gossip(machine, Failed("b", 0, "c"), name="c", now=10.0)
    assert MemberChanged("b", ALIVE, FAILED) in actions
    later = run_to(machine, 109.0)
    assert [action for action in later if isinstance(action, SendDatagram) and action.address == B] == []
    assert "b" in machine.members

    assert MemberForgotten("b") in run_to(machine, 111.0)
    assert "b" not in machine.members


def test_name_that_another_running_agent_bears_is_told():
    """A former process of this agent falls silent; another running agent outbids us each time."""
    machine = joined()
    conflicts = [
        [action for action in gossip(machine, alive("a", C, incarnation=number * 2, boot=99)) if isinstance(action, NameConflict)]
        for number in range(1, 6)
    ]

    assert [bool(found) for found in conflicts] == [False, False, False, True, True]
    assert conflicts[-1] == [NameConflict("a", C)]


@pytest.mark.parametrize("silent", [True, False])
def test_we_doubt_ourselves_only_where_our_helpers_were_silent_too(silent):
    machine = joined(timeout_s_max=0.5, suspicion_s=100.0)
    now, _, probe = next_probe(machine)
    helper, address = ("c", C) if probe.target == "b" else ("b", B)
    run_to(machine, now + 0.5)
    if not silent:
        machine.receive(encode(Nack(envelope(helper), probe.sequence)), address, now + 0.9)
    run_to(machine, now + 1.51)

    assert machine.members[probe.target].status is SUSPECT
    assert machine.health_score == int(silent)


def test_probe_of_a_stranger_s_address_reaches_only_its_own_name():
    machine = joined()
    actions = machine.receive(encode(IndirectProbe(envelope("b"), 9, "a", *A, 400)), B, 1.0)

    assert [(address, answer.sequence) for address, answer in sent(actions, Relayed)] == [(B, 9)]
    assert sent(actions, Probe) == sent(actions, Gossip) == []
