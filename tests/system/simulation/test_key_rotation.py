"""A cluster changes its key while agents probe each other: no member is lost, and an agent that missed the change reports it."""

import base64
import json
import stat

import pytest

from sbon.errors import SbonError
from sbon.sealing import KeyRing, generate_key, key_id
from sbon_testbed.simulator.harness import World

OLD, NEW, THIRD = bytes(range(32)), b"n" * 32, b"t" * 32
"""The first is the key that the testbed gives to sealed worlds."""
OLD_ID, NEW_ID, THIRD_ID = (key_id(key).hex() for key in (OLD, NEW, THIRD))
SOURCE = """
CREATE SOURCE numbers (ts TIMESTAMP, i BIGINT)
WITH (connector = 'datagen', nodes = '{node}', rows_per_second = 10, fields.i.kind = 'sequence')
"""


def sealed_world(tmp_path, nodes=8, seed=5) -> World:
    files = [tmp_path / f"{number}.key" for number in range(nodes)]
    for file in files:
        file.write_text(generate_key(OLD))
        file.chmod(0o600)
    world = World(
        nodes,
        seed=seed,
        sealed=True,
        settings={"membership": {"interval_s": 0.25}},
        settings_of=lambda number: {"key_file": str(files[number])},
        log_file=tmp_path / "agents.log",
    )
    world.key_files = files
    world.start_all()
    world.settle()
    return world


def statuses(world: World, at: int) -> set[str]:
    return {member["status"] for member in world.ask(at, "members")}


def events(tmp_path) -> list[dict]:
    return [json.loads(line) for line in (tmp_path / "agents.log").read_text().splitlines()]


def rings(world: World) -> set[tuple[str, ...]]:
    return {agent.key_ring.ids for agent in world.agents if agent is not None}


@pytest.mark.parametrize("pause_s", [0.0, 5.0])
def test_a_cluster_of_eight_changes_its_key_without_losing_anybody(tmp_path, pause_s):
    world = sealed_world(tmp_path)
    world.submit(SOURCE.format(node=world.nodes[1]), at=3)
    tail = world.tail(world.submit("SELECT ts, i FROM numbers", at=3), 3)
    steps = [
        (("install", {"key": NEW}), (OLD_ID, NEW_ID)),
        (("use", {"id": NEW_ID}), (NEW_ID, OLD_ID)),
        (("remove", {"id": OLD_ID}), (NEW_ID,)),
    ]
    for at, ((action, arguments), after) in enumerate(steps):
        result = world.ask(at, "keys", action=action, **arguments)
        assert [node["ids"] for node in result["nodes"]] == [list(after)] * 8
        assert not any(node["error"] for node in result["nodes"])
        assert rings(world) == {after}
        world.run(pause_s)

    assert all(statuses(world, at) == {"alive"} for at in range(8))
    world.run(30)
    assert all(statuses(world, at) == {"alive"} for at in range(8))
    numbers = [row[1] for row in tail.rows]
    assert len(numbers) > 200
    assert numbers == list(range(len(numbers))), "a stream must continue through the change, without a gap"
    if pause_s:
        # Without a pause, datagrams in transit that are sealed with the old key are refused, as if they were lost.
        assert [world.ask(at, "status")["counters"]["datagrams_refused"] for at in range(8)] == [0] * 8
    world.close()
    told = [event["event"] for event in events(tmp_path)]
    assert "member.failed" not in told
    assert told.count("keys.changed") == 8 * 3
    for file in world.key_files:
        assert KeyRing.parse(file.read_text()).ids == (NEW_ID,)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    shown = (tmp_path / "agents.log").read_text()
    for key in (OLD, NEW):
        assert base64.b64encode(key).decode() not in shown
        assert repr(key)[2:-1] not in shown


def test_the_list_shows_who_holds_what_and_gives_no_key_away(tmp_path):
    world = sealed_world(tmp_path, nodes=3)
    world.agents[1].use_keys(KeyRing([OLD, THIRD]))

    result = world.ask(0, "keys", action="list")

    names = list(world.nodes)
    assert [(node["node"], node["primary"]) for node in result["nodes"]] == [(name, OLD_ID) for name in sorted(names)]
    assert {key["id"]: (key["held_by"], key["missing_on"]) for key in result["keys"]} == {
        OLD_ID: (sorted(names), []),
        THIRD_ID: ([names[1]], sorted({names[0], names[2]})),
    }
    assert result["problem"] is None
    assert THIRD not in repr(result).encode()


def test_no_step_is_taken_that_would_cut_somebody_off(tmp_path):
    world = sealed_world(tmp_path, nodes=3)
    with pytest.raises(SbonError, match="is the primary key"):
        world.ask(0, "keys", action="remove", id=OLD_ID)
    with pytest.raises(SbonError, match="there is no key"):
        world.ask(0, "keys", action="use", id=NEW_ID)
    world.agents[0].use_keys(KeyRing([OLD, NEW]))
    with pytest.raises(SbonError, match=f"would be cut off without key {NEW_ID}"):
        world.ask(0, "keys", action="use", id=NEW_ID)
    world.agents[0].use_keys(KeyRing([NEW, OLD]))
    with pytest.raises(SbonError, match="would be cut off, sealing with key"):
        world.ask(0, "keys", action="remove", id=OLD_ID)
    with pytest.raises(SbonError, match="no agent holds a key ffffffff"):
        world.ask(0, "keys", action="remove", id="ffffffff")
    for arguments in ({"action": "install"}, {"action": "burn"}, {"action": "use"}, {"action": "install", "key": b"short"}):
        with pytest.raises(SbonError):
            world.ask(0, "keys", **arguments)
    assert {agent.key_ring.ids for agent in world.agents[1:]} == {(OLD_ID,)}


