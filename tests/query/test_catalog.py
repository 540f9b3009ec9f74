"""The catalogue of one agent, and several copies that exchange entries."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbon.errors import QueryError
from sbon.query.catalog import (
    AHEAD_US_MAX,
    BYTES_MAX,
    ENTRIES_MAX,
    OWNER_BYTES_MAX,
    OWNER_ENTRIES_MAX,
    TOMBSTONES_MAX,
    VERSION_MAX,
    Catalog,
    Entry,
    did_you_mean,
    encode_entries,
)
from sbon.query.system import SYSTEM_STREAMS, SourceDefinition, known_columns
from tests.examples import examples
from tests.query_worlds import CATALOG, NODES


def view(name: str, *, version: int = 1, owner: str = "a", dropped: bool = False, sql: str = "CREATE VIEW v AS SELECT 1") -> Entry:
    return Entry("view", name, version, owner, dropped, "" if dropped else sql)


def test_a_name_is_taken_until_it_is_dropped() -> None:
    catalog = Catalog()
    catalog.put("view", "v", sql="one", owner="a", stamp=5)
    with pytest.raises(QueryError, match="there is a view v already; take another name, or DROP VIEW v first"):
        catalog.put("sink", "v", sql="two", owner="a", stamp=6)
    catalog.drop("view", "v", owner="a", stamp=6)
    assert catalog.get("v") is None
    assert catalog.put("sink", "v", sql="two", owner="a", stamp=7).version == 7


def test_a_version_grows_even_if_the_clock_does_not() -> None:
    catalog = Catalog()
    catalog.put("view", "v", sql="one", owner="a", stamp=100)
    catalog.drop("view", "v", owner="a", stamp=3)
    assert catalog.entries()[0].version == 101


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("source", "v", "v is a view, not a source; write DROP VIEW v"),
        ("view", "w", "there is no view w; there is v"),
        ("sink", "w", "there is no sink w"),
    ],
)
def test_dropping_what_is_not_there_is_refused(kind: str, name: str, message: str) -> None:
    catalog = Catalog()
    catalog.put("view", "v", sql="one", owner="a", stamp=1)
    with pytest.raises(QueryError, match=message):
        catalog.drop(kind, name, owner="a", stamp=2)


@pytest.mark.parametrize("name", ["sys.probes", "sys", "", "x" * 129])
def test_some_names_are_not_to_be_had(name: str) -> None:
    with pytest.raises(QueryError):
        Catalog().put("view", name, sql="one", owner="a", stamp=1)


def test_a_full_catalogue_says_so() -> None:
    catalog = Catalog()
    catalog.merge(view(f"v{i}", owner=f"n{i % 10}") for i in range(ENTRIES_MAX + 10))
    assert (len(catalog.entries()), catalog.refused) == (ENTRIES_MAX, 10)
    with pytest.raises(QueryError, match="the catalogue is full"):
        catalog.put("view", "another", sql="one", owner="a", stamp=1)


def test_one_owner_leaves_room_for_the_others() -> None:
    catalog = Catalog()
    catalog.merge(view(f"junk{i}", owner="liar") for i in range(ENTRIES_MAX))
    assert (len(catalog.entries()), catalog.refused) == (OWNER_ENTRIES_MAX, ENTRIES_MAX - OWNER_ENTRIES_MAX)
    catalog.put("view", "another", sql="one", owner="a", stamp=1)
    with pytest.raises(QueryError, match="no room for more: liar has made 500 names"):
        catalog.put("view", "more", sql="one", owner="liar", stamp=1)
    catalog.merge([view("junk1", version=2, owner="liar", sql="another text")])
    assert catalog.get("junk1").sql == "another text", "an owner may change its own names"
    catalog.drop("view", "junk2", owner="a", stamp=3)
    assert catalog.merge([view("more", owner="liar")]), "a dropped name makes room"


def test_owners_that_are_no_members_share_what_one_member_may_have() -> None:
    catalog = Catalog()
    catalog.merge((view(f"junk{i}", owner=f"ghost{i}") for i in range(ENTRIES_MAX)), is_member={"a"}.__contains__)
    assert len(catalog.entries()) == OWNER_ENTRIES_MAX
    assert catalog.merge([view("v", owner="a")], is_member={"a"}.__contains__)


def test_bytes_are_bounded_by_owner_and_in_all() -> None:
    catalog = Catalog()
    long = "x" * 90_000
    catalog.merge(view(f"junk{i}", owner="liar", sql=long) for i in range(100))
    assert len(catalog.entries()) == OWNER_BYTES_MAX // 90_100
    catalog.merge(view(f"more{i}", owner=f"n{i % 40}", sql=long) for i in range(1000))
    assert sum(len(encode_entries([entry])) for entry in catalog.entries()) <= BYTES_MAX
    with pytest.raises(QueryError, match="no room for another"):
        catalog.put("view", "another", sql=long, owner="a", stamp=1)


def test_a_version_of_the_far_future_is_refused_as_nobody_could_replace_it() -> None:
    catalog, now_us = Catalog(), 10**15
    assert not catalog.merge([view("v", version=VERSION_MAX), view("w", version=now_us + AHEAD_US_MAX + 1)], now_us=now_us)
    assert catalog.refused == 2
    catalog.merge([view("v", version=now_us + AHEAD_US_MAX)], now_us=now_us)
    catalog.drop("view", "v", owner="a", stamp=now_us)
    (tombstone,) = catalog.entries()
    assert catalog.merge([tombstone], now_us=now_us + 10) == []
    other = Catalog()
    other.merge([view("v", version=now_us + AHEAD_US_MAX)], now_us=now_us)
    assert other.merge([tombstone], now_us=now_us + 10) == [tombstone]


def test_shares_are_counted_through_any_changes() -> None:
    catalog = Catalog()
    for version, owner in enumerate("abcab"):
        catalog.merge([view("v", version=version, owner=owner), view("w", version=version, owner=owner, dropped=version % 2 == 1)])
    living = [entry for entry in catalog.entries() if not entry.dropped]
    assert {owner: count for owner, (count, _) in catalog._shares.items()} == {"b": 2} == {living[0].owner: len(living)}
    catalog.drop("view", "v", owner="a", stamp=9)
    catalog.drop("view", "w", owner="a", stamp=9)
    assert catalog._shares == {}
    assert catalog._bytes == sum(catalog._sizes.values()) > 0


def test_only_the_latest_tombstones_are_kept() -> None:
    catalog = Catalog()
    catalog.merge(view(f"v{i}", version=i, dropped=True) for i in range(TOMBSTONES_MAX + 5))
    assert min(entry.version for entry in catalog.entries()) == 5


def test_a_sink_has_another_query_in_its_next_version() -> None:
    catalog = Catalog()
    catalog.put("sink", "k", sql="CREATE SINK k", owner="a", stamp=10, query="a.old.01")
    renewed = catalog.renew("k", "a.new.01", owner="a")
    assert renewed == catalog.get("k") == Entry("sink", "k", 11, "a", False, "CREATE SINK k", query="a.new.01")
    catalog.merge([view("v")])
    for name in ("v", "nothing"):
        with pytest.raises(QueryError, match=f"there is no sink {name}"):
            catalog.renew(name, "a.new.02", owner="a")


def test_a_plain_query_has_a_tombstone_which_other_copies_take() -> None:
    catalog, other = Catalog(), Catalog()
    entry = catalog.bury("a.1t95lbp.01", owner="b", stamp=10)
    assert entry == catalog.latest("a.1t95lbp.01") == Entry("query", "a.1t95lbp.01", 10, "b", True, "")
    assert other.merge(catalog.entries()) == [entry]
    assert catalog.get("a.1t95lbp.01") is None
    assert catalog.names() == []
    assert catalog.bury("a" * 129, owner="b", stamp=10) is None
    for number in range(2 * TOMBSTONES_MAX):
        catalog.bury(f"a.1t95lbp.{number}", owner="b", stamp=10 + number)
    assert len(catalog.entries()) == TOMBSTONES_MAX


@pytest.mark.parametrize(
    "entry",
    [
        view("sys.x"),
        view(""),
        view("v", version=-1),
        view("v", version=VERSION_MAX + 1),
        view("v", sql="x" * 100_001),
        Entry("table", "v", 1, "a", False, ""),
        Entry("source", "v", 1, "a", False, "without a definition"),
        Entry("query", "a.1t95lbp.01", 1, "a", False, "SELECT 1"),
    ],
)
def test_entries_without_sense_are_counted_and_left_out(entry: Entry) -> None:
    catalog = Catalog()
    assert catalog.merge([entry]) == []
    assert catalog.refused == 1


ENTRIES = st.lists(
    st.builds(
        lambda name, version, owner, dropped, sql: view(name, version=version, owner=owner, dropped=dropped, sql=sql),
        st.sampled_from("vwx"),
        st.integers(0, 4),
        st.sampled_from("ab"),
        st.booleans(),
        st.sampled_from(["one", "two"]),
    ),
    max_size=12,
)


@examples(100)
@given(ENTRIES, st.randoms(use_true_random=False))
def test_copies_agree_whatever_the_order_of_exchange(entries: list[Entry], rng: object) -> None:
    one, other = Catalog(), Catalog()
    one.merge(entries)
    shuffled = list(entries)
    rng.shuffle(shuffled)  # type: ignore[attr-defined]
    for entry in shuffled:
        other.merge([entry])
    assert one.entries() == other.entries()
    assert one.digest() == other.digest()
    assert other.merge(one.entries()) == []


def test_a_source_is_on_the_nodes_that_it_names() -> None:
    def hosts(**choice: object) -> list[str]:
        return SourceDefinition("s", "file", (), (), None, home="b", **choice).hosts(NODES)  # type: ignore[arg-type]

    assert hosts() == ["b"]
    assert hosts(nodes=("c", "a", "gone")) == ["a", "c"]
    assert hosts(labels=(("region", "eu"),)) == ["a", "c"]
    assert hosts(labels=(("region", "eu"), ("region", "us"))) == ["a", "b", "c"]
    assert hosts(labels=(("region", "eu"), ("site", "x"))) == ["c"]
    assert hosts(everywhere=True) == ["a", "b", "c"]


def test_what_is_known_of_a_node() -> None:
    probes = SYSTEM_STREAMS["sys.probes"]
    assert known_columns(probes, "c", NODES["c"]) == {"_node": "c", "_region": "eu", "_site": "x", "node": "c", "region": "eu"}
    assert known_columns(probes, "d", {})["region"] is None
    source = CATALOG.source("s")
    assert source is not None
    assert known_columns(source, "a", NODES["a"]) == {"_node": "a", "_region": "eu"}


def test_hints_name_the_nearest() -> None:
    assert did_you_mean("prbes", ["probes", "load"]) == "did you mean probes?"
    assert did_you_mean("zzz", ["probes", "load"]) == "there is load, probes"
    assert did_you_mean("zzz", [f"name{i}" for i in range(100)]) == ""
