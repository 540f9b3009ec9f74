"""`sbon keygen`: the command that generates a cluster key."""

import os
from pathlib import Path
from typing import Annotated

import typer

from sbon.cli.output import print_error, say
from sbon.sealing import KEY_BYTES, generate_key


def register(app: typer.Typer) -> None:
    """Adds the command to the program."""
    app.command()(keygen)


def keygen(
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write it here, readable by you alone.", show_default=False)] = None,
) -> None:
    """Make a new cluster key.

    Every agent of an overlay needs the same one, in the file that key_file or --key-file names.

    \b
    Examples:
      sbon keygen --out cluster.key
      scp -p cluster.key other-host:
    """
    key = generate_key(os.urandom(KEY_BYTES))
    if out is None:
        say(key)
        return
    try:
        descriptor = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(f"# sbon cluster key: keep it secret, give every agent the same one\n{key}\n")
    except FileExistsError:
        print_error(f"{out} exists; a key that agents use must not be lost: name another file, or remove it first")
        raise typer.Exit(1) from None
    except OSError as problem:
        print_error(f"cannot write {out}: {problem.strerror}")
        raise typer.Exit(1) from None
