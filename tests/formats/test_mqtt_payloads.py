"""Topics and payloads of the `mqtt` connector, without a broker."""

import json
from collections import Counter
from urllib.parse import unquote

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbon.connectors.mqtt_rows import MessageRows
from sbon.errors import ConnectorError
from sbon.formats.mqtt_payloads import PayloadWriter
from sbon.formats.mqtt_topics import TopicTemplate, level_of, topic_filters
from sbon.misfits import Misfits
from sbon.operators.frames import frame_of_values, polars_schema
from sbon.operators.values import Values
from sbon.options import Options
from sbon.query.params.source import SourceParams
from tests.connector_world import columns
from tests.examples import examples

SCHEMA = columns(site="text", press="int", x="float")


def options(**given: str) -> Options:
    return Options("source s", "mqtt", given.items())


def read(messages: list[tuple[str, bytes]], schema=SCHEMA, **given: str) -> tuple[list[tuple], Misfits]:
    """Returns the rows and misfits of messages that are read together."""
    misfits = Misfits()
    reader = MessageRows("source s", SourceParams("s", "mqtt", (), schema, None), options(**given), misfits)
    for topic, payload in messages:
        before = reader.rows
        reader.take(topic.encode(), payload)
        assert reader.rows - before <= reader.rows_max(payload)
    found = reader.given(0.0)
    frame = frame_of_values(found, schema) if isinstance(found, Values) else found
    assert dict(frame.schema) == dict(polars_schema(schema))
    return frame.rows(), misfits


def rows(payload: bytes, topic: str = "plant/ams/7/temp", schema=SCHEMA, **given: str) -> tuple[list[tuple], Misfits]:
    """Returns the rows and misfits of a payload; checks that 40 copies read together give 40 times as many."""
    alone, misfits = read([(topic, payload)], schema, **given)
    among, of_all = read([(topic, payload)] * 40, schema, **given)
    assert among == alone * 40
    assert [(kind.text, kind.rows) for kind in of_all.told()] == [(kind.text, 40 * kind.rows) for kind in misfits.told()]
    return alone, misfits


@pytest.mark.parametrize(
    "payload",
    [
        b'{"site": "ams", "press": 7, "x": 1.5}',
        b'[{"site": "ams", "press": 7, "x": 1.5}]',
        b' \n[ {"site": "ams",\n"press": 7, "x": 1.5} ]\r\n',
        b'{"site": "ams",\n "press": 7,\n "x": 1.5\n}',
        b'{"site": "ams", "press": 7, "x": 1.5}\n',
    ],
)
def test_one_row_in_each_form_of_json(payload):
    found, misfits = rows(payload)
    assert found == [("ams", 7, 1.5)]
    assert misfits.rows == 0


@pytest.mark.parametrize(
    "payload",
    [b'{"press": 1}\n{"press": 2}\r\n\n{"press": 3}', b'[{"press": 1}, {"press": 2},{"press": 3}]'],
)
def test_many_rows_in_one_message(payload):
    assert [row[1] for row in rows(payload)[0]] == [1, 2, 3]


@pytest.mark.parametrize(
    ("payload", "kept", "told"),
    [
        (b'{"press": 1}\n{"press": \n{"press": 3}', [1, 3], "the line is not JSON"),
        (b'[{"press": 1}, {"press": "x"}, {"press": 3}]', [1, 3], 'column press: "x" is not an integer (BIGINT)'),
        (b'[{"press": 1}, 5]', [1], "the line is not a JSON object"),
        (b'[{"press": 1}', [], "the line is not a JSON object"),
        (b"\xff\xfe", [], "the line is not JSON"),
        (b"7", [], "the line is not a JSON object"),
    ],
)
def test_what_does_not_fit_is_counted_and_the_rest_is_kept(payload, kept, told):
    found, misfits = rows(payload)
    assert [row[1] for row in found] == kept
    [kind] = misfits.told()
    assert kind.text.startswith(told)
    assert kind.rows == 1


def test_a_map_or_an_array_of_maps_in_messagepack():
    one, more = {"site": "ams", "press": 7, "x": 1.5}, {"press": 2**40, "x": None}
    assert rows(msgspec.msgpack.encode(one), format="msgpack")[0] == [("ams", 7, 1.5)]
    assert rows(msgspec.msgpack.encode([one, more]), format="msgpack")[0] == [("ams", 7, 1.5), (None, 2**40, None)]


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\xdd\xff\xff\xff\xff", b"\x91" * 100_000, b"\x81\xa1"])
def test_no_messagepack_is_counted(payload):
    found, misfits = rows(payload, format="msgpack")
    assert found == []
    assert [kind.cause for kind in misfits.told()] == ["is not MessagePack"]


