"""Code blocks of README and docs/, the commands in them, and the table that says for each command which test runs it, or why none does."""

import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = (ROOT / "README.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md")))
TABLE = ROOT / "tests" / "commands_of_pages.toml"
LANGUAGES = {"console", "js", "mermaid", "python", "sh", "sql", "text", "toml"}
"""`console`: commands after a prompt, with what they print; `sh`: commands alone; `text`: neither commands nor code."""

_BLOCK = re.compile(r"^( *)```([^\n]*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_PROMPT = re.compile(r"^\w*\$ ")
_COMMENT = re.compile(r"\s+# .*$")
_BETWEEN = {"|", "&&", ";"}
_BEFORE = re.compile(r"\w+=.*|sudo")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page. `line` is that of the opening fence, counted from 1."""

    page: str
    line: int
    language: str
    text: str


@dataclass(frozen=True)
class Command:
    """A line of a shell: without prompt and comment, and with what the page says that it prints."""

    page: str
    line: int
    text: str
    output: str = ""

    def steps(self) -> list[list[str]]:
        """Returns the words of each program that the line runs.

        Examples
        --------
        >>> Command("page", 1, "sudo sbon names --kind view > names.txt && A=1 head names.txt").steps()
        [['sbon', 'names', '--kind', 'view', '>', 'names.txt'], ['head', 'names.txt']]
        """
        words = shlex.shlex(self.text, posix=True, punctuation_chars="|&;<>")
        words.whitespace_split = True
        words.commenters = ""
        steps: list[list[str]] = [[]]
        for word in words:
            if word in _BETWEEN:
                steps.append([])
            elif steps[-1] or not _BEFORE.fullmatch(word):
                steps[-1].append(word)
        return [words[3:] if words[:2] == ["chrt", "-r"] else words for words in steps]


def blocks(page: Path, text: str | None = None) -> Iterator[Block]:
    """Yields the fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8") if text is None else text
    name = str(page.relative_to(ROOT)) if page.is_relative_to(ROOT) else page.name
    for found in _BLOCK.finditer(text):
        body = re.sub(rf"^{found[1]}", "", found[3], flags=re.MULTILINE) if found[1] else found[3]
        yield Block(name, text.count("\n", 0, found.start()) + 1, found[2], body)


def commands(block: Block) -> list[Command]:
    """Returns the commands of a block: those after prompts of `console`, all lines of `sh`, and those of no other language.

    Examples
    --------
    >>> [(one.line, one.text, one.output) for one in commands(Block("page", 7, "console", "$ sbon names  # all\\nview v\\na$ make x\\n"))]
    [(8, 'sbon names', 'view v\\n'), (10, 'make x', '')]
    """
    found: list[tuple[int, str, list[str]]] = []
    for number, line in enumerate(block.text.splitlines(), block.line + 1):
        if block.language == "sh" or (block.language == "console" and _PROMPT.match(line)):
            if (text := _COMMENT.sub("", _PROMPT.sub("", f" {line}" if block.language == "sh" else line)).strip()) and text[0] != "#":
                found.append((number, text, []))
        elif block.language == "console" and found:
            found[-1][2].append(f"{line}\n")
    return [Command(block.page, number, text, "".join(lines)) for number, text, lines in found]


@cache
def all_blocks() -> tuple[Block, ...]:
    """Returns the blocks of all pages."""
    return tuple(block for page in PAGES for block in blocks(page))


@cache
def all_commands() -> tuple[Command, ...]:
    """Returns the commands of all pages."""
    return tuple(command for block in all_blocks() for command in commands(block))


@dataclass(frozen=True)
class Entry:
    """An entry of the table for some commands of a page: the test that runs them (`path::function`), or why they are only parsed."""

    page: str
    commands: tuple[str, ...]
    run_by: str = ""
    parsed_because: str = ""


@cache
def table() -> tuple[tuple[Entry, ...], dict[str, str]]:
    """Returns the entries, and the files that commands read though no page makes them, with where the reader has them from."""
    read = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    return tuple(Entry(**{**one, "commands": tuple(one["commands"])}) for one in read["entry"]), read["files"]


def commands_run_by(test: str) -> list[Command]:
    """Returns the commands that a test has to run, in the order of the pages."""
    wanted = {(entry.page, text) for entry in table()[0] if entry.run_by == test for text in entry.commands}
    found = [command for command in all_commands() if (command.page, command.text) in wanted]
    assert found, f"no command is run by {test}"
    return found
