"""A scenario's expectations about the rows of its statements are checked against a run in virtual time."""

import pytest

from sbon_testbed.run import run_scenario
from sbon_testbed.scenario import parse_scenario

SCENARIO = """
name = "rows"
duration_s = 12
nodes = 2
[[statement]]
at_s = 4
sql = '''
CREATE SOURCE readings (ts TIMESTAMP, id BIGINT, WATERMARK FOR ts AS ts - INTERVAL '1 second')
WITH (connector = 'datagen', nodes = 'new-york', rows_per_second = 100, rows = 50, "fields.id.kind" = 'sequence')
'''
[[statement]]
at_s = 5
name = "ids"
sql = "SELECT id FROM readings"
[expect]
"""


@pytest.mark.parametrize(
    ("expected", "problems"),
    [
        ("rows = { ids = 50 }\nsums = { ids = { id = 1225 } }", []),
        ("rows = { ids = 49 }", ["statement ids gave 50 rows, expected exactly 49"]),
        ("sums = { ids = { id = 1224 } }", ["statement ids gave rows whose id adds up to 1225, expected 1224"]),
        ("sums = { ids = { none = 1 } }", ["statement ids gave rows whose none adds up to None, expected 1"]),
    ],
)
def test_rows_and_sums_are_held_against_the_run(expected, problems):
    assert run_scenario(parse_scenario(SCENARIO + expected, "rows.toml"), "sim")["problems"] == problems
