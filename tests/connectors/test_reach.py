"""Folders and addresses that sources and sinks of other agents may use, and whose statement a source or sink comes from."""

import msgspec
import pytest

from sbon.errors import ConfigError
from sbon.query.params.source import Reads, SinkParams, SourceParams
from sbon.reach import ConnectorsConfig, FileConfig, Reach, TcpConfig, is_within, parse_range
from sbon.schema import ColumnType, Field
from sbon.supervision.resumption import given_sink
from sbon_agent.connectors.reaches import DECLARED_MAX, Reaches

SOURCE = SourceParams("s", "file", (("path", "/data/x.csv"),), (Field("a", ColumnType.INT),), None)
SINK = SinkParams("k", "file", (("path", "/data/x.csv"),))


def reach(*allow: str) -> Reach:
    return Reach("n1", "/", (), tuple(map(parse_range, allow)))


@pytest.mark.parametrize(
    ("path", "folders", "within"),
    [
        ("/data/in/a.csv", ["/data/in"], True),
        ("/data/in", ["/data/in"], True),
        ("/data/inside.csv", ["/data/in"], False),
        ("/data/in/../b.csv", ["/data/in"], False),
        ("/data", ["/data/in"], False),
        ("/b/a.csv", ["/data", "/b"], True),
        ("/data/a.csv", [], False),
    ],
)
def test_a_path_is_within_a_folder_or_not(path: str, folders: list[str], within: bool):
    assert is_within(path, folders) is within


def test_loopback_alone_is_allowed_unless_the_settings_say_more():
    others = Reaches(ConnectorsConfig(), "/var/lib/sbon", "n1").of(SINK)
    allowed = ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"]
    refused = ["0.0.0.0", "::", "10.0.0.1", "::ffff:10.0.0.1", "fe80::1%eth0", "128.0.0.1", "localhost", ""]
    assert [address for address in allowed + refused if others.allows_address(address, 80)] == allowed


def test_addresses_may_have_ports_behind_them():
    assert reach("10.0.0.0/8:9000").allows_address("10.1.2.3", 9000)
    assert not reach("10.0.0.0/8:9000").allows_address("10.1.2.3", 9001)
    assert reach("[2001:db8::]/32:9000-9999").allows_address("2001:db8::7", 9999)
    assert not reach("[2001:db8::]/32:9000-9999").allows_address("2001:db8::7", 10_000)
    assert reach("0.0.0.0").allows_address("0.0.0.0", 1)
    assert not reach("0.0.0.0").allows_address("192.0.2.1", 1)
    assert not reach().allows_address("127.0.0.1", 1)


@pytest.mark.parametrize("entry", ["broker.example", "10.0.0.0/33", "10.0.0.0/8:0-70000", "127.0.0.1:9-8", "[::1", "", "10.0.0.1/8"])
def test_what_is_no_address_is_refused_when_the_settings_are_read(entry: str):
    with pytest.raises(msgspec.ValidationError, match="expected an address or network"):
        msgspec.convert({"tcp": {"allow": [entry]}}, ConnectorsConfig)
    with pytest.raises(ValueError, match="expected the path of a folder"):
        FileConfig(allow=("",))


def test_a_sink_is_ours_if_its_query_was_given_here_and_a_source_if_it_was_defined_here():
    reaches = Reaches(ConnectorsConfig(), "/var/lib/sbon", "n1")
    others = reaches.of(SINK, "n1.0000001.01")
    reaches.given(given_sink("n1.0000001.01", SINK))
    again = msgspec.structs.replace(SINK, options=(*SINK.options, ("mode", "resume")))
    assert reaches.of(again, "n1.0000001.01") == reaches.own == Reach("n1", "/var/lib/sbon"), "the present owner does not matter"
    assert reaches.of(SINK, "n1.0000001.02") == others, "that query was not given here"
    assert reaches.of(msgspec.structs.replace(SINK, options=(("path", "/etc/passwd"),)), "n1.0000001.01") == others
    reaches.ended("n1.0000001.01")
    assert reaches.of(SINK, "n1.0000001.01") == others
    assert (others.base, others.folders) == ("/var/lib/sbon/files", ("/var/lib/sbon/files",))

    assert reaches.of(SOURCE) == others, "another agent may have defined it"
    reaches.declared(SOURCE)
    assert reaches.of(SOURCE) == reaches.own, "this agent's statement lets others read it"
    table = msgspec.structs.replace(SOURCE, is_table=True)
    assert reaches.of(table) == reaches.own, "read as a lookup table, it is the same definition"
    part = msgspec.structs.replace(SOURCE, reads=Reads(("n",)))
    assert reaches.of(part) == reaches.own, "so are the columns that one query needs"
    elsewhere = msgspec.structs.replace(SOURCE, options=(("path", "/etc/shadow"),))
    assert reaches.of(elsewhere) == others, "another agent has replaced it in the catalogue"
    reaches.dropped("s")
    assert reaches.of(SOURCE) == others


def test_what_is_remembered_of_sources_is_bounded():
    reaches = Reaches(ConnectorsConfig(), "/d", "n1")
    for number in range(DECLARED_MAX + 1):
        reaches.declared(msgspec.structs.replace(SOURCE, name=f"s{number}"))
    assert reaches.of(msgspec.structs.replace(SOURCE, name="s0")) != reaches.own
    assert reaches.of(msgspec.structs.replace(SOURCE, name="s1")) == reaches.own


def test_folders_start_in_the_data_directory_or_at_home(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", "/home/ams")
    config = ConnectorsConfig(file=FileConfig(allow=("in", "/srv/data", "~/out")), tcp=TcpConfig(allow=()))
    others = Reaches(config, "/d", "n1").of(SINK)
    assert (others.base, others.folders, others.addresses) == ("/d/files", ("/d/in", "/srv/data", "/home/ams/out"), ())
    with pytest.raises(ConfigError, match=r"connectors\.file\.allow: .*home"):
        Reaches(ConnectorsConfig(file=FileConfig(allow=("~nobody-of-this-name/x",))), "/d", "n1")
