"""Renders the report as one self-contained HTML file, with styles and plots inside."""

import base64
from collections.abc import Sequence
from html import escape
from typing import NamedTuple


class Plot(NamedTuple):
    """A plot with a caption and notes on unusual values."""

    title: str
    svg: str
    text: str


class Table(NamedTuple):
    """A table for people."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    text: str = ""


class Section(NamedTuple):
    """One topic of the report."""

    title: str
    text: str
    parts: Sequence[Plot | Table]


class Headline(NamedTuple):
    """One number in a box at the top."""

    value: str
    text: str


STYLE = """
:root { --ink: #1b2733; --soft: #5b6b7b; --line: #dde3e9; --back: #f6f8fa; --accent: #1f5fa8; }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; color: var(--ink);
  background: var(--back); margin: 0; }
main { max-width: 1040px; margin: 0 auto; padding: 32px 24px 64px; }
h1 { font-size: 28px; margin: 0 0 4px; }
h2 { font-size: 21px; margin: 44px 0 6px; padding-top: 14px; border-top: 2px solid var(--line); }
h3 { font-size: 15px; margin: 0 0 6px; }
p { margin: 0 0 10px; max-width: 80ch; }
.soft { color: var(--soft); }
nav a { color: var(--accent); text-decoration: none; margin-right: 16px; }
.boxes { display: grid; grid-template-columns: repeat(auto-fill, minmax(185px, 1fr)); gap: 12px; margin: 20px 0; }
.box { background: #fff; border: 1px solid var(--line); border-radius: 8px; padding: 12px 14px; }
.box b { display: block; font-size: 22px; font-weight: 600; }
.box span { color: var(--soft); font-size: 13px; line-height: 1.35; display: block; }
.card { background: #fff; border: 1px solid var(--line); border-radius: 8px; padding: 16px 18px; margin: 16px 0; overflow-x: auto; }
.card img { width: 100%; height: auto; display: block; }
.card p { margin: 8px 0 0; font-size: 14px; max-width: 110ch; }
.card p.above { margin: 0 0 8px; }
table { border-collapse: collapse; width: 100%; font-size: 13px; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 600; color: var(--soft); border-bottom: 1px solid var(--line);
  padding: 4px 10px 4px 0; vertical-align: bottom; }
td { border-bottom: 1px solid #eef1f4; padding: 4px 10px 4px 0; vertical-align: top; overflow-wrap: anywhere; }
th.number, td.number { text-align: right; white-space: nowrap; }
@media print { body { background: #fff; } .card, .box { break-inside: avoid; } }
"""


def page(title: str, lead: str, headlines: Sequence[Headline], sections: Sequence[Section]) -> str:
    """Renders the whole document."""
    links = "".join(f'<a href="#s{number}">{escape(section.title)}</a>' for number, section in enumerate(sections))
    boxes = "".join(f'<div class="box"><b>{escape(one.value)}</b><span>{escape(one.text)}</span></div>' for one in headlines)
    body = "\n".join(_section(number, section) for number, section in enumerate(sections))
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{escape(title)}</title>\n<style>{STYLE}</style>\n'
        f"</head>\n<body>\n<main>\n<h1>{escape(title)}</h1>\n{_paragraphs(lead, 'soft')}\n<nav>{links}</nav>\n"
        f'<div class="boxes">{boxes}</div>\n{body}\n</main>\n</body>\n</html>\n'
    )


def _section(number: int, section: Section) -> str:
    parts = "\n".join(_plot(part) if isinstance(part, Plot) else _table(part) for part in section.parts)
    return f'<section id="s{number}">\n<h2>{escape(section.title)}</h2>\n{_paragraphs(section.text)}\n{parts}\n</section>'


def _plot(plot: Plot) -> str:
    # Each plot is an image of its own, so that ids of different drawings do not collide.
    data = base64.b64encode(plot.svg.encode()).decode()
    image = f'<img alt="{escape(plot.title)}" src="data:image/svg+xml;base64,{data}">'
    return f'<div class="card">\n<h3>{escape(plot.title)}</h3>\n{image}\n{_paragraphs(plot.text)}\n</div>'


def _table(table: Table) -> str:
    numeric = [bool(table.rows) and all(_is_number(row[column]) for row in table.rows) for column in range(len(table.columns))]
    kind = ['class="number"' if number else "" for number in numeric]
    head = "".join(f"<th {kind[i]}>{escape(name)}</th>" for i, name in enumerate(table.columns))
    rows = "\n".join("<tr>" + "".join(f"<td {kind[i]}>{escape(cell)}</td>" for i, cell in enumerate(row)) + "</tr>" for row in table.rows)
    body = f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table>" if table.rows else "<p>None.</p>"
    return f'<div class="card">\n<h3>{escape(table.title)}</h3>\n{_paragraphs(table.text, "above")}\n{body}\n</div>'


def _is_number(cell: str) -> bool:
    """Tells whether a cell is a figure, possibly with a unit, or a dash for none."""
    return cell in ("", "-") or (cell.lstrip("+-")[:1].isdigit() and not cell[:4].isdigit()) or cell.replace(".", "", 1).isdigit()


def _paragraphs(text: str, style: str = "") -> str:
    kind = f' class="{style}"' if style else ""
    return "\n".join(f"<p{kind}>{escape(part)}</p>" for part in text.split("\n") if part)
