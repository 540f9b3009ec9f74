"""Makes the page of the connectors from the docstrings of their modules, which list their options as `name : meaning`."""

import importlib
import inspect
import re
from collections.abc import Iterator

from sbon.query.system import SYSTEM_STREAMS
from sbon.schema import TYPE_NAMES
from sbon_testbed.reference.markdown import anchor, code, page, prose, table

INTRODUCTION = """\
`CREATE SOURCE ... WITH (connector = 'NAME', option = 'value', ...)` and `CREATE SINK ... WITH (...)` name a connector and its options. An
unknown option is refused, and the error names the nearest known one. Spans of time are texts such as '10 s', '250 ms' or '2 hours'; a bare
number is seconds. Packages can add connectors in the entry point group `sbon.connectors`."""

CONNECTORS: dict[str, dict[str, str]] = {
    "datagen": {"source": "sbon.connectors.datagen"},
    "discard": {"sink": "sbon.connectors.discard"},
    "file": {"source": "file_source", "sink": "file_sink", "lookup table": "file_table"},
    "http": {"source": "http_source", "sink": "http_sink"},
    "mqtt": {"source": "mqtt_source", "sink": "mqtt_sink"},
    "sse": {"sink": "sse"},
    "tcp": {"source and sink": "tcp"},
    "websocket": {"sink": "websocket"},
}
"""Connectors by their name in statements: for each use, the module whose docstring has the options; a name without a dot is a module of
`sbon_agent.connectors`."""

SHARED: dict[str, str] = {
    "sbon_agent.connectors.http_client.HttpClient": "Options of requests over HTTP",
    "sbon_agent.connectors.mqtt_settings": "Options of `mqtt` for the broker",
    "sbon.formats.mqtt_payloads": "Formats of `mqtt`",
    "sbon.formats.mqtt_topics.TopicTemplate": "Topics of `mqtt` sinks",
    "sbon_agent.connectors.push_sink": "Options of `sse` and `websocket`",
    "sbon.formats.time_format.TimeFormat": "Times in texts and numbers",
}
"""Modules and classes that several connectors refer to, and their headings."""

_IN_CODE = re.compile(r" \(`(?:sbon\.[a-z_.]+|file_table|parquet_pruning)`\)")
"""Matches references to other modules, which do not help users."""
_UNDERLINED = re.compile(r"^(\S.*)\n-{3,}$", re.MULTILINE)
_OPTION = re.compile(r"^([A-Za-z_.]+(?:, [A-Za-z_.]+)*) : ", re.MULTILINE)


def connectors_page() -> str:
    """Returns the page."""
    return page(
        "Connectors",
        "the docstrings of `agent/connectors/*.py` and `sbon/query/options.py`",
        prose(INTRODUCTION),
        "## Options of every statement",
        *_parts(importlib.import_module("sbon.query.options").__doc__ or "", skipped=1),
        *_connectors(),
        *_shared(),
        *_streams(),
    )


def _connectors() -> Iterator[str]:
    for name, uses in CONNECTORS.items():
        for use, module in uses.items():
            yield f"## {code(name)} as a {use}"
            yield from _parts(_document(_place(module)))


def _place(module: str) -> str:
    """Returns the full name of a module."""
    return module if "." in module else f"sbon_agent.connectors.{module}"


def _shared() -> Iterator[str]:
    for place, heading in SHARED.items():
        yield f"## {heading}"
        yield from _parts(_document(place))


def _streams() -> Iterator[str]:
    """Yields the system streams, which are sources without a statement."""
    yield "## System streams"
    yield "Every agent offers these sources without a CREATE SOURCE. `region` is the agent's label of that name."
    rows = [(code(name), ", ".join(f"{code(c.name)} {TYPE_NAMES[c.type]}" for c in one.columns)) for name, one in SYSTEM_STREAMS.items()]
    yield table(("stream", "columns"), rows)


def _document(place: str) -> str:
    """Returns the docstring of a module, or of a class in one (`package.module.Class`)."""
    module, _, name = place.rpartition(".")
    found = getattr(importlib.import_module(module), name) if name[0].isupper() else importlib.import_module(place)
    return inspect.getdoc(found) or ""


def _parts(text: str, skipped: int = 0) -> Iterator[str]:
    """Yields the paragraphs of a docstring without the first `skipped`: options as lists, underlined titles as headings."""
    for paragraph in re.split(r"\n\s*\n", text.strip())[skipped:]:
        title = _UNDERLINED.match(paragraph)
        if title is not None and title[1] in ("Raises", "Parameters"):
            continue
        if title is not None:
            if title[1] != "Options":
                yield f"{_linked(title[1])}:" if "`" in title[1] else f"### {title[1]}"
            paragraph = paragraph[title.end() :].lstrip("\n")
        if _OPTION.match(paragraph):
            yield "\n".join(_bullet(one) for one in options(paragraph))
        elif paragraph:
            yield _linked(prose(paragraph))


def options(paragraph: str) -> list[tuple[str, str]]:
    """Returns name (or names) and meaning of each option in a list; the meaning keeps its line ends.

    Examples
    --------
    >>> options("rows : how many\\n    in all\\nseed, step : numbers")
    [('rows', 'how many\\n    in all'), ('seed, step', 'numbers')]
    """
    places = list(_OPTION.finditer(paragraph))
    ends = [place.start() for place in places[1:]] + [len(paragraph)] * bool(places)
    return [(place[1], paragraph[place.end() : end].strip()) for place, end in zip(places, ends, strict=True)]


def documented() -> set[str]:
    """Returns the name of every option on the page."""
    texts = [_document(_place(place)) for uses in CONNECTORS.values() for place in uses.values()]
    texts += [_document(place) for place in SHARED]
    texts.append(importlib.import_module("sbon.query.options").__doc__ or "")
    return {name for text in texts for names, _ in options(text) for name in names.split(", ")}


def _bullet(option: tuple[str, str]) -> str:
    """Returns an option as an entry of a list; lines that begin with a quoted word become a nested list."""
    names, text = option
    lines = text.split("\n")
    inner = [number for number, line in enumerate(lines) if re.match(r" {4}`\w+` {2,}", line)]
    first = inner[0] if inner else len(lines)
    told = f"- {', '.join(map(code, names.split(', ')))}: {_linked(prose(' '.join(lines[:first])))}"
    return "\n".join([told, *(f"  - {re.sub(r' +', ' ', line.strip())}" for line in lines[first:])])


def _linked(text: str) -> str:
    """Returns a text whose names of modules and classes are links to their headings."""
    for place, heading in SHARED.items():
        for name in (place, place.removeprefix("sbon_agent.connectors."), place.removeprefix("sbon.formats.")):
            text = text.replace(f"`{name}`", f"[{heading}](#{anchor(heading)})")
    text = text.replace("`file_source`", "[the source](#file-as-a-source)")
    return _IN_CODE.sub("", text)
