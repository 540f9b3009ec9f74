"""Changes of the catalogue reach the other agents at once, or else by exchanges of whole tables."""

from tests.worlds import settled_world


def test_names_that_either_end_has_missed_are_known_to_both_after_one_exchange():
    world = settled_world(2, seed=1, settings={"membership": {"push_pull_interval_s": 3600.0, "reconnect_interval_s": 3600.0}})
    world.run(60.0)  # exchanges upon joining are over
    first, second = world.agents
    stamp = int(first.host.wall() * 1e6)
    for agent, name in ((first, "here"), (second, "there")):
        agent.queries.replication.catalog.put("view", name, sql=f"CREATE VIEW {name} AS SELECT 1", owner=agent.name, stamp=stamp)
    world.run(5.0)
    assert [agent.queries.replication.catalog.names("view") for agent in world.agents] == [["here"], ["there"]]

    first.queries.replication.exchange(second.network.address)
    world.run(5.0)

    assert [agent.queries.replication.catalog.names("view") for agent in world.agents] == [["here", "there"]] * 2
    world.close()


def test_change_is_told_at_once():
    world = settled_world(2, seed=1, settings={"membership": {"push_pull_interval_s": 3600.0, "reconnect_interval_s": 3600.0}})
    world.run(60.0)
    first, second = world.agents
    first.queries.replication.put("view", "v", sql="CREATE VIEW v AS SELECT 1", stamp=int(first.host.wall() * 1e6))
    world.run(2.0)
    assert second.queries.replication.catalog.names("view") == ["v"]
    second.queries.replication.drop("view", "v", stamp=int(second.host.wall() * 1e6))
    world.run(2.0)

    assert first.queries.replication.catalog.names("view") == []
    world.close()
