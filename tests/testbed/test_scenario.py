"""Scenario files: their contents, and messages about mistakes in them."""

import pytest

from sbon.errors import ConfigError, UsageError
from sbon_testbed.prepare import check_events, check_settings, scenario_topology, settings_of
from sbon_testbed.scenario import Kill, Latency, parse_scenario
from sbon_testbed.statements import check_statements

HEAD = 'name = "x"\nduration_s = 10\nnodes = 4\n'


def test_a_minimal_scenario_has_defaults_for_the_rest():
    scenario = parse_scenario(HEAD, "x.toml")
    assert (scenario.nodes, scenario.seed, scenario.event) == (4, 1, ())


def test_events_are_told_apart_by_their_kind():
    text = HEAD + '[[event]]\nat_s = 1\nkind = "kill"\nagents = "#1"\n[[event]]\nat_s = 2\nkind = "latency"\ncable = "suez"\nfactor = 3\n'
    assert parse_scenario(text, "x").event == (Kill(at_s=1, agents="#1"), Latency(at_s=2, cable="suez", factor=3))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name = ", "x.toml: not TOML"),
        ('name = "x"', "missing required field `duration_s`"),
        (HEAD + "node = 3", "unknown field `node`; did you mean nodes?"),
        (
            HEAD + '[topology]\nkind = "cities"\nnodes = 3',
            "x.toml: topology: object contains unknown field `nodes`; nodes stands before the first table",
        ),
        (HEAD + '[topology]\nkind = "cities"\ncites = []', "topology: object contains unknown field `cites`; did you mean cities?"),
        (HEAD + "[network]\nat_s = 1", "network: object contains unknown field `at_s`; there is bandwidth_bytes_per_s, "),
        (HEAD + '[[event]]\nat_s = 1\nkind = "explode"', "event 1.kind: invalid value 'explode'"),
        (HEAD + '[[event]]\nat_s = 1\nkind = "kill"\nagent = "a"', "event 1"),
        (HEAD + '[[event]]\nat_s = 1\nkind = "latency"\nfactor = 2', "names either a cable or two selections"),
        (HEAD + '[[event]]\nat_s = 11\nkind = "heal"', "at_s = 11, expected 0 to duration_s = 10"),
        (HEAD + "[network]\nloss = 2", "loss = 2.0, expected 0 to 1"),
        (
            HEAD + '[topology]\nkind = "matrx"',
            "x.toml: topology.kind: invalid value 'matrx'; did you mean matrix? there is cities, matrix, transit-stub",
        ),
        (HEAD + '[topology]\nkind = "ring"', "topology.kind: invalid value 'ring', expected one of cities, matrix, transit-stub"),
        (
            HEAD + '[[event]]\nat_s = 1\nkind = "kil"',
            "event 1.kind: invalid value 'kil'; did you mean kill? there is heal, kill, latency, leave",
        ),
        (HEAD + "[expect]\nrows_min = { a = 1 }", "expect names the statement a; there are none"),
        (HEAD + "[expect]\nrows = { b = 1 }", "expect names the statement b; there are none"),
        (HEAD + "[expect]\nsums = { c = { id = 1 } }", "expect names the statement c; there are none"),
        (
            HEAD + '[[event]]\nat_s = 1\nkind = "migrate"\nstatement = "d"\nto = "a"',
            "a migrate event names the statement d; there are none",
        ),
        (HEAD + "[network]\nqueue_bytes = -1", "queue_bytes = -1, expected 0 or more"),
        (
            HEAD + '[[statement]]\nat_s = 1\nsql = "a"\nname = "n"\n[[statement]]\nat_s = 1\nsql = "b"\nname = "n"',
            "two statements are named n",
        ),
        (HEAD + "nodes = 5", "not TOML"),
    ],
)
def test_mistakes_are_named_with_their_place(text, message):
    with pytest.raises(UsageError) as caught:
        parse_scenario(text, "x.toml")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ('[[statement]]\nat_s = 1\nagent = "atlantis"\nsql = "x"', 'statement 1: no node "atlantis"'),
        ('[[event]]\nat_s = 1\nkind = "kill"\nagents = "region=moon"', "event 1: no node has the label region=moon"),
        ('[[event]]\nat_s = 1\nkind = "kill"\nagents = "#9"', 'event 1: no node "#9"'),
        ('[[event]]\nat_s = 1\nkind = "latency"\nfactor = 2\ncable = "artic"', 'event 1: no cable "artic"'),
        (
            '[[statement]]\nat_s = 0\nsql = "x"\nname = "n"\n[[event]]\nat_s = 1\nkind = "migrate"\nstatement = "n"\nto = "moon"',
            'event 1: no node "moon"',
        ),
        ('[[event]]\nat_s = 1\nkind = "partition"\ngroups = [["nowhere"]]', 'event 1: no node "nowhere"'),
    ],
)
def test_selectors_are_checked_before_anything_runs(item, message):
    scenario = parse_scenario(HEAD + item, "x")
    with pytest.raises(ConfigError, match=message):
        check_events(scenario, scenario_topology(scenario, 1, None, None))


