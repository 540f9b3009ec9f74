"""The `sbon` program: the composition root that gathers commands, and the one place where errors become exit codes.

Commands of higher layers come in by the entry point group `sbon.commands`: each entry is a function that takes the typer app and adds
to it. Exit codes: 0 done, 1 failed, 2 wrong usage.
"""

import os
import sys
from importlib import metadata
from typing import Annotated

try:
    import typer

    from sbon.cli import analyze, coordinates, keygen, keys, names, overview, plan, service, statements, top
    from sbon.cli.output import print_error, say
    from sbon.errors import SbonError, UsageError
except KeyboardInterrupt:  # loading takes a slow machine seconds, in which Ctrl-C may come
    sys.exit(130)

ENTRY_POINTS = "sbon.commands"
INTERRUPTED = 130
"""Exit code after Ctrl-C, as in shells; commands that people end in this way (tail, top) handle it themselves."""


def build() -> typer.Typer:
    """Builds the whole program."""
    app = typer.Typer(
        name="sbon",
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    )
    app.callback()(_program)
    for entry in sorted(metadata.entry_points(group=ENTRY_POINTS), key=lambda entry: entry.name):
        try:
            entry.load()(app)
        except ImportError as problem:
            print_error(f"the commands of {entry.name!r} ({entry.value}) cannot be loaded: {problem}; is the installation complete?")
    for module in (overview, names, coordinates, analyze, statements, plan, top, service, keygen, keys):
        module.register(app)
    return app


def _version(wanted: bool) -> None:
    if wanted:
        say(f"sbon {metadata.version('sbon')}")
        raise typer.Exit


def _program(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end.")] = False,
) -> None:
    """Continuous SQL over many machines.

    Agents find each other, place operators where the network carries the least data, and move them.

    \b
    First steps:
      sbon agent                      start an agent here (Ctrl-C leaves)
      sbon status                     ask it how it is
      sbon sql -c "SELECT node, cpu FROM sys.load"
    """


def main(arguments: list[str] | None = None) -> None:
    """Runs the program with `arguments` (those of the process if None) and ends the process with its exit code."""
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: list[str]) -> int:
    """Runs the program and returns its exit code."""
    try:
        code = build()(arguments or ["--help"], prog_name="sbon", standalone_mode=False)
        sys.stdout.flush()
    except SbonError as problem:
        print_error(str(problem))
        return 2 if isinstance(problem, UsageError) else 1
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except (BrokenPipeError, SystemExit) as problem:
        # typer converts the former to the latter.
        if isinstance(problem, SystemExit) and not isinstance(problem.__context__, BrokenPipeError):
            raise
        # The reader (head, less) has closed the pipe. The interpreter would complain when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as problem:
        # Usage errors have classes of their own, whose module differs between versions of typer.
        if not hasattr(problem, "format_message"):
            raise
        context = getattr(problem, "ctx", None)
        command = context.command_path if context is not None else "sbon"
        message = problem.format_message().rstrip(".").replace("': Value error, '", "': '")  # typer's text for a value that is no choice
        print_error(f"{message}{'' if message.endswith('?') else ';'} see `{command} --help`")
        return int(getattr(problem, "exit_code", 2))
    return code if isinstance(code, int) else 0


if __name__ == "__main__":
    main()
