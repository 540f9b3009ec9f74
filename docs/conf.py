"""Settings of Sphinx, which makes the site of `make site` from the pages of this folder and of its parent."""

import re

from sphinx.application import Sphinx

project = "sbon"
extensions = ["myst_parser"]
root_doc = "docs/index"
include_patterns = [
    "README.md",
    "SECURITY.md",
    "CHANGELOG.md",
    "docs/*.md",
    "docs/reference/*.md",
    "tests/example_package/README.md",
]
html_theme = "furo"
html_title = "sbon"
html_use_index = False
html_copy_source = False
html_show_copyright = False
myst_heading_anchors = 6
myst_fence_as_directive: list[str] = []
suppress_warnings = ["misc.highlighting_failure"]
"""Blocks of code that a highlighter does not take (SQL beyond its dialect) are shown without colours."""


def with_contents(_app: Sphinx, page: str, text: list[str]) -> None:
    """Appends the tree of contents to the index, from the index's own list of pages."""
    if page != root_doc:
        return
    listed = re.findall(r"^\d+\. \[([^\]]*)\]\(([^)]+)\.md\)", text[0], re.MULTILINE)
    entries = "\n".join(
        f"{title} <{name}>"
        for title, name in [*listed, ("Functions of your own", "../tests/example_package/README"), ("Changes", "../CHANGELOG")]
    )
    text[0] += f"\n```{{toctree}}\n:hidden:\n\n{entries}\n```\n"


def setup(app: Sphinx) -> None:
    """Registers the hook for the index."""
    app.connect("source-read", with_contents)
