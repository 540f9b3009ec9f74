"""The catalogue of one agent, and several copies that exchange entries."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbon.errors import QueryError, RemoteProtocolError
from sbon.query.catalog import ENTRIES_MAX, TOMBSTONES_MAX, VERSION_MAX, Catalog, Entry, decode_entries, did_you_mean, encode_entries
from sbon.query.system import SYSTEM_STREAMS, SourceDefinition, known_columns
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
    catalog.merge(view(f"v{i}") for i in range(ENTRIES_MAX + 10))
    assert (len(catalog.entries()), catalog.refused) == (ENTRIES_MAX, 10)
    with pytest.raises(QueryError, match="the catalogue is full"):
        catalog.put("view", "another", sql="one", owner="a", stamp=1)


def test_only_the_latest_tombstones_are_kept() -> None:
    catalog = Catalog()
    catalog.merge(view(f"v{i}", version=i, dropped=True) for i in range(TOMBSTONES_MAX + 5))
    assert min(entry.version for entry in catalog.entries()) == 5


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


@settings(max_examples=100, deadline=None)
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


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=80))
def test_bytes_of_a_peer_decode_or_are_refused(data: bytes) -> None:
    try:
        Catalog().merge(decode_entries(data))
    except RemoteProtocolError:
        return


def test_entries_travel() -> None:
    assert decode_entries(encode_entries(CATALOG.entries())) == CATALOG.entries()


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
