"""The `sbon agent` command. It replaces its process with the daemon, so that no part of the command line stays in the daemon's memory."""

import os
import sys

import typer


def register(app: typer.Typer) -> None:
    """Adds the command to the program; called through the entry point group `sbon.commands`."""
    # Options belong to the daemon (`sbon_agent.__main__`) and pass through, --help included.
    settings = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
    app.command("agent", context_settings=settings)(agent)


def agent(context: typer.Context) -> None:
    """Start an agent on this machine."""
    sys.stdout.flush()
    sys.stderr.flush()
    # -P keeps the current directory off the module path: a folder called `agent` there must not be imported instead.
    os.execv(sys.executable, [sys.executable, "-P", "-m", "sbon_agent", *context.args])
