"""Text from others is made printable for terminals and logs."""

import json

import pytest
import structlog

from sbon.printable import printable, printable_json
from sbon_agent import logs
from sbon_agent.logs import LogConfig

NASTY = "\x1b[2J\x9b31m\u202e\r\n\x7f\u2028\x00"


def test_what_is_not_printed_as_itself_is_escaped():
    assert printable("Zürich 東京 🚲 a\\b") == "Zürich 東京 🚲 a\\b"
    assert printable(NASTY) == r"\x1b[2J\x9b31m\u202e\r\n\x7f\u2028\x00"
    assert printable("a\nb\x1b", keep="\n") == "a\nb\\x1b"
    assert printable("\udc80") == r"\udc80"


@pytest.mark.parametrize("value", [NASTY, "\U000e0001\udc80", {"a\x9b": [NASTY, 1.5, None]}, "plain"])
def test_a_json_document_keeps_its_meaning(value: object):
    document = printable_json(json.dumps(value, ensure_ascii=False, indent=2))
    assert {character for character in document if not character.isprintable()} <= {"\n"}
    assert json.loads(document) == value


@pytest.mark.parametrize("form", ["console", "json"])
def test_logs_are_printable(form: str, capsys: pytest.CaptureFixture[str]):
    logs.set_up(LogConfig(format=form), node="n\x1b[2J")  # type: ignore[arg-type]
    try:
        log = structlog.get_logger()
        log.warning(f"peer.{NASTY}", peer=NASTY, labels={"region": NASTY}, names=[NASTY])
        try:
            raise ValueError(NASTY)
        except ValueError:
            log.exception("callback.failed")
        said = capsys.readouterr().err
    finally:
        structlog.reset_defaults()
        structlog.contextvars.clear_contextvars()
    assert "callback.failed" in said
    assert {character for character in said if not character.isprintable()} == {"\n"}
