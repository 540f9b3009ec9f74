"""Log events of the agent: structlog to standard error, as text for people or JSON for machines.

structlog looks for rich when it is imported and keeps it, with ten megabytes, in the memory of every agent. Whoever imports this
module before anything else imports structlog gets it without.
"""

import logging
import sys
from typing import Any, Literal

import msgspec

_without_rich = "rich" not in sys.modules and "structlog" not in sys.modules
if _without_rich:
    sys.modules["rich"] = None  # type: ignore[assignment]
import structlog as structlog  # noqa: E402

if _without_rich:
    del sys.modules["rich"]

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class LogConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the agent says on standard error. TOML table [log]."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severity shown. `debug` shows single probes and batches and costs a good part of a core under load."""
    format: Literal["auto", "console", "json"] = "auto"
    """`console` for people, `json` one object a line for collectors; `auto` is console on a terminal, else JSON."""


def set_up(config: LogConfig, **bound: Any) -> None:
    """Send structlog's events to standard error as configured, with `bound` in every one. May be called again to change the level."""
    console = config.format == "console" or (config.format == "auto" and sys.stderr.isatty())
    renderer: Any = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()) if console else structlog.processors.JSONRenderer()
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(**bound)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.StackInfoRenderer(),
            *([] if console else [structlog.processors.format_exc_info]),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[config.level]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
