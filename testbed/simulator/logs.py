"""Logs of agents in the virtual world: one JSON line per event, with virtual time, so that two runs of a seed give equal logs."""

import logging
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from sbon_agent.logs import structlog
from sbon_testbed.simulator.time import VirtualTime

LOG_NAME = "agents.log"


class VirtualLog:
    """Writes the logs of all agents of one world, the newest that was made.

    Parameters
    ----------
    file : file to write; None drops the logs
    """

    def __init__(self, time: VirtualTime, file: Path | None) -> None:
        self._time = time
        self._out = file.open("w", encoding="utf-8") if file is not None else None
        level = logging.INFO if self._out else logging.CRITICAL
        structlog.contextvars.clear_contextvars()
        structlog.configure(
            processors=[
                structlog.processors.add_log_level,
                self._stamp,
                structlog.processors.format_exc_info,
                structlog.processors.JSONRenderer(),
            ],
            wrapper_class=structlog.make_filtering_bound_logger(level),
            logger_factory=structlog.PrintLoggerFactory(self._out),
            cache_logger_on_first_use=False,
        )

    def close(self) -> None:
        """Closes the file; later logs are dropped."""
        if self._out is not None:
            structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
            self._out.close()
            self._out = None

    def _stamp(self, logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        event["at_s"] = round(self._time.now_s, 6)
        return event
