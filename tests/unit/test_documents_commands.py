"""Commands that the pages show exist, with all their options. Those of README and tutorial also run (`tests/e2e/test_tour.py`)."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md"))]
_FENCE = re.compile(r"^```[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^\s*(?:\$ )?(?:\w+=\S+ |sudo |chrt -r 1 )*(sbon [^|>#:\n]*)", re.MULTILINE)
_HEADING = re.compile(r"^#+ `?(sbon[^`\n]*)`?$", re.MULTILINE)


def words_of(line: str) -> tuple[str, ...]:
    """Returns the names of the command and of its groups, without arguments and options.

    Examples
    --------
    >>> words_of("sbon collect --mqtt URL"), words_of("sbon testbed run x.toml"), words_of("sbon tail [QUERY]")
    (('sbon', 'collect'), ('sbon', 'testbed', 'run'), ('sbon', 'tail'))
    """
    words = line.split()
    end = next((place for place, word in enumerate(words) if not re.fullmatch(r"[a-z][a-z0-9-]*", word)), len(words))
    return tuple(words[:end])


def reference() -> dict[tuple[str, ...], set[str]]:
    """Returns the options of each command, from the page that is generated from the code."""
    text = (ROOT / "docs" / "reference" / "commands.md").read_text(encoding="utf-8")
    _, *parts = _HEADING.split(text)
    return {
        words_of(title): set(re.findall(r"(?<![\w-])-{1,2}[a-z][\w-]*", body)) for title, body in zip(parts[::2], parts[1::2], strict=True)
    }


OPTIONS = reference()


def commands(page: Path) -> list[str]:
    found = [line for block in _FENCE.findall(page.read_text(encoding="utf-8")) for line in _COMMAND.findall(block)]
    return [line.strip() for line in found]


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=lambda page: page.name)
def test_commands_of_a_page_exist_with_their_options(page: Path) -> None:
    wrong = []
    for line in commands(page):
        words = words_of(line)
        command = next((words[:size] for size in range(len(words), 1, -1) if words[:size] in OPTIONS), None)
        known = OPTIONS.get(command, set()) | {"-h", "--help"} if command else set()
        if command is None or set(re.findall(r"(?<![\w-])-{1,2}[a-z][\w-]*", line)) - known:
            wrong.append(line)
    assert wrong == []


def test_many_commands_are_found() -> None:
    assert len(OPTIONS) > 50
    assert sum(len(commands(page)) for page in PAGES) > 80
