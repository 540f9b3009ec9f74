"""A query of one seed whose windows a dealer deals to several instances while faults happen.

Its pattern begins at each row, and counts the rows of the window. So each lost or repeated row, and each row that went to the wrong
instance, makes an answer wrong; and as a match may begin in the midst of another one, no lost match changes others.
"""

import numpy as np

from sbon_testbed.random_queries.data import INT, TIME
from sbon_testbed.random_queries.parts import Query
from sbon_testbed.simulator.workload import Asked, Workload

WITHIN = (("1 second", 1_000_000), ("2500 milliseconds", 2_500_000), ("6 seconds", 6_000_000))
TURNS = ("", "300 milliseconds", "700 milliseconds", "2 seconds", "5 seconds")
DEALERS = ("round-robin", "turns", "last", "model", "reactive", "auto")
SHAPE = "dealt"


def with_dealer(workload: Workload) -> Workload:
    """Returns the workload of a seed with one more query, which runs first."""
    rng = np.random.default_rng([workload.seed, 11])
    both = "SELECT ts FROM p UNION ALL SELECT ts FROM q"
    rows = ("SELECT ts FROM p", "SELECT ts FROM q2", both, both.replace("q", "q2"))[int(rng.integers(4))]
    within, within_us = WITHIN[int(rng.integers(len(WITHIN)))]
    turn = TURNS[int(rng.integers(len(TURNS)))]
    options = [f"instances = {int(rng.integers(2, 4))}", "dealing = 'window'", "max_latency = '1 hour'"]
    options += [f"dealer = '{DEALERS[int(rng.integers(len(DEALERS)))]}'", *([f"turn = '{turn}'"] if turn else [])]
    ours = (
        f"WITH u AS ({rows}) SELECT c0, c1 FROM u MATCH_RECOGNIZE (ORDER BY ts MEASURES FIRST(ts) AS c0, COUNT(*) AS c1 "
        f"AFTER MATCH SKIP TO NEXT ROW PATTERN (a b*) WITHIN INTERVAL '{within}' DEFINE b AS TRUE) AS m"
    )
    duck = (
        f"WITH u AS (SELECT ts, row_number() OVER (ORDER BY ts) AS n FROM ({rows.replace('2', '')}) WHERE ts IS NOT NULL) "
        f"SELECT ts AS c0, (SELECT count(*) FROM u v WHERE epoch_us(v.ts) < epoch_us(u.ts) + {within_us}) - n + 1 AS c1 FROM u"
    )
    nodes = len(workload.topology.nodes) - 1
    owner, sink = (int(number) for number in rng.integers(nodes, size=2))
    query = Query(ours, duck, (TIME, INT), (0.0, 0.0), SHAPE)
    return workload._replace(queries=(Asked("kd", query, owner, sink, "csv", ", ".join(options)), *workload.queries))
