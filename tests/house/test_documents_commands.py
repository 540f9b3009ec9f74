"""Commands of README and docs/: each is run by a test, or parsed in full by its program and has a reason why it is not run."""

import re
from collections import defaultdict
from pathlib import Path

import pytest

from sbon.config import load, setting_paths
from sbon.errors import ConfigError
from sbon_agent.config import AgentConfig, read_config
from tests.command_lines import WrongCommandError, missing, parse
from tests.documents import LANGUAGES, PAGES, ROOT, Block, Command, Entry, all_blocks, all_commands, commands, table

_LIKE_A_COMMAND = re.compile(r"^ *(?:\w*\$ |sbon [a-z]|make [a-z]|python[\d.]* -)")
_NUMBER = re.compile(r"\b(?:N|SECONDS)\b")
_SPAN = re.compile(r"`((?:sbon|make) [a-z][^`]*|python[\d.]* -m [^`]*)`")
_SETTING = re.compile(r"`(?:([a-z_]+(?:\.[a-z_]+)+)|\[([a-z_]+)\] ([a-z_]+))(?: = ([^`]+))?`")
NO_COMMANDS = {"sbon key id", "sbon datagram", "sbon stream 1"}
"""Texts of docs/protocols.md that keys and nonces are derived from."""
NO_SETTINGS = {
    *("links.sender", "links.receiver", "migration.coordinator", "migration.copy", "migration.newcomer", "migration.neighbour"),
    "load.records_dropped",
}
"""State machines of docs/protocols-design.md, and a column of telemetry."""


def wrong_blocks(found: tuple[Block, ...]) -> list[str]:
    """Returns the blocks whose language is not known, and those in which commands would not be found."""
    wrong = []
    for block in found:
        place = f"{block.page}:{block.line}"
        if block.language not in LANGUAGES:
            wrong.append(f"{place}: ```{block.language}, expected one of {', '.join(sorted(LANGUAGES))}")
        elif block.language not in ("console", "sh") and any(map(_LIKE_A_COMMAND.match, block.text.splitlines())):
            wrong.append(f"{place}: a command in a block of {block.language}, expected sh or console")
        elif block.language in ("console", "sh") and not commands(block):
            wrong.append(f"{place}: no command; in console, commands stand after `$ `")
    return wrong


def wrong_commands(found: tuple[Command, ...], files: set[str]) -> list[str]:
    """Returns the commands that their programs would refuse, or that read a file that is not there.

    `files` has those that readers have from elsewhere.
    """
    wrong, made = [], defaultdict(lambda: set(files))
    for command in found:
        there = made[command.page]
        for words in command.steps():
            if words[0] == "cat" and command.output:  # the page shows the file, and the reader writes it
                there.add(words[1])
            try:
                parsed = parse(words, there)
            except WrongCommandError as problem:
                wrong.append(f"{command.page}:{command.line}: {' '.join(words)}: {problem}")
                continue
            wrong.extend(f"{command.page}:{command.line}: nothing has made {name}" for name in missing(parsed, there))
            there.update(parsed.writes)
    return wrong


def without_entry(found: tuple[Command, ...], entries: tuple[Entry, ...]) -> list[str]:
    """Returns the commands that no entry of the table has, and the entries' commands that no page has."""
    known = [(entry.page, text) for entry in entries for text in entry.commands]
    written = {(command.page, command.text) for command in found}
    lines = {(command.page, command.text): command.line for command in found}
    new = [f"{page}:{lines[page, text]}: {text}: no entry" for page, text in sorted(written - set(known))]
    return [*new, *(f"{page}: {text}: not there" for page, text in known if (page, text) not in written or known.count((page, text)) > 1)]


def test_every_block_has_a_language() -> None:
    assert wrong_blocks(all_blocks()) == []


def test_programs_take_every_command_and_its_files_are_there() -> None:
    assert wrong_commands(all_commands(), set(table()[1])) == []


def test_every_command_is_run_by_a_test_or_has_a_reason() -> None:
    assert without_entry(all_commands(), table()[0]) == []


def test_entries_name_tests_that_ask_for_their_commands_or_give_a_reason() -> None:
    wrong = []
    for entry in table()[0]:
        path, _, name = entry.run_by.partition("::")
        asks = bool(name) and f'commands_run_by("{entry.run_by}")' in (ROOT / path).read_text(encoding="utf-8")
        if bool(entry.run_by) == bool(entry.parsed_because.strip()) or (entry.run_by and not asks):
            wrong.append(entry)
        for other in re.findall(r"tests/[\w/*.]+\.py", entry.parsed_because):
            wrong.extend([] if list(ROOT.glob(other)) else [entry])
    assert wrong == []


def test_files_that_readers_bring_are_read_by_some_command() -> None:
    texts = [command.text for command in all_commands()]
    assert [name for name in table()[1] if not any(name in text for text in texts)] == []


