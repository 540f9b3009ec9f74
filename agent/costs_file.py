"""The file `costs.json` in the data directory: costs of operators that this host measured before a restart (`sbon.cost.statistics`).

The agent reads it at start and saves it periodically. Without the file, predictions have no measured costs until operators have run again.
"""

from pathlib import Path

import msgspec

from sbon.cost.store import Kept
from sbon_agent.logs import structlog
from sbon_agent.whole_file import read_file, replace_file

COSTS_NAME = "costs.json"
COSTS_BYTES_MAX = 1 << 24


class CostsFile:
    """The file: read at start, replaced as a whole at each save.

    Parameters
    ----------
    directory : the data directory; if empty, nothing is kept
    """

    def __init__(self, directory: str | Path) -> None:
        self.path = Path(directory) / COSTS_NAME if str(directory) else None
        self._failing = False
        self._log = structlog.get_logger("costs")

    def load(self) -> Kept | None:
        """Returns the costs saved last; None if there is no file, or if it is unreadable, which is logged."""
        if self.path is None:
            return None
        try:
            return msgspec.json.decode(read_file(self.path, COSTS_BYTES_MAX), type=Kept)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, msgspec.MsgspecError) as problem:
            self._log.warning("costs.unreadable", path=str(self.path), reason=str(problem), doing="measuring again")
            return None

    def save(self, kept: Kept) -> None:
        """Replaces the file. A series of failures is logged once."""
        if self.path is None:
            return
        try:
            replace_file(self.path, msgspec.json.encode(kept) + b"\n")
        except OSError as problem:
            if not self._failing:
                self._log.warning("costs.not_saved", path=str(self.path), reason=str(problem), doing="going on without")
            self._failing = True
            return
        self._failing = False
