"""One member of an overlay lies about the others: no invented member stays, and no real member is kept out."""

import numpy as np
import pytest

from sbon.cost_space.coordinate import Coordinate
from sbon.membership import Capacity, MemberChanged, MembershipConfig, MemberStatus, PushPull
from sbon.membership.incarnations import INCARNATION_MAX, START_MAX, STEP, TOLD_MAX
from sbon.membership.introductions import AT_ONCE_MAX
from sbon.membership.messages import Alive, Envelope, Failed, Gossip, Hosted, Row, State, Suspect, Vitals, encode, pack_vitals
from tests.system.simulation.membership_world import World

ALIVE, FAILED, LEFT = MemberStatus.ALIVE, MemberStatus.FAILED, MemberStatus.LEFT
VICTIM, LIAR = "n05", "n03"
NOWHERE = pack_vitals(Coordinate((9.0, 9.0, 9.0), 1.0, 0.1), Capacity())


def overlay(seed, count=8, **settings):
    world = World(seed, MembershipConfig(**settings))
    names = world.start_many(count)
    world.run_until(lambda: world.all_alive(names), within_s=20)
    world.run(3)
    return world


def tell(world, to, *news, vitals=()):
    """Sends a datagram of the liar with this news."""
    own = world.machine(LIAR).own
    envelope = Envelope(LIAR, own.incarnation, own.boot, 0, bytes(32), list(news), list(vitals))
    world.call(to, lambda machine: machine.receive(encode(Gossip(envelope)), own.address, world.now))


def tell_all(world, *news, vitals=()):
    for name in list(world.nodes):
        if name != LIAR and world.nodes[name].machine is not None:
            tell(world, name, *news, vitals=vitals)


def ghosts(count, status=0, incarnation=0):
    return [Row(f"ghost{i}", status, incarnation, 7, "10.9.9.9", 1 + i, {}, 0, None, (-1, -1), b"") for i in range(count)]


def push(world, to, rows, via=None):
    """Sends a table of the liar: as a request, or (`via`) as the answer to one."""
    world.call(to, lambda machine: machine.merge(encode(State(LIAR, rows)), world.now, via))


def known(world):
    return {name for node in world.nodes.values() if node.machine is not None for name in node.machine.members}


def test_ghosts_never_get_into_a_table_are_told_to_nobody_and_are_forgotten_within_a_minute():
    world = overlay(seed=1)
    names = set(world.nodes)
    push(world, "n00", ghosts(20_000))
    push(world, "n01", ghosts(20_000), via=world.nodes[LIAR].address)
    assert known(world) == names
    table = world.machine("n00")._roster.introductions
    assert len(table.waiting) == world.config.introductions_per_teller_max
    assert world.machine("n00").counters["introductions_refused"] == 20_000 - world.config.introductions_per_teller_max

    world.run(1)
    world.start("late", ["n00"])
    assert world.run_until(lambda: world.all_see("late", ALIVE) and world.all_alive(list(names)), within_s=10) < 10
    world.run(58)
    assert not any(node.machine._roster.introductions.waiting for node in world.nodes.values())
    assert known(world) == names | {"late"}
    assert world.changes(FAILED) == []
    assert world.machine("n00").counters["introductions_unanswered"] > 0


def test_ghosts_are_asked_a_bounded_number_at_a_time():
    world = overlay(seed=2)
    before = world.datagrams
    push(world, "n00", ghosts(20_000))
    assert world.datagrams - before <= AT_ONCE_MAX


def test_names_of_several_tellers_are_asked_in_turns():
    world = overlay(seed=3)
    table = world.machine("n00")._roster.introductions
    for teller in ("x", "y"):
        for i in range(300):
            table.tell(Alive(f"{teller}{i}", 0, 1, "10.9.9.9", 1, {}), teller)
    assert [table.take() for _ in range(4)] == ["x0", "y0", "x1", "y1"]