@pytest.mark.parametrize(
    ("page", "problem"),
    [
        ("```sh\nsbon querys\n```\n", "`sbon` has no command 'querys'"),
        ("```sh\nsbon queries --every\n```\n", "No such option: --every"),
        ("```console\nb$ sbon tail q --limit 0\n```\n", "Invalid value for '--limit'"),
        ("```sh\nsbon tail\n```\n", "Missing argument"),
        ("```sh\nsbon agent --bind nowhere\n```\n", "bind"),
        ("```sh\nsbon agent --quick\n```\n", "unrecognized arguments: --quick"),
        ("```sh\nsbon sql other.sql\n```\n", "nothing has made other.sql"),
        ("```sh\nsbon testbed run testbed/scenarios/none.toml\n```\n", "nothing has made testbed/scenarios/none.toml"),
        ("```sh\nmake tests-of-all\n```\n", "No rule to make target"),
        ("```sh\nmake test && sbom status\n```\n", "nobody knows the program 'sbom'"),
        ("```sh\npython -c 'import'\n```\n", "invalid syntax"),
        ("```sh\npython -m sbon_agent.nothing\n```\n", "expected -c CODE"),
    ],
)
def test_wrong_commands_are_found(page: str, problem: str) -> None:
    found = commands(Block("page", 1, *re.findall(r"```(\w+)\n(.*)```", page, re.DOTALL)[0]))

    (said,) = wrong_commands(tuple(found), set())
    assert problem in said


def test_files_of_earlier_commands_are_there() -> None:
    text = "$ cat a.sql\nSELECT 1\n$ sbon sql a.sql\n$ sbon keygen --out k\n$ sbon agent --key-file k --print-config > c\n"
    text += "$ sbon agent --config c\n"

    assert wrong_commands(tuple(commands(Block("page", 1, "console", text))), set()) == []


def test_blocks_without_language_hidden_commands_and_commands_without_entry_are_found() -> None:
    texts = {"": "x\n", "text": "sbon status\n", "console": "x\n", "sh": "make x\n"}
    found = tuple(Block("p", line, language, text) for line, (language, text) in zip((1, 4, 9, 12), texts.items(), strict=True))

    assert [problem.split(": ")[0] for problem in wrong_blocks(found)] == ["p:1", "p:4", "p:9"]
    entries = (Entry("p", ("sbon status",), parsed_because="a reason"),)
    assert without_entry(tuple(commands(found[3])), entries) == ["p:13: make x: no entry", "p: sbon status: not there"]


def test_many_commands_are_found() -> None:
    assert len(all_commands()) > 200
    assert sum(len(entry.commands) for entry in table()[0] if entry.run_by) > 50


def sentences(page: Path) -> str:
    """Returns a page without its blocks, on one line."""
    return re.sub(r"\s*\n\s*", " ", re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL))


def wrong_settings(text: str) -> list[str]:
    """Returns the settings that sentences name though no agent has them, or with values that an agent refuses."""
    known, wrong = set(setting_paths(AgentConfig)), []
    sections = {path.partition(".")[0] for path in known if "." in path}
    for dotted, section, setting, value in _SETTING.findall(text):
        name = dotted or f"{section}.{setting}"
        if name.partition(".")[0] not in sections or name.endswith(".py") or name in NO_SETTINGS:
            continue
        try:
            load(AgentConfig, f"{name} = {value}" if value else "", "sentence")
        except ConfigError as problem:
            wrong.append(str(problem))
        wrong.extend([] if name in known else [f"{name} is not a setting"])
    return wrong


@pytest.mark.parametrize("page", [page for page in PAGES if "reference" not in page.parts], ids=lambda page: page.name)
def test_settings_within_sentences_exist_and_take_their_values(page: Path) -> None:
    assert wrong_settings(sentences(page)) == []


def test_wrong_settings_within_sentences_are_found() -> None:
    text = "`links.spill` `[links] spill_bytes = 0` `optimiser.multicast = 'no'` `engine.workers = 2` `links.sender` `telemetry.mqtt`"

    assert [problem.partition(":")[0] for problem in wrong_settings(text)] == ["links.spill is not a setting", "sentence"]


@pytest.mark.parametrize("page", [page for page in PAGES if "reference" not in page.parts], ids=lambda page: page.name)
def test_commands_within_sentences_exist_with_their_options(page: Path) -> None:
    """Their arguments may be left out; N and SECONDS stand for numbers."""
    wrong = []
    for text in _SPAN.findall(sentences(page)):
        for words in Command(page.name, 0, _NUMBER.sub("2", re.sub(r"[\[\]]|\.\.\.", "", text))).steps():
            try:
                parse(words, {"flink"})
            except WrongCommandError as problem:
                if text not in NO_COMMANDS and not re.search(r"Missing|requires an argument|no command ''", str(problem)):
                    wrong.append(f"{text}: {problem}")
    assert wrong == []


SETTINGS = [block for block in all_blocks() if block.language == "toml"]


@pytest.mark.parametrize("block", SETTINGS, ids=lambda block: f"{block.page}:{block.line}")
def test_an_agent_takes_the_settings_of_a_page(block: Block, tmp_path: Path) -> None:
    (tmp_path / "agent.toml").write_text(block.text)

    assert read_config(str(tmp_path / "agent.toml"), {}) != read_config(None, {})


def test_wrong_settings_are_found(tmp_path: Path) -> None:
    (tmp_path / "agent.toml").write_text("[links]\nspill = 1\n")

    assert len(SETTINGS) >= 4
    with pytest.raises(ConfigError, match=r"links\.spill is not a setting"):
        read_config(str(tmp_path / "agent.toml"), {})
