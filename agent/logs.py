"""Sets up the agent's log: structlog to standard error, as text for people or JSON for machines.

structlog imports rich if it can, which takes ten megabytes in every agent. If this module is imported before anything else imports
structlog, structlog does without rich.
"""

import io
import logging
import sys
from typing import Any, Literal, TextIO, cast

import msgspec

from sbon.printable import printable

_without_rich = "rich" not in sys.modules and "structlog" not in sys.modules
if _without_rich:
    sys.modules["rich"] = None  # type: ignore[assignment]
import structlog as structlog  # noqa: E402

if _without_rich:
    del sys.modules["rich"]

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class LogConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Log on standard error. TOML table [log]."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severity shown. `debug` shows single probes and batches, and takes a good part of a core under load."""
    format: Literal["auto", "console", "json"] = "auto"
    """Form of the log: `console` for people, `json` with one object per line for collectors, `auto` for console on a terminal and JSON
    otherwise."""


class StandardError:
    """Standard error that drops lines instead of raising: a full disk under the log must not stop the program."""

    def __init__(self) -> None:
        self.counters = {"log_lines_lost": 0}

    def write(self, text: str) -> int:
        """Writes text; counts a lost line if that fails."""
        try:
            return sys.stderr.write(text)
        except OSError:
            self.counters["log_lines_lost"] += 1
            return len(text)

    def flush(self) -> None:
        """Flushes; text that cannot be flushed stays in the stream's bounded buffer."""
        try:
            sys.stderr.flush()
        except OSError:
            self.counters["log_lines_lost"] += 1


standard_error = StandardError()


def set_up(config: LogConfig, **bound: Any) -> None:
    """Sends structlog's events to standard error as configured, with `bound` in every one. May be called again to change the level."""
    console = config.format == "console" or (config.format == "auto" and sys.stderr.isatty())
    renderer: Any = structlog.processors.JSONRenderer()
    if console:
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=_printable_traceback)
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(**bound)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.StackInfoRenderer(),
            _printable_values if console else structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[config.level]),
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, standard_error)),
        cache_logger_on_first_use=False,
    )


def _printable_values(logger: object, method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Makes others' text printable before it reaches a terminal. (JSON escapes text by itself, and `repr` escapes other values.)"""
    return {key: printable(value) if isinstance(value, str) else value for key, value in event.items()}


def _printable_traceback(target: TextIO, exc_info: Any) -> None:
    text = io.StringIO()
    structlog.dev.plain_traceback(text, exc_info)
    target.write(printable(text.getvalue(), keep="\n"))