def test_a_text_is_the_one_column_that_the_topic_does_not_fill():
    given = {"format": "text", "topic_columns": "_, site, press"}
    assert rows(b"21.5", **given)[0] == [("ams", 7, 21.5)]
    found, misfits = rows(b"warm", **given)
    assert found == []
    assert misfits.told()[0].text == 'column x: "warm" is not a number (FLOAT)'
    assert rows(b"\xff", **given)[1].told()[0].text == "column x is not UTF-8 (TEXT)"


@pytest.mark.parametrize(
    ("kind", "payload", "found"),
    [
        ("json", b'{"a": [1,\n2.50]}', [('{"a":[1,2.50]}',)]),
        ("json", b"null", [(None,)]),
        ("int[]", b"[1, 2.0, null]", [("[1,2,null]",)]),
        ("int[]", b"[1.5]", []),
        ("text[]", b'["x", 1]', [('["x","1"]',)]),
        ("int[]", b"none", []),
    ],
)
def test_json_and_arrays_of_plain_texts_are_read_as_such(kind: str, payload: bytes, found: list[tuple]):
    assert rows(payload, schema=columns(a=kind), format="text")[0] == found


def test_levels_of_the_topic_fill_columns_and_a_payload_cannot_speak_for_them():
    given = {"topic_columns": "_, site, press"}
    assert rows(b'{"x": 1.5}', **given)[0] == [("ams", 7, 1.5)]
    assert rows(b" {} ", **given)[0] == [("ams", 7, None)]
    assert rows(b'{"site": "forged", "press": 9}', **given)[0] == [("ams", 7, None)]
    assert rows(b'{"x": 1.5}', "plant", **given)[0] == [(None, None, 1.5)]
    assert rows(b'{"x": 1.5}', 'plant/"},{/08', **given)[0] == [('"},{', 8, 1.5)]
    found, misfits = rows(b'{"x": 1.5}', "plant/ams/seven", **given)
    assert found == []
    assert misfits.told()[0].text == 'column press: "seven" is not an integer (BIGINT)'


def test_the_whole_topic_fills_a_column():
    assert rows(b'{"x": 2}', topic_column="site")[0] == [("plant/ams/7/temp", None, 2.0)]


@given(st.one_of(st.binary(max_size=40), st.text('{}[]",:a1 \n\\', max_size=12).map(str.encode)))
def test_members_of_the_topic_make_no_object_of_what_was_none(payload):
    """A payload gives the same number of rows, whether or not the topic adds members."""
    plain, _ = rows(payload, schema=columns(a="text"))
    both, _ = rows(payload, schema=columns(a="text", site="text"), topic_columns="_, site")
    assert [row[:1] for row in both] == plain


PAYLOADS = [
    b'{"press": 1, "x": 0.5}',
    b'{"press": 2}\n\n{"press": "three"}\r\n{"press": 4}',
    b'[{"press": 5}, {"x": true},\n{"press": 6}]',
    b'{"press":\n 7}',
    b"",
    b"no json",
    b"[1",
    b'{"press": 8}{"press": 9}',
]
TOPICS = ["plant/ams/1", "plant/ber/2", "plant", "plant/ams/seven", "plant//-3/x"]


@examples(60)
@given(st.lists(st.tuples(st.sampled_from(TOPICS), st.sampled_from(PAYLOADS)), max_size=12), st.sampled_from([1, 30]))
def test_messages_that_are_read_together_give_the_rows_of_each_by_itself(messages, times):
    schema = columns(press="int", site="text", x="float", number="int")
    given = {"topic_columns": "_, site, number"}
    found, misfits = read(messages * times, schema, **given)
    expected, counts = [], Counter()
    for topic, payload in messages:
        alone, of_one = read([(topic, payload)], schema, **given)
        expected += alone
        counts += Counter({(kind.column, kind.cause): kind.rows * times for kind in of_one.told()})
    assert found == expected * times
    assert {(kind.column, kind.cause): kind.rows for kind in misfits.told()} == counts


