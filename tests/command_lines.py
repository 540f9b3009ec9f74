"""Parses command lines with the programs' own parsers, without running them."""

import contextlib
import importlib.util
import io
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import typer

from sbon.cli.__main__ import build
from sbon.config import load
from sbon.errors import ConfigError
from sbon_agent.__main__ import overrides
from sbon_agent.__main__ import parser as agent_parser
from sbon_agent.config import AgentConfig
from tests.documents import ROOT

_PATH = re.compile(r"FILE|DIR|PYTHON|\.toml")
READ = {
    *("ca_file", "config", "data", "file", "flink", "initial_key_file", "key", "key_file", "load", "logs", "matrix", "password_file"),
    *("arrivals", "planetlab", "profile", "scenario", "seattle"),
}
"""Parameters that name files or folders that must exist."""
WRITTEN = {"data_dir", "json", "out", "plot"}
"""Parameters that name what the command makes."""
NOT_FILES = {"-", "default"}
OTHER_PROGRAMS = {"cat", "curl", "echo", "find", "head", "install", "nc", "pip", "scp", "systemctl"}
"""Programs of others: only the files of this project that they name are looked up."""


class WrongCommandError(Exception):
    """A program would refuse its command line."""


@dataclass
class Parsed:
    """A command line, parsed: its parameters, and the files that it reads and writes."""

    parameters: dict[str, Any] = field(default_factory=dict)
    reads: list[str] = field(default_factory=list)
    writes: list[str] = field(default_factory=list)

    def add_files(self, name: str, value: Any) -> None:
        """Notes the value of a parameter that names files, unless the value stands for something else."""
        if name not in READ | WRITTEN:
            raise WrongCommandError(f"does {name} name a file that is read, or one that is written? add it to READ or WRITTEN")
        values = [str(one) for one in (value if isinstance(value, list | tuple) else [value]) if one is not None]
        (self.reads if name in READ else self.writes).extend(one for one in values if one not in NOT_FILES)


@cache
def program() -> Any:
    """Returns the command line of `sbon`."""
    return typer.main.get_command(build())


def _sbon(words: list[str]) -> Parsed:
    if words[:1] == ["agent"]:
        return _agent(words[1:])
    command, path = program(), ["sbon"]
    while hasattr(command, "list_commands"):
        name = words[len(path) - 1] if len(words) >= len(path) else ""
        below = command.get_command(typer.Context(command), name)
        if below is None:
            raise WrongCommandError(f"`{' '.join(path)}` has no command {name!r}")
        command, path = below, [*path, name]
    try:
        context = command.make_context(" ".join(path), words[len(path) - 1 :])
    except Exception as problem:
        if not hasattr(problem, "format_message"):  # the classes of usage errors differ between versions of typer
            raise
        raise WrongCommandError(problem.format_message()) from problem
    parsed = Parsed(dict(context.params))
    for parameter in command.params:
        value = context.params.get(parameter.name)
        if isinstance(value, Path) or (parameter.name != "socket" and _PATH.search(parameter.metavar or "")):
            parsed.add_files(parameter.name, value)
    return parsed


def _agent(words: list[str]) -> Parsed:
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            options = agent_parser().parse_args(words)
        load(AgentConfig, "", "command line", overrides(options))
    except SystemExit as problem:
        raise WrongCommandError(said.getvalue()) from problem
    except ConfigError as problem:
        raise WrongCommandError(str(problem)) from problem
    parsed = Parsed(vars(options))
    for name in READ | WRITTEN:
        parsed.add_files(name, getattr(options, name, None))
    return parsed


def _make(words: list[str]) -> Parsed:
    done = subprocess.run(["make", "--dry-run", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise WrongCommandError(done.stderr.strip())
    return Parsed()


def _python(words: list[str]) -> Parsed:
    if words[:1] == ["-c"] and len(words) == 2:
        try:
            compile(words[1], "-c", "exec")
        except SyntaxError as problem:
            raise WrongCommandError(str(problem)) from problem
        return Parsed()
    if words[:1] != ["-m"] or len(words) < 2 or importlib.util.find_spec(words[1]) is None:
        raise WrongCommandError("expected -c CODE, or -m MODULE with a module that exists")
    return Parsed(writes=words[2:] if words[1] == "venv" else [])


def _other(words: list[str]) -> Parsed:
    own = [word for word in words if (ROOT / word.partition("/")[0]).is_dir() and "/" in word and word[0] not in "/~."]
    return Parsed(reads=own)


def parse(words: list[str], made: set[str]) -> Parsed:
    """Parses one program and its words, up to a redirection of its output.

    `made` has the files that are there: a program that lies in a made folder is one of others.

    Raises
    ------
    WrongCommandError
        The program would refuse the words, or nobody knows the program.
    """
    words, target = (words[: words.index(">")], words[words.index(">") + 1 :]) if ">" in words else (words, [])
    name = words[0]
    parsers: dict[str, Callable[[list[str]], Parsed]] = {"sbon": _sbon, "make": _make}
    if re.fullmatch(r"python[\d.]*", name):
        parsed = _python(words[1:])
    elif name in parsers:
        parsed = parsers[name](words[1:])
    elif name in OTHER_PROGRAMS or name.partition("/")[0] in made:
        parsed = _other(words[1:])
    else:
        raise WrongCommandError(f"nobody knows the program {name!r}")
    parsed.writes.extend(target)
    return parsed


def missing(parsed: Parsed, made: set[str]) -> Iterator[str]:
    """Yields the files that a command reads though they are neither in the project nor made before."""
    for name in parsed.reads:
        path = Path(name)
        is_made = any(str(one) in made for one in (path, *path.parents))
        if not is_made and (path.is_absolute() or not (ROOT / path).exists()):
            yield name