def test_overrides_give_settings_and_labels_to_some():
    text = HEAD + (
        "[agent.membership]\ninterval_s = 0.5\n"
        '[[override]]\nagents = "region=eu"\nlabels = { tier = "core" }\nagent = { leave_timeout_s = 1.0 }\n'
    )
    scenario = parse_scenario(text, "x")
    topology = scenario_topology(scenario, 1, None, None)
    assert topology.labels[0]["tier"] == "core"
    assert "tier" not in topology.labels[1]
    assert settings_of(scenario, topology, 0) == {"membership": {"interval_s": 0.5}, "leave_timeout_s": 1.0}
    assert settings_of(scenario, topology, 1) == {"membership": {"interval_s": 0.5}}


def test_fewer_nodes_are_the_first_of_the_same_topology():
    scenario = parse_scenario(HEAD, "x")
    whole, part = scenario_topology(scenario, 1, None, None), scenario_topology(scenario, 1, 2, None)
    assert part.nodes == whole.nodes[:2]
    assert (part.rtt_ms == whole.rtt_ms[:2, :2]).all()
    with pytest.raises(ConfigError, match="nodes = 5"):
        scenario_topology(scenario, 1, 5, None)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            '[[override]]\nagents = "*"\n[[override]]\nagents = "#1"\nagent = { name = "x" }',
            r'override 2: agent\.name = "x" cannot be set; the topology names the agents: .* by labels = \{ role = "x" \} in an',
        ),
        ('[agent]\nname = "x"', r'^agent\.name = "x" cannot be set'),
        ('[agent.labels]\nsite = "a"', r'^agent\.labels = \{ site = "a" \} cannot be set; write labels'),
        ('[agent]\nbind = "127.0.0.1:1"', "gives every agent an address"),
    ],
)
def test_what_the_testbed_gives_to_agents_cannot_be_set(table, message):
    with pytest.raises(ConfigError, match=message):
        check_settings(parse_scenario(HEAD + table, "x"))


SOURCE = "CREATE SOURCE r (ts TIMESTAMP, id BIGINT, WATERMARK FOR ts AS ts) WITH (connector = 'datagen')"
STATEMENTS = f"""{HEAD}
[[statement]]
at_s = 3
name = "late"
sql = '''
SELECT id
FROM r WHERE idd = 1'''

# [[statement]] in a comment is none
[[statement]]
at_s = 1
agent = "#1"
sql = "{SOURCE}"
"""


def checked(text):
    scenario = parse_scenario(text, "x.toml")
    check_statements(scenario, scenario_topology(scenario, 1, None, None), text, "x.toml")


def test_statements_are_planned_in_the_order_of_their_times():
    checked(STATEMENTS.replace("idd", "id"))
    with pytest.raises(UsageError, match=r"^x\.toml:10:6: statement late: there is no source or view r"):
        checked(STATEMENTS.replace("idd", "id").replace("at_s = 1", "at_s = 4"))


def test_statements_are_planned_for_the_labels_of_the_topology():
    elsewhere = STATEMENTS.replace("idd", "id").replace("'datagen'", "'datagen', labels = 'tier=core'")
    with pytest.raises(UsageError, match="statement late: "):
        checked(elsewhere)
    checked(elsewhere + '[[override]]\nagents = "#2"\nlabels = { tier = "core" }\n')


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("idd", "idd", "x.toml:10:14: statement late: there is no column idd; did you mean id?"),
        ("'datagen'", "'datagne'", "x.toml:16:80: statement 2: there is no connector 'datagne' for this; did you mean datagen?"),
        ("BIGINT", "BIGNIT", "x.toml:16:39: statement 2: "),
        ("'datagen'", "'datagen', rows = 'many'", "x.toml:16:103: statement 2: source r: option rows = "),
        (f'"{SOURCE}"', '"SELECT 1 +\\n * FROM s"', "x.toml: statement 2, line 2, column "),
        ("SELECT id\nFROM r WHERE idd = 1", "CREATE SINK k FROM r WITH (connector = 'file')", "x.toml:9:13: statement late: sink k: "),
    ],
)
def test_mistakes_in_sql_are_found_with_their_place_in_the_file(old, new, message):
    text = STATEMENTS.replace(old, new)
    assert text != STATEMENTS or old == new
    with pytest.raises(UsageError) as caught:
        checked(text)
    assert str(caught.value).startswith(message), str(caught.value)
    assert "\n" not in str(caught.value)


def statement(at_s, sql):
    return f'[[statement]]\nat_s = {at_s}\nsql = "{sql}"\n'


def test_names_that_statements_take_away_are_free_again():
    made = "CREATE VIEW v AS SELECT id FROM r; CREATE SINK k FROM v WITH (connector = 'discard')"
    before = STATEMENTS.replace("idd", "id") + statement(5, made)
    checked(before + statement(6, "DROP SINK k; DROP VIEW v") + statement(7, made))
    with pytest.raises(UsageError, match="statement 4: there is a view v already"):
        checked(before + statement(7, made))