def test_the_dead_that_somebody_invents_are_few_and_told_to_nobody():
    world = overlay(seed=4)
    push(world, "n00", ghosts(20_000, status=2))
    invented = {name for name in world.machine("n00").members if name.startswith("ghost")}
    assert 0 < len(invented) <= 256
    world.run(100)
    assert not any(name.startswith("ghost") for node in world.nodes.values() if node.name != "n00" for name in node.machine.members)

    tell(world, "n00", *[Alive(name, 1, 7, "10.9.9.9", 9, {}) for name in sorted(invented)[:20]])
    world.run(60)
    assert not any(world.machine("n00").members[name].reachable for name in invented), "a failed member returns only by answering"


def test_a_member_that_was_only_told_dead_is_welcome_when_it_answers():
    world = overlay(seed=5)
    push(world, "n00", [Row("late", 2, TOLD_MAX, 7, "10.9.9.9", 9, {}, 0, None, (-1, -1), b"")])
    assert world.machine("n00").members["late"].status is FAILED
    world.start("late", ["n01"])
    world.run_until(lambda: world.all_see("late", ALIVE), within_s=20)


@pytest.mark.parametrize("incarnation", [INCARNATION_MAX, INCARNATION_MAX - 1, TOLD_MAX + 10_000, TOLD_MAX, 77])
@pytest.mark.parametrize("statement", [Failed, Suspect])
def test_a_living_member_always_outbids_who_says_that_it_has_failed(statement, incarnation):
    world = overlay(seed=6)
    for _ in range(10):
        tell_all(world, statement(VICTIM, incarnation, LIAR))
        world.run(1)
    world.run_until(lambda: world.all_see(VICTIM, ALIVE), within_s=20)
    assert world.machine(VICTIM).incarnation <= START_MAX
    refused = sum(node.machine.counters["incarnations_refused"] for node in world.nodes.values())
    assert refused > 0 or incarnation <= TOLD_MAX


def test_a_liar_that_goes_on_and_on_climbs_by_little_and_never_wins():
    world = overlay(seed=7)
    for _ in range(100):
        known_as = world.machine("n00").members[VICTIM].incarnation
        tell_all(world, Failed(VICTIM, max(TOLD_MAX, known_as + STEP), LIAR))
        world.run(0.3)
    world.run_until(lambda: world.all_see(VICTIM, ALIVE), within_s=20)
    assert world.machine(VICTIM).incarnation < TOLD_MAX + 200 * STEP


def test_a_member_that_outbid_a_liar_is_believed_by_one_that_missed_it():
    world = overlay(seed=8)
    world.partition(["n07"], [name for name in world.nodes if name != "n07"])
    world.run(20)
    for _ in range(20):
        tell_all(world, Failed(VICTIM, max(TOLD_MAX, world.machine("n00").members[VICTIM].incarnation + STEP), LIAR))
        world.run(1)
    world.heal()
    world.run_until(lambda: world.all_alive(list(world.nodes)), within_s=60)
    assert world.machine("n07").members[VICTIM].incarnation > TOLD_MAX + STEP


@pytest.mark.parametrize("saved", [INCARNATION_MAX, INCARNATION_MAX - 1, START_MAX + 1, START_MAX, -1, 10**30])
def test_a_member_starts_whatever_incarnation_it_has_saved(saved):
    world = overlay(seed=9)
    world.kill(VICTIM)
    world.run(1)
    world.start(VICTIM, ["n00"], incarnation=saved)
    world.run_until(lambda: world.all_see(VICTIM, ALIVE), within_s=20)
    assert world.machine(VICTIM).incarnation <= START_MAX + 1


def test_a_member_that_has_lost_its_state_climbs_above_what_a_liar_has_left_behind():
    world = overlay(seed=10)
    for _ in range(20):
        tell_all(world, Failed(VICTIM, max(TOLD_MAX, world.machine("n00").members[VICTIM].incarnation + STEP), LIAR))
        world.run(1)
    world.kill(VICTIM)
    world.run(1)
    world.start(VICTIM, ["n00"], incarnation=0)
    world.run_until(lambda: world.machine(VICTIM).incarnation > TOLD_MAX + STEP and world.all_see(VICTIM, ALIVE), within_s=40)


