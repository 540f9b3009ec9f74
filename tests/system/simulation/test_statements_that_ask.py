"""DESCRIBE and SHOW at any agent know the names that earlier statements have created, and the queries of all agents."""

import pytest

from sbon.errors import SbonError
from tests.worlds import settled_world

TEXT = """
CREATE SOURCE s (ts TIMESTAMP, v DOUBLE NOT NULL, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', rows_per_second = 10);
CREATE VIEW w AS SELECT window_end, sum(v) AS v FROM TUMBLE(s, ts, INTERVAL '1 s') GROUP BY window_end;
DESCRIBE w;
SHOW SOURCES
"""


def test_statements_that_ask_are_answered_with_tables():
    world = settled_world(2, seed=3)

    *made, described, listed = world.ask(0, "submit", sql=TEXT)

    assert [row["statement"] for row in made] == ["source", "view"]
    assert described["columns"] == ["column", "type", "remarks"]
    assert described["rows"][0] == {"column": "window_end", "type": "TIMESTAMP", "remarks": "event time"}
    assert listed["rows"] == [{"name": "s", "connector": "datagen", "nodes": world.nodes[0]}]
    world.run(5.0)
    (text,) = world.ask(1, "submit", sql="SHOW CREATE VIEW w")
    assert text["rows"][0]["statement"].startswith("CREATE VIEW w AS")
    (query,) = world.ask(0, "submit", sql="SELECT * FROM w")
    world.run(1.0)
    (queries,) = world.ask(1, "submit", sql="SHOW QUERIES")
    assert [(row["query"], row["state"]) for row in queries["rows"]] == [(query["query"], "running")]
    with pytest.raises(SbonError, match="there is no source, view or sink ww; did you mean w"):
        world.ask(1, "submit", sql="SHOW VIEWS; DESCRIBE ww")
    world.close()
