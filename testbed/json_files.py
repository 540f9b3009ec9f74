"""Results of commands as JSON: the option `--json`, and the file that it names."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from sbon.errors import SbonError


def write_json(where: str, value: Any) -> None:
    """Writes a result as indented JSON, to a file that is replaced atomically; `-` is standard output.

    Raises
    ------
    SbonError
        The file cannot be written.
    """
    data = msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
    if where == "-":
        sys.stdout.buffer.write(data)
        return
    path = Path(where)
    try:
        part = path.with_name(path.name + ".part")
        part.write_bytes(data)
        part.replace(path)
    except OSError as problem:
        raise SbonError(f"cannot write {where}: {problem.strerror}") from problem


def _check(where: str | None) -> str | None:
    """Refuses an unwritable file before the command starts its work, which may take minutes."""
    if where is None or where == "-":
        return where
    path = Path(where)
    if path.is_dir():
        raise SbonError(f"cannot write --json {where}: it is a folder; name a file in it")
    if not path.parent.is_dir():
        raise SbonError(f"cannot write --json {where}: there is no folder {path.parent}; make it first")
    if not os.access(path.parent, os.W_OK):
        raise SbonError(f"cannot write --json {where}: you may not write to {path.parent}")
    return where


JsonFile = Annotated[
    str | None, typer.Option("--json", metavar="FILE", help="Write the result as JSON; - for standard output.", callback=_check)
]
"""The option that all commands with a result have."""