@pytest.mark.parametrize(("incarnation", "version"), [(INCARNATION_MAX, 0), (TOLD_MAX, 0), (0, INCARNATION_MAX)])
def test_a_false_coordinate_of_another_member_lasts_until_that_answers(incarnation, version):
    world = overlay(seed=11)
    tell_all(world, vitals=[Vitals(VICTIM, incarnation, version, NOWHERE)])

    def right() -> bool:
        rows = [node.machine.members[VICTIM] for node in world.nodes.values() if node.name not in (VICTIM, LIAR)]
        return all(row.coordinate.vector == pytest.approx(world.place[VICTIM], rel=1e-6) for row in rows)

    world.run_until(right, within_s=20)


def test_a_false_digest_of_another_member_is_outbid_by_that_member():
    world = overlay(seed=12)
    world.machine(VICTIM).announce(b"true", Capacity(1, 0.0))
    world.run(5)
    tell_all(world, Hosted(VICTIM, 0, INCARNATION_MAX, b"false"))

    def right() -> bool:
        return all(node.machine.members[VICTIM].digest == b"true" for node in world.nodes.values())

    world.run_until(right, within_s=20)
    tell_all(world, Hosted(VICTIM, INCARNATION_MAX, 0, b"false"))
    assert right()


def test_a_stolen_name_comes_back_to_its_owner_however_often_it_is_stolen():
    world = overlay(seed=13)
    for _ in range(10):
        known_as = world.machine(VICTIM).incarnation
        tell_all(world, Alive(VICTIM, known_as + 1, 666, *world.nodes[LIAR].address, {}))
        world.run(30)
    address = world.nodes[VICTIM].address
    world.run_until(
        lambda: all(node.machine.members[VICTIM].address == address for node in world.nodes.values()) and world.all_see(VICTIM, ALIVE),
        within_s=20,
    )


def test_an_overlay_larger_than_what_one_may_tell_of_is_learnt_piece_by_piece():
    world = overlay(seed=14, count=40, introductions_per_teller_max=8, introductions_max=16)
    world.start("late", ["n00"])
    names = list(world.nodes)
    world.run_until(lambda: world.all_alive(names), within_s=40)


def test_a_true_member_told_of_with_false_details_enters_with_its_own():
    world = World(seed=15)
    world.start("true", [], incarnation=3, labels={"region": "eu"})
    world.start("n00", [])
    world.start(LIAR, ["n00"])
    world.run(5)
    host, port = world.nodes["true"].address
    tell(world, "n00", Alive("true", 900, 666, host, port, {"region": "lie"}))
    world.run_until(lambda: "true" in world.machine("n00").members, within_s=10)
    member = world.machine("n00").members["true"]
    assert (member.incarnation, member.labels, member.boot) == (3, {"region": "eu"}, world.machine("true").own.boot)
    assert any(isinstance(action, PushPull) for _, _, action in world.log)


def test_an_invented_name_makes_no_noise():
    """The rest of the agent gets no events: an invented member causes no placement, no log line and no telemetry."""
    world = overlay(seed=16)
    tell_all(world, *[Alive(f"ghost{i}", 0, 1, "10.9.9.9", 1, {}) for i in range(10)])
    world.run(60)
    assert not [action for _, _, action in world.log if isinstance(action, MemberChanged) and action.name.startswith("ghost")]


def test_thousands_of_statements_cost_what_they_are_worth():
    """A flood of forged names, each of which replaces another, causes no more probes than the limit of concurrent probes."""
    world = overlay(seed=17)
    rng = np.random.default_rng(1)
    before = world.datagrams
    for _ in range(50):
        tell(world, "n00", *[Alive(f"g{int(rng.integers(0, 2**40))}", 0, 1, "10.9.9.9", 1, {}) for _ in range(20)])
    assert world.datagrams - before <= AT_ONCE_MAX
