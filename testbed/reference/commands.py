"""The page of the commands: from the command line's own definitions."""

import re
from collections.abc import Iterator
from typing import Any

import typer

from sbon.cli.__main__ import build
from sbon_agent.__main__ import parser as agent_parser
from sbon_testbed.reference.markdown import code, page, prose, table

INTRODUCTION = """\
Every command takes `--help`. Commands that talk to an agent find it by `--socket PATH` (the control socket or the agent's data directory)
or by `$SBON_SOCKET`. Exit codes: 0 done, 1 failed, 2 wrong usage. An error is one line on standard error that says what to do.

Tables show their main columns, and on a wide terminal as many others as fit; `--wide` shows all columns. `--json` prints JSON for
scripts."""

_KIND = re.compile(r"<(?:int|float|str)\b[^>]*>")
"""Matches typer's placeholder for the value of an option without a metavar."""


def commands_page() -> str:
    """Returns the page."""
    program = typer.main.get_command(build())
    return page("Commands", "the command line's own help texts", prose(INTRODUCTION), *_sections(program, "sbon"))


def _sections(group: Any, path: str) -> Iterator[str]:
    """Yields the sections of a group's commands: single commands first, then the groups within it."""
    for name, one in sorted(_below(group).items(), key=lambda item: (hasattr(item[1], "list_commands"), item[0])):
        if getattr(one, "hidden", False):
            continue
        whole = f"{path} {name}"
        if hasattr(one, "list_commands"):
            yield from _sections(one, whole)
        elif whole == "sbon agent":
            yield from _agent()
        else:
            yield f"## {code(_usage(one, whole))}"
            yield from _help(one.help or "")
            rows = [row for parameter in one.params if (row := _row(one, parameter)) is not None]  # none for hidden options
            yield table(("option", "meaning"), rows) if rows else ""
            yield from _help(one.epilog or "")


def _below(group: Any) -> dict[str, Any]:
    """Returns the commands of a group by name, including those that it loads on demand."""
    context = typer.Context(group)
    return {name: group.get_command(context, name) for name in group.list_commands(context)}


def _usage(command: Any, path: str) -> str:
    """Returns a command's usage: its arguments and required options."""
    words = [path]
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            words.append(_argument(parameter) if parameter.required else f"[{_argument(parameter).strip('[]')}]")
        elif parameter.required:
            words.append(f"{parameter.opts[0]} {parameter.metavar or ''}".strip())
    return " ".join(words)


def _row(command: Any, parameter: Any) -> tuple[str, str] | None:
    """Returns name and meaning of an option or argument; None if help does not show it."""
    shown = parameter.get_help_record(typer.Context(command))
    if shown is None:
        return None
    names, meaning = shown
    if parameter.param_type_name == "argument":
        names = _argument(parameter)
    return code(_KIND.sub(lambda found: "N" if "int" in found[0] else "X" if "float" in found[0] else "TEXT", names)), meaning


def _argument(parameter: Any) -> str:
    return parameter.metavar or str(parameter.name).upper()


def _help(text: str) -> Iterator[str]:
    """Yields the paragraphs of a help text; paragraphs that keep their lines (`\\b`) become code."""
    for paragraph in re.split(r"\n\s*\n", text.replace("\b\n", "\n\b").strip("\n")):
        if "\b" not in paragraph and not paragraph.startswith("Example"):
            yield prose(paragraph)
            continue
        title, _, lines = paragraph.replace("\b", "").strip("\n").partition(":")
        shown = [line.strip() for line in (lines.splitlines() if "\n" in lines else lines.split("; ")) if line.strip()]
        language = "sh" if title.strip().startswith("Example") else "text"
        yield f"{title.strip()}:\n\n```{language}\n" + "\n".join(shown) + "\n```"


def _agent() -> Iterator[str]:
    """Yields the section of `sbon agent`, the daemon, which has its own parser."""
    parser = agent_parser()
    yield f"## {code('sbon agent')}"
    yield prose(parser.description or "")
    rows = []
    for option in parser._actions:
        if option.help is None or "SUPPRESS" in option.help or option.dest == "help":
            continue
        names = ", ".join(option.option_strings)
        value = option.metavar or ("" if option.nargs == 0 else option.dest.upper())
        choices = f"; one of {', '.join(map(str, option.choices))}" if option.choices else ""
        rows.append((code(f"{names} {value}".strip()), f"{option.help}{choices}"))
    yield table(("option", "meaning"), rows)
    yield "Settings without a flag are set in the configuration file: see [settings](settings.md)."
