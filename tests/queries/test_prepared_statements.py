"""Statements about names that exist or are gone, and rows that are lost when a link is replaced."""

from types import SimpleNamespace
from typing import Any

import pytest

from sbon.errors import QueryError
from sbon.extensions import Extensions
from sbon.query.catalog import Catalog
from sbon.query.plan import LinkSpec
from sbon.supervision.homes import Doubt
from sbon.supervision.losses import Losses
from sbon.supervision.statements import Effect, prepare
from sbon.wire.reports import OperatorReport

CONNECTORS: Any = SimpleNamespace(extensions=Extensions, check_source=lambda source, here: "")
SINK = "CREATE SINK IF NOT EXISTS k FROM (SELECT ts, node FROM sys.load) WITH (connector = 'discard')"


def prepared(sql: str, catalog: Catalog, doubts: dict[str, Doubt]) -> Any:
    (one,) = prepare(sql, list(catalog.living.values()), {"ams": {}}, "ams", iter(["q9"]), 7, CONNECTORS, doubts)
    return one


@pytest.fixture
def catalog() -> Catalog:
    made = Catalog()
    made.put("sink", "k", sql=SINK, owner="fra", stamp=1, query="q2")
    return made


def test_a_sink_is_replaced_only_if_it_is_its_own_query_whose_home_is_gone(catalog: Catalog):
    assert prepared(SINK, catalog, {}).effect is Effect.NOTHING
    assert prepared(SINK, catalog, {"k": Doubt("q1", "its home fra has crashed", gone=True)}).effect is Effect.NOTHING
    found = prepared(SINK, catalog, {"k": Doubt("q2", "its home fra has crashed", gone=True)})
    assert (found.effect, found.replaces) == (Effect.RUN, "q2")
    with pytest.raises(QueryError, match="there is a sink k, but its home fra does not answer"):
        prepared(SINK, catalog, {"k": Doubt("q2", "its home fra does not answer", gone=False)})


def test_what_is_not_there_may_be_dropped_if_the_statement_says_so(catalog: Catalog):
    found = prepared("DROP SINK IF EXISTS nothing", catalog, {})
    assert (found.effect, found.message) == (Effect.NOTHING, "there is no sink nothing")
    assert prepared("DROP SINK IF EXISTS k", catalog, {}).effect is Effect.END
    with pytest.raises(QueryError):
        prepared("DROP SINK nothing", catalog, {})


def test_rows_given_between_the_last_by_the_old_link_and_the_first_by_the_new_are_lost():
    old, new = LinkSpec("old", "a", "b", 0, 1.0, 1.0), LinkSpec("new", "a", "b", 0, 1.0, 1.0)

    def reports(given: int, taken: int, sent: int | None = None) -> dict[str, OperatorReport]:
        links = () if sent is None else (("new", sent, 0, 0.0, 0.0),)
        return {
            "a": OperatorReport(id="a", state="running", node="n", rows_out=given, links=links),
            "b": OperatorReport(id="b", state="running", node="m", received=(("old", taken),)),
        }

    losses = Losses()
    losses.look([old], reports(100, 90))
    losses.look([old], reports(150, 90))  # b has taken nothing more
    losses.refed(old, new)
    losses.look([new], reports(180, 90, sent=20))
    assert losses.rows == 180 - 20 - 100
    assert losses.told(lambda operator: "x") == ["b (x) was cut off from a: about 60 rows sent before it was fed again are lost"]


def test_rows_that_wait_on_a_link_when_it_breaks_are_lost_with_it():
    """A link that nobody takes from is full when it is given up: its target has not taken the rows on it."""
    old, new = LinkSpec("old", "a", "b", 0, 1.0, 1.0), LinkSpec("new", "a", "b", 0, 1.0, 1.0)
    losses, target = Losses(), OperatorReport("b", "running", "m", received=(("old", 60),))
    # a had given 30 rows to others before the link existed
    losses.look([old], {"a": OperatorReport("a", "running", "n", rows_out=130, links=(("old", 100, 60, 0.0, 0.0),)), "b": target})
    losses.look([old], {"a": OperatorReport("a", "running", "n", rows_out=150), "b": target})
    losses.refed(old, new)
    losses.look([new], {"a": OperatorReport("a", "running", "n", rows_out=180, links=(("new", 20, 0, 0.0, 0.0),)), "b": target})
    assert losses.rows == (130 - 30 - 60) + (180 - 130 - 20)
