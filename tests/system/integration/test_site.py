"""The site that `make site` builds from the pages."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
pytest.importorskip("sphinx", reason="needs sphinx: pip install 'sbon[site]'")


def made(folder: Path, builder: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Builds the site; the builder `dummy` reads all pages and resolves their links as `html` does, but writes nothing."""
    return subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", "docs", "-b", builder, *options, ".", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_every_page_is_read_and_every_link_leads_to_one(tmp_path: Path) -> None:
    run = made(tmp_path, "dummy")

    assert (run.returncode, run.stderr) == (0, "")
    read = {path.relative_to(tmp_path / ".doctrees").with_suffix(".md") for path in tmp_path.rglob("*.doctree")}
    assert {path.relative_to(ROOT) for path in (ROOT / "docs").rglob("*.md")} <= read


@pytest.mark.soak
def test_the_site_has_every_page(tmp_path: Path) -> None:
    run = made(tmp_path, "html")

    assert (run.returncode, run.stderr) == (0, "")
    pages = {path.relative_to(tmp_path).with_suffix(".md") for path in tmp_path.rglob("*.html")}
    assert {path.relative_to(ROOT) for path in (ROOT / "docs").rglob("*.md")} <= pages
    contents = (tmp_path / "docs" / "index.html").read_text(encoding="utf-8")
    assert re.search(r'class="toctree-l1"><a[^>]*href="tutorial.html">Tutorial</a>', contents)


@pytest.mark.soak
def test_a_page_that_the_index_does_not_list_is_an_error(tmp_path: Path) -> None:
    run = made(tmp_path, "dummy", "-D", "include_patterns=README.md,docs/index.md,docs/tutorial.md,docs/glossary.md")

    assert run.returncode == 1
    assert "nonexisting document" in run.stderr
