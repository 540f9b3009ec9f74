"""Makes the page of an agent's settings."""

from collections.abc import Iterator

import msgspec

from sbon.reloading import Effect, effect_of
from sbon_agent.config import AgentConfig
from sbon_testbed.reference.markdown import code, page, prose, table
from sbon_testbed.reference.structs import about, fields, structs_of

INTRODUCTION = """\
An agent reads its settings from a TOML file: `sbon agent --config FILE`. `sbon agent --print-config` prints all settings as such a file,
with their present values. Flags take precedence over the file, and the file over the defaults. An unknown setting or a value out of range
is an error that names the file, the line and the nearest setting.

*Reload* says whether `sbon reload` (or SIGHUP) applies a changed value at once; all other changes need a restart of the agent."""


def settings_page() -> str:
    """Returns the page."""
    return page(
        "Settings of an agent", "the structs that `agent/config.py` puts together", prose(INTRODUCTION), *_sections(AgentConfig, "")
    )


def _sections(kind: type[msgspec.Struct], path: str) -> Iterator[str]:
    rows = [
        (code(name), unit, default, "at once" if effect_of(f"{path}.{name}".strip(".")) is Effect.AT_ONCE else "", meaning)
        for name, unit, default, meaning in fields(kind)
    ]
    if rows:
        yield f"## {code(f'[{path}]') if path else 'Before the first table'}"
        yield prose(about(kind))
        yield table(("setting", "unit or type", "default", "reload", "meaning"), rows)
    for field in msgspec.structs.fields(kind):
        for section in structs_of(field.type):
            yield from _sections(section, f"{path}.{field.encode_name}".strip("."))
