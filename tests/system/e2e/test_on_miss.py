"""`on_miss = 'shed'` on real agents: more rows come than can be processed in time, and each row that is shed is counted."""

from typing import Any

import pytest

from tests.processes import Process, two_agents, wait_until

COLUMNS = ", ".join(f"upper(replace(replace(word, 'word', 'expression {n}'), 'e', 'eee')) AS c{n}" for n in range(24))
SQL = f"""CREATE SOURCE words (ts TIMESTAMP, word TEXT, WATERMARK FOR ts AS ts)
    WITH (connector = 'datagen', nodes = 'ams', rows_per_second = 2000000, estimated_rows_per_second = 1, fields.word.count = 9);
CREATE SINK wide AS SELECT ts, word, {COLUMNS} FROM words
    WITH (connector = 'discard', node = 'nyc', max_latency = '1 s', on_miss = 'shed');
CREATE SINK plain AS SELECT ts, word, {COLUMNS} FROM words WITH (connector = 'discard', node = 'nyc');"""


agents = pytest.fixture(two_agents)


def test_rows_given_and_rows_shed_are_the_rows_that_came(agents: tuple[Process, Process]) -> None:
    _, nyc = agents
    nyc.ask("submit", sql=SQL)

    def projections() -> dict[bool, dict[str, Any]]:
        """Returns the projection that sheds, and the other one."""
        found = [one for one in nyc.ask("operators") if one["kind"] == "map"]
        names = {query["id"]: query["name"] for query in nyc.ask("queries")}
        return {names[one["queries"][0]] == "wide": one for one in found}

    def has_shed() -> bool:
        found = projections()
        return len(found) == 2 and sum(found[True]["shed_rows"]) > 0 and found[True]["rows_out"] > 0 and found[False]["rows_out"] > 0

    wait_until(has_shed)
    found = projections()
    for sheds, one in found.items():
        assert one["rows_out"] + sum(one["shed_rows"]) == one["rows_in"] > 0
        assert one["deferred_rows"] == []
        assert sheds or one["shed_rows"] == []