def test_an_agent_whose_key_file_cannot_be_written_keeps_its_keys_and_says_why(tmp_path):
    world = sealed_world(tmp_path, nodes=3)
    world.key_files[1].write_text(generate_key(THIRD))

    result = world.ask(0, "keys", action="install", key=NEW)

    errors = {node["node"]: node["error"] for node in result["nodes"] if node["error"]}
    assert list(errors) == [world.nodes[1]]
    assert "changed by hand" in errors[world.nodes[1]]
    assert world.agents[1].key_ring.ids == (OLD_ID,)
    assert world.agents[2].key_ring.ids == (OLD_ID, NEW_ID)


def test_an_agent_that_was_down_meanwhile_is_told_that_it_holds_no_valid_key(tmp_path):
    world = sealed_world(tmp_path)
    world.kill(5, silent=True)
    world.run_until(lambda: "failed" in statuses(world, 0), 60, "the agent that is down is known to have failed")
    for action, arguments in (("install", {"key": NEW}), ("use", {"id": NEW_ID}), ("remove", {"id": OLD_ID})):
        result = world.ask(0, "keys", action=action, **arguments)
        (absent,) = [node for node in result["nodes"] if node["node"] == world.nodes[5]]
        assert "give it the keys before it comes back" in absent["error"]

    world.restart(5)
    world.run(20)

    problem = world.ask(5, "status")["problem"]
    assert "holds none of our cluster keys" in problem
    assert f"only key {OLD_ID}" in problem
    assert str(world.key_files[5]) in problem
    assert "sbon reload" in problem
    assert world.ask(5, "keys", action="list")["problem"] == problem  # no virtual time passes, so no other agent has refused datagrams
    assert world.ask(0, "status")["problem"] is None
    said = [event for event in events(tmp_path) if event["event"] == "keys.outdated"]
    assert len(said) == 1, "logged once a minute"
    assert said[0]["reason"].partition("holds")[2] == problem.partition("holds")[2]

    world.partition([[5]])
    world.run(100)
    assert world.ask(5, "status")["problem"] is None, "missing answers are no refusal"
    world.heal()
    world.agents[5].use_keys(world.agents[0].key_ring)  # as `sbon reload` does
    world.settle()
    assert world.ask(5, "status")["problem"] is None


def test_agents_without_a_cluster_key_have_none_to_change():
    world = World(2, seed=1)
    world.start_all()
    with pytest.raises(SbonError, match="without a cluster key; start every agent with --key-file"):
        world.ask(0, "keys", action="list")


def test_members_that_are_left_out_get_no_new_key_and_fall_out_with_the_old_one(tmp_path):
    world = sealed_world(tmp_path)
    thief, other = world.nodes[6], world.nodes[7]
    after = {"install": (OLD_ID, NEW_ID), "use": (NEW_ID, OLD_ID), "remove": (NEW_ID,)}
    for action, arguments in (("install", {"key": NEW}), ("use", {"id": NEW_ID}), ("remove", {"id": OLD_ID})):
        result = world.ask(0, "keys", action=action, **arguments, **{"except": [thief, other]})
        for node in result["nodes"]:
            left_out = node["node"] in (thief, other)
            assert node["left_out"] is left_out
            assert node["ids"] == ([] if left_out else list(after[action]))
            assert (node["error"] or "").startswith("left out") is left_out
        world.run(5.0)
        assert [agent.key_ring.ids for agent in world.agents[6:]] == [(OLD_ID,)] * 2, "nothing else may distribute the key"

    world.run(60.0)
    assert [agent.key_ring.ids for agent in world.agents[6:]] == [(OLD_ID,)] * 2
    assert {agent.key_ring.ids for agent in world.agents[:6]} == {(NEW_ID,)}
    seen = {member["name"]: member["status"] for member in world.ask(0, "members")}
    assert (seen[thief], seen[other]) == ("failed", "failed")
    assert [seen[name] for name in world.nodes[:6]] == ["alive"] * 6


def test_whoever_joins_between_two_steps_is_not_handed_the_new_key(tmp_path):
    world = sealed_world(tmp_path, nodes=4)
    world.kill(3, silent=True)
    world.run_until(lambda: "failed" in statuses(world, 0), 60, "the agent that is down is known to have failed")
    world.ask(0, "keys", action="install", key=NEW)
    world.restart(3)
    world.settle()
    world.run(120.0)

    assert world.agents[3].key_ring.ids == (OLD_ID,)
    with pytest.raises(SbonError, match="would be cut off without key"):
        world.ask(0, "keys", action="use", id=NEW_ID)


def test_a_mistyped_name_hands_nobody_the_key(tmp_path):
    world = sealed_world(tmp_path, nodes=3)
    for wrong in (["nobody"], [world.nodes[0]], "n1", [7]):
        with pytest.raises(SbonError):
            world.ask(0, "keys", action="install", key=NEW, **{"except": wrong})
    assert rings(world) == {(OLD_ID,)}