def test_a_row_by_hand_for_each_message_in_the_order_of_the_columns():
    schema = columns(press="int", site="text", x="float", number="int")
    many = [(f"plant/s{n % 3}/{n}", b'{"press": %d, "x": 0.5}\n{"press": -1}' % n) for n in range(100)]
    found, misfits = read([*many, ("plant/s/none", b'{"press": 1}\n{"press": 2}')], schema, topic_columns="_, site, number")
    assert found == [row for n in range(100) for row in ((n, f"s{n % 3}", 0.5, n), (-1, f"s{n % 3}", None, n))]
    [kind] = misfits.told()
    assert (kind.column, kind.rows, kind.line) == ("number", 2, "plant/s/none")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"topic_columns": "_, town"}, "topic_columns = 'town', expected columns of the source (site, press, x), or _"),
        ({"topic_columns": "site, site"}, "each column once"),
        ({"topic_columns": "site, press, x"}, "a column that is left for the payload"),
        ({"topic_column": "press"}, "a column of type TEXT (site)"),
        ({"format": "text"}, "fills one column, and the source has site, press, x"),
        ({"format": "xml"}, "expected one of json, msgpack, text"),
    ],
)
def test_options_of_payloads_are_refused_with_what_to_write(given, message):
    with pytest.raises(ConnectorError) as refused:
        read([], **given)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("a/#/b", "'#' stands alone, as the last level"),
        ("a/b#", "'#' stands alone, as the last level"),
        ("a/b+/c", "'+' stands alone in its level"),
        ("a,,b", "this one is empty"),
        ("a\0b", "a character that topics must not have"),
        ("x" * 70_000, "too long"),
        ("$share/g/a", "write shared_group = 'name'"),
        (", ".join(f"t/{number}" for number in range(65)), "at most 64"),
    ],
)
def test_bad_topic_filters_are_refused(given, message):
    with pytest.raises(ConnectorError, match="option topics") as refused:
        topic_filters(options(topics=given))
    assert message in str(refused.value)


def test_good_topic_filters():
    assert topic_filters(options(topics="plant/+/temp, plant/#,#, +/+ ,$SYS/broker/uptime")) == [
        "plant/+/temp",
        "plant/#",
        "#",
        "+/+",
        "$SYS/broker/uptime",
    ]


@given(st.text())
def test_a_value_is_one_part_of_a_level_and_is_found_again(text):
    level = level_of(text)
    assert not set(level) & set("+#/\0")
    assert level != level_of(None)
    assert unquote(level, errors="surrogatepass") == text


def messages(given: dict[str, str], *given_rows: dict) -> list[tuple[str, bytes]]:
    writer = PayloadWriter("sink k", options(**given), SCHEMA)
    return writer.messages([json.dumps(row).encode() for row in given_rows])


def test_rows_become_messages_on_the_topics_of_their_values():
    row = {"site": "a/b", "press": 7, "x": 1.5}
    assert messages({"topic": "alerts/{site}/{press}"}, row) == [("alerts/a%2Fb/7", json.dumps(row).encode())]
    [(topic, payload)] = messages({"topic": "{site}", "format": "msgpack"}, row | {"site": "$SYS"})
    assert (topic, msgspec.msgpack.decode(payload)) == ("%24SYS", row | {"site": "$SYS"})
    assert messages({"topic": "t/{site}/{press}", "format": "text"}, row, row | {"site": None, "x": None}) == [
        ("t/a%2Fb/7", b"1.5"),
        ("t/%NULL/7", b""),
    ]


def test_a_topic_that_would_be_too_long_leaves_its_row_out():
    writer = PayloadWriter("sink k", options(topic="{site}"), SCHEMA)
    lines = [json.dumps({"site": site, "press": 1, "x": 1}).encode() for site in ("a", "ü" * 40_000, "", "b")]
    assert [topic for topic, _ in writer.messages(lines)] == ["a", "b"]
    assert writer.too_long == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("alerts/{town}", "has {town}, expected a column of the query: site, press, x"),
        ("alerts/+/{site}", "a topic without '+' and '#'"),
        ("alerts/#", "a topic without '+' and '#'"),
        ("alerts/{site", "with columns in braces"),
    ],
)
def test_bad_topics_of_sinks_are_refused(text, message):
    with pytest.raises(ConnectorError, match="option topic") as refused:
        TopicTemplate("sink k", options(topic=text), SCHEMA)
    assert message in str(refused.value)
