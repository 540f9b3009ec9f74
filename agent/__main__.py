"""Entry point of the daemon: `python -m sbon_agent`; `sbon agent` replaces its process with it.

Options override the configuration file, which overrides the defaults. Exit codes: 0 left on request, 1 failed, 2 wrong usage or
configuration.
"""

import argparse
import gc
import os
import sys
from typing import Any, NoReturn

# An agent computes with vectors of three elements: a pool of BLAS threads would only take memory. numpy reads the variable on first import.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from sbon.errors import ConfigError, SbonError
from sbon.printable import printable
from sbon_agent import logs  # first: it imports structlog without rich
from sbon_agent.config import AgentConfig, read_config

EXAMPLES = """examples:
  sbon agent --name alone                                      one agent on loopback
  sbon agent --name b --bind 127.0.0.1:0 --data-dir /tmp/b --join 127.0.0.1:7946
                                                               a second one on the same machine
  sbon agent --bind 0.0.0.0:7946 --advertise 192.0.2.7:7946 --key-file cluster.key --join 192.0.2.1:7946
                                                               one of many machines
  sbon agent --print-config > agent.toml                       every setting, with its default and what it costs
"""


class Parser(argparse.ArgumentParser):
    """Command line parser that reports an error in one line, as the rest of the program does."""

    def error(self, message: str) -> NoReturn:
        """Exits with the code for wrong usage."""
        self.exit(2, f"{self.prog}: {message}; see `{self.prog} --help`\n")


def parser() -> Parser:
    """Makes the parser of the daemon's command line."""
    known = Parser(
        prog="sbon agent",
        description="Start an agent on this machine; it runs until SIGTERM or Ctrl-C, and then leaves the overlay in good order. "
        "SIGHUP makes it read its configuration again.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    known.add_argument("--config", metavar="FILE", help="TOML configuration; see --print-config")
    known.add_argument("--name", help="unique name in the overlay (default: the host name)")
    known.add_argument("--bind", metavar="HOST:PORT", help="where to listen, UDP and TCP (default: 127.0.0.1:7946)")
    known.add_argument("--advertise", metavar="HOST:PORT", help="address at which others reach this agent (default: where it listens)")
    known.add_argument("--join", metavar="HOST:PORT", action="append", help="address of an agent already in the overlay; may be repeated")
    known.add_argument("--data-dir", metavar="DIR", help=f"folder for state and control socket (default: {AgentConfig().data_dir})")
    known.add_argument("--key-file", metavar="FILE", help="file with cluster keys, as `sbon keygen` makes them")
    known.add_argument("--initial-key-file", metavar="FILE", help="file that is copied to --key-file if that does not exist yet")
    known.add_argument("--label", metavar="KEY=VALUE", action="append", help="a label of this machine, such as region=eu; may be repeated")
    known.add_argument("--log-level", choices=sorted(logs.LEVELS, key=lambda level: logs.LEVELS[level]), help="least severity shown")
    known.add_argument("--log-format", choices=("auto", "console", "json"), help="form of the log on standard error")
    known.add_argument(
        "--forget",
        action="store_true",
        help="start without the sources, views, sinks and queries of the last run; their file is renamed to statements.json.forgotten",
    )
    known.add_argument("--print-config", action="store_true", help="print the configuration as a commented file and end")
    known.add_argument("--testbed-shaper", metavar="FILE", help=argparse.SUPPRESS)
    return known


def overrides(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the settings that the options give, as a layer over the configuration file.

    Raises
    ------
    ConfigError
        A label is not KEY=VALUE.
    """
    layer: dict[str, Any] = {}
    for option in ("name", "bind", "advertise", "join", "data_dir", "key_file", "initial_key_file"):
        if (value := getattr(options, option)) is not None:
            layer[option] = value
    for label in options.label or ():
        key, equals, value = label.partition("=")
        if not (key and equals):
            raise ConfigError(f"--label {label}, expected KEY=VALUE such as region=eu")
        layer.setdefault("labels", {})[key] = value
    for option, setting in (("log_level", "level"), ("log_format", "format")):
        if (value := getattr(options, option)) is not None:
            layer.setdefault("log", {})[setting] = value
    return layer


def main(arguments: list[str] | None = None) -> int:
    """Runs the daemon until it ends and returns the exit code, which does not depend on whether the log can be written."""
    code = _run(arguments)
    try:
        sys.stderr.flush()
    except OSError:
        # The interpreter would flush again at its end and exit with code 120. Lost lines have been counted.
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    return code


def _run(arguments: list[str] | None) -> int:
    gc.disable()  # objects made at start-up stay; the daemon enables collection when it is ready
    options = parser().parse_args(arguments)
    try:
        flags = overrides(options)
        config = read_config(options.config, flags)
    except ConfigError as problem:
        return _failed(problem, 2)
    if options.print_config:
        from sbon.config import sample

        sys.stdout.write(sample(config))
        return 0
    from sbon_agent import daemon
    from sbon_agent.allocator import keep_freed_memory

    keep_freed_memory()

    try:
        return daemon.run(config, lambda: read_config(options.config, flags), options.testbed_shaper, forget=options.forget)
    except ConfigError as problem:
        return _failed(problem, 2)
    except SbonError as problem:
        return _failed(problem, 1)
    except KeyboardInterrupt:  # before the daemon has installed its own handler
        return 130


def _failed(problem: SbonError, code: int) -> int:
    logs.standard_error.write(f"sbon agent: {printable(' '.join(str(problem).split()))}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
