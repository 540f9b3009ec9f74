"""The figures at the end of the demo, computed on overlays made by hand."""

import numpy as np
import pytest

from sbon_testbed.backend import Tail
from sbon_testbed.demo.story import ROWS_PER_SOURCE, SOURCES
from sbon_testbed.demo.summary import counted_readings, delivery, missing, usages
from sbon_testbed.demo.view import sparkline
from sbon_testbed.report import Link, Operator, Running
from sbon_testbed.topology import Latencies, Topology

NODES = ("a", "b", "c")
RTT = np.array([[0.0, 100.0, 20.0], [100.0, 0.0, 80.0], [20.0, 80.0, 0.0]])


class StillWorld:
    """A topology and its latencies, without agents."""

    def __init__(self):
        self.topology = Topology("hand-made", NODES, ({}, {}, {}), RTT, np.zeros(3))
        self.latencies = Latencies(self.topology)


def operator(name, node, kind, pinned):
    return Operator(f"q.{name}", node, kind, "running", pinned, 0, 0, 0, 0)


def link(source, target, sent=10, received=10, rate=100.0):
    return Link(f"q.{source}>q.{target}:0", f"q.{source}", f"q.{target}", sent, received, received, rate)


def overlay(window_at="c", **changes):
    operators = [operator("0", "a", "source", True), operator("1", window_at, "window", False), operator("2", "b", "sink", True)]
    links = [link("0", "1", rate=1000.0, **changes), link("1", "2", rate=100.0)]
    return Running({one.id: one for one in operators}, {one.id: one for one in links})


def test_usage_is_given_as_placed_as_it_was_and_at_either_end():
    moved = [{"operator": "q.1", "here": "b", "there": "c", "at_wall_s": 5.0}]
    found = usages(StillWorld(), overlay("c"), moved, RTT / 2)
    assert found["now"] == pytest.approx(1000 * 0.010 + 100 * 0.040)
    assert found["unmoved"] == pytest.approx(1000 * 0.050)
    assert found["before_event"] == pytest.approx(1000 * 0.025)
    assert found["producer"] == pytest.approx(100 * 0.050)
    assert found["consumer"] == pytest.approx(1000 * 0.050)


def test_links_that_keep_up_are_clean_and_loss_and_repetition_are_seen():
    first, second, third = overlay(sent=100, received=90), overlay(sent=150, received=120), overlay(sent=200, received=190)
    clean = delivery(first, second, third)
    assert (clean["links"], clean["lost"], clean["repeated"]) == (2, {}, {})
    assert clean["in_flight"] == 30
    behind = delivery(first, overlay(sent=150, received=95), third)
    assert (behind["lost"], behind["waiting"]) == ({}, 5)
    assert delivery(first, overlay(sent=150, received=89), third)["lost"] == {"q.0>q.1:0": 1}
    assert delivery(first, overlay(sent=150, received=203), third)["repeated"] == {"q.0>q.1:0": 3}


def test_generated_rows_are_counted_to_the_last():
    total, ids = ROWS_PER_SOURCE * len(SOURCES), len(SOURCES) * ROWS_PER_SOURCE * (ROWS_PER_SOURCE - 1) // 2
    assert counted_readings(Tail("q", rows=[("w", "s", total - 5, ids - 7, 0.0), ("w", "s", 5, 7, 0.0)])) == {
        "generated": total,
        "counted": total,
        "lost": 0,
        "repeated": 0,
        "ids_off": 0,
    }
    assert counted_readings(Tail("q", rows=[("w", "s", total - 2, ids, 0.0)]))["lost"] == 2


def good_summary():
    return {
        "agents": {"alive": 16, "started": 16},
        "coordinates": {"median_relative_error": 0.08},
        "queries": [{"name": "x", "state": "running", "reason": "", "rows": 3}],
        "migrations": [{"after_event": True}],
        "network_usage_bytes": {"now": 10.0, "unmoved": 20.0},
        "tuples": {
            "readings": {"lost": 0, "repeated": 0, "ids_off": 0, "generated": 5, "counted": 5},
            "links": {"lost": {}, "repeated": {}, "links": 4},
        },
    }


def test_a_run_that_kept_its_promises_lacks_nothing():
    assert missing(good_summary()) == []


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        (("agents", "alive"), 15, "15 of 16 agents were alive at the end"),
        (("coordinates", "median_relative_error"), None, "coordinates did not settle: median relative error None"),
        (("queries", 0, "state"), "degraded", 'the query "x" was degraded: '),
        (("queries", 0, "rows"), 0, 'the query "x" gave no rows'),
        (("migrations",), [], "no operator migrated after the event"),
        (("network_usage_bytes", "now"), 30.0, "the migration saved no network usage"),
        (("network_usage_bytes",), None, "the migration saved no network usage"),
        (("tuples", "readings", "ids_off"), 1, "of 5 generated rows 5 were counted at the end"),
        (("tuples", "links", "lost"), {"l": 1}, "links lost or repeated rows, or could not be checked"),
        (("tuples", "links"), None, "links lost or repeated rows, or could not be checked"),
    ],
)
def test_every_broken_promise_is_named(path, value, sentence):
    summary = good_summary()
    place = summary
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    assert missing(summary) == [sentence]


def test_a_sparkline_of_nothing_and_of_zeros():
    assert sparkline([]) == ""
    assert sparkline([0.0, 0.0]) == "▁▁"
