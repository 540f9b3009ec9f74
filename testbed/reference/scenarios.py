"""Makes the page of the testbed's scenario files."""

from collections.abc import Iterator

import msgspec

from sbon_testbed import scenario
from sbon_testbed.reference.markdown import code, page, prose, table
from sbon_testbed.reference.structs import about, fields, structs_of
from sbon_testbed.scenario import Scenario


def scenario_page() -> str:
    """Returns the page."""
    introduction = f"{prose(scenario.__doc__ or '')}\n\n`sbon testbed run FILE` runs a scenario."
    return page("Scenario files", "`testbed/scenario.py` and the structs that it uses", introduction, *_tables())


def _tables() -> Iterator[str]:
    yield "## Before the first table"
    yield _table(Scenario)
    for field in msgspec.structs.fields(Scenario):
        several = isinstance(field.default, tuple)
        heading = code(f"[[{field.encode_name}]]" if several else f"[{field.encode_name}]")
        if field.encode_name == "agent":
            yield f"## {heading}"
            yield "Settings of every agent, by the names of its own TOML file: see [settings](settings.md)."
        for kind in structs_of(field.type):
            tag = kind.__struct_config__.tag
            yield f"## {heading}" + (f" with kind = {code(str(tag))}" if tag is not None else "")
            yield prose(about(kind))
            yield _table(kind)


def _table(kind: type[msgspec.Struct]) -> str:
    rows = [
        (code(name), unit, default, meaning) for name, unit, default, meaning in fields(kind) if name != "agent" or kind is not Scenario
    ]
    return table(("field", "unit or type", "default", "meaning"), rows) if rows else ""
