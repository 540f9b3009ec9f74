"""Configuration: files, flags, and messages that name the setting, its line and the expected value."""

import tomllib
from typing import Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbon.addresses import format_address, parse_address
from sbon.config import field_docstrings, load, sample, setting_paths, toml_value
from sbon.errors import ConfigError
from sbon.execution.settings import EngineConfig
from sbon_agent.config import AgentConfig, is_loopback, read_config


class Inner(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Inside. TOML table [inner]."""

    interval_s: float = 1.0
    """Longer: rarer."""
    mode: Literal["fast", "slow"] = "fast"
    """How."""
    limit: int | None = None
    """None: no limit."""

    def __post_init__(self) -> None:
        if self.interval_s <= 0:
            raise ValueError(f"interval_s = {self.interval_s}, expected above 0")


class Outer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Outside."""

    name: str = ""
    """Who.

    And nobody else.
    """
    join: tuple[str, ...] = ()
    """Whom."""
    labels: dict[str, str] = {}
    """Where."""
    inner: Inner = Inner()


def message_of(text: str, *overrides: dict[str, object]) -> str:
    with pytest.raises(ConfigError) as caught:
        load(Outer, text, "a.toml", *overrides)
    return str(caught.value)


def test_empty_text_gives_the_defaults():
    assert load(Outer, "", "a.toml") == Outer()


def test_file_and_flags_are_laid_over_the_defaults_setting_by_setting():
    text = 'name = "a"\njoin = ["x:1"]\nlabels = { site = "s1", rack = "r1" }\n[inner]\ninterval_s = 3\nmode = "slow"\n'

    assert load(Outer, text, "a.toml", {"inner": {"interval_s": 4}, "labels": {"rack": "r2"}}) == Outer(
        name="a", join=("x:1",), labels={"site": "s1", "rack": "r2"}, inner=Inner(interval_s=4.0, mode="slow")
    )


def test_unknown_setting_is_refused_with_its_line_and_the_nearest_name():
    assert message_of('name = "a"\n\n[inner]\ninterval = 2\n') == (
        "a.toml:4: inner.interval is not a setting; did you mean inner.interval_s?"
    )


def test_setting_in_the_wrong_section_is_found_where_it_belongs():
    assert message_of("interval_s = 2\n") == "a.toml:1: interval_s is not a setting; did you mean inner.interval_s?"


def test_unknown_section_is_refused_at_its_header():
    assert message_of("[iner]\nmode = 'fast'\n") == "a.toml:1: iner is not a setting; did you mean inner?"


def test_wrong_type_is_refused_with_its_line():
    assert message_of("[inner]\n# a comment\ninterval_s = 'soon'\n") == "a.toml:3: inner.interval_s: Expected `float`, got `str`"


def test_value_out_of_range_is_refused_with_its_line_and_what_was_expected():
    assert message_of("[inner]\n\ninterval_s = 0\n") == "a.toml:3: inner.interval_s = 0.0, expected above 0"


def test_value_not_among_the_choices_is_refused_with_the_choices():
    assert message_of("[inner]\nmode = 'medium'\n") == ("a.toml:2: inner.mode: Invalid enum value 'medium', expected one of 'fast', 'slow'")


def test_element_of_a_list_is_refused_at_the_line_of_the_list():
    assert message_of("\njoin = [3]\n") == "a.toml:2: join[0]: Expected `str`, got `int`"


def test_wrong_flag_is_blamed_on_the_command_line_and_not_on_the_file():
    assert message_of("[inner]\ninterval_s = 2\n", {"inner": {"interval_s": 0}}).startswith("command line: inner.interval_s = 0.0")


def test_text_that_is_not_toml_is_refused_with_the_parser_s_place():
    assert message_of("name = \n").startswith("a.toml: not TOML: Invalid value (at line 1")


def test_field_docstrings_come_from_the_source_of_the_class():
    assert field_docstrings(Outer) == {"name": "Who.\n\nAnd nobody else.", "join": "Whom.", "labels": "Where."}


def test_sample_documents_every_setting_and_loads_back_as_it_was():
    config = Outer(name='quo"te\n', join=("a:1", "b:2"), labels={"a b": "ä"}, inner=Inner(interval_s=0.5))

    text = sample(config)

    assert load(Outer, text, "sample") == config
    assert "# And nobody else." in text
    assert "# None: no limit.\n# limit =" in text


PLAIN = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text()


@given(st.dictionaries(st.text(), PLAIN | st.lists(PLAIN, max_size=3), max_size=4))
def test_plain_values_are_written_as_toml_reads_them(values):
    assert tomllib.loads(f"values = {toml_value(values)}") == {"values": values}


def test_setting_paths_name_sections_and_what_is_in_them():
    assert setting_paths(Outer) == ["name", "join", "labels", "inner", "inner.interval_s", "inner.mode", "inner.limit"]


def test_value_without_a_form_in_toml_is_refused():
    with pytest.raises(ConfigError, match="has no form in TOML"):
        toml_value(object())


@pytest.mark.parametrize(
    ("text", "address"),
    [("10.0.0.5:7946", ("10.0.0.5", 7946)), ("[::1]:0", ("::1", 0)), ("host.example:65535", ("host.example", 65535))],
)
def test_addresses_are_read_and_written_alike(text, address):
    assert parse_address(text) == address
    assert format_address(address) == text


@pytest.mark.parametrize("text", ["", "host", ":7946", "host:", "host:65536", "host:-1", "::1:7946", "host:7 ", "host:٣"])
def test_what_is_no_address_is_refused(text):
    with pytest.raises(ConfigError, match="expected HOST:PORT"):
        parse_address(text)


@pytest.mark.parametrize(
    ("host", "expected"), [("127.0.0.1", True), ("localhost", True), ("::1", True), ("0.0.0.0", False), ("127.evil.org", False)]
)
def test_loopback_is_told_from_the_rest(host, expected):
    assert is_loopback(host) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('name = "a b"', "agent.toml:1: name = 'a b', expected at most 64"),
        ('bind = "7946"', "agent.toml:1: bind: '7946' is not an address"),
        ('join = ["seed"]', "agent.toml:1: join: 'seed' is not an address"),
        ("leave_timeout_s = -1", "agent.toml:1: leave_timeout_s = -1.0, expected 0 to 300"),
        ('labels = { "a b" = "x" }', "agent.toml:1: labels has the key 'a b'"),
    ],
)
def test_agent_settings_out_of_range_are_refused(text, expected):
    with pytest.raises(ConfigError) as caught:
        load(AgentConfig, text, "agent.toml")
    assert str(caught.value).startswith(expected)


def test_missing_file_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"cannot read the configuration file /nowhere/agent.toml: No such file"):
        read_config("/nowhere/agent.toml", {})


def test_keepers_take_nothing_over_that_they_could_not_make_again():
    assert EngineConfig().inherits
    assert not EngineConfig(heal=False).inherits
    assert not EngineConfig(take_over=False).inherits
    assert EngineConfig(take_over=True).inherits
    with pytest.raises(ConfigError) as caught:
        load(AgentConfig, "[engine]\nheal = false\ntake_over = true\n", "agent.toml")
    assert str(caught.value).startswith("agent.toml:3: engine.take_over = true, expected heal = true with it")
