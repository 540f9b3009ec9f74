"""Documents: targets of relative links and anchors exist, the README stays short, and the index lists all pages."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
DOCUMENTS = [*(ROOT / name for name in ("README.md", "SECURITY.md")), *PAGES]
README_LINES_MAX = 250

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} +(.*?) *$", re.MULTILINE)


def prose(path: Path) -> str:
    """Returns the text without fenced blocks, in which `#` begins a comment and brackets are code."""
    return re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def anchors(path: Path) -> set[str]:
    """Returns the anchors of the headings of a document, as GitHub makes them."""
    found: set[str] = set()
    for heading in _HEADING.findall(prose(path)):
        slug = re.sub(r"[^\w\- ]", "", re.sub(r"\]\([^)]*\)", "", heading).lower()).replace(" ", "-")
        number = 0
        while (anchor := f"{slug}-{number}" if number else slug) in found:
            number += 1
        found.add(anchor)
    return found


def broken(path: Path) -> list[str]:
    """Returns the relative links of a document whose file or anchor does not exist."""
    found = []
    for link in _LINK.findall(re.sub(r"`[^`]*`", "", prose(path))):
        file, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", file):
            continue
        target = (path.parent / file).resolve() if file else path
        if not target.exists() or (anchor and anchor not in anchors(target)):
            found.append(link)
    return found


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_relative_links_lead_to_files_and_headings(path: Path) -> None:
    assert broken(path) == []


def test_broken_links_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# One `thing`\n\n## Twice\n\n## Twice\n\n[a](#one-thing) [b](#twice-1) [c](#twice-2) [d](none.md) [e](https://none.example/)\n"
    )

    assert broken(page) == ["#twice-2", "none.md"]


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= README_LINES_MAX


def test_index_lists_every_page_once() -> None:
    listed = re.findall(r"^\d+\. \[[^\]]*\]\(([^)]+)\)", (ROOT / "docs" / "index.md").read_text(encoding="utf-8"), re.MULTILINE)

    pages = {str(path.relative_to(ROOT / "docs")) for path in PAGES} - {"index.md"}
    assert sorted(name for name in listed if not name.startswith("../")) == sorted(pages)
