"""State that an agent keeps across restarts: the file `state.json` in its data directory.

The agent reads it at start and saves it periodically.

If the file is lost or damaged, the coordinate takes a few minutes to settle again, and the membership protocol raises the incarnation above
the one that others remember. Results stay correct, so the file is not synced to disk, and no error here stops an agent.
"""

from pathlib import Path

import msgspec

from sbon.cost_space.coordinate import Coordinate, check
from sbon.errors import CoordinateError
from sbon_agent.logs import structlog
from sbon_agent.whole_file import read_file, replace_file

STATE_NAME = "state.json"
STATE_BYTES_MAX = 1 << 20


class SavedState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Contents of the file."""

    name: str
    """Agent that saved the file; an agent of another name ignores the rest."""
    incarnation: int
    coordinate: Coordinate | None = None


class StateFile:
    """The file: read at start, replaced as a whole at each save.

    Parameters
    ----------
    directory : the data directory; if empty, nothing is saved
    """

    def __init__(self, directory: str | Path) -> None:
        self.path = Path(directory) / STATE_NAME if str(directory) else None
        self._failing = False
        self._log = structlog.get_logger("state")

    def load(self, name: str) -> SavedState | None:
        """Returns the state that the agent of this name saved last; None if there is no file, or if it is unusable, which is logged."""
        if self.path is None:
            return None
        try:
            state = msgspec.json.decode(read_file(self.path, STATE_BYTES_MAX), type=SavedState)
            if state.coordinate is not None:
                check(state.coordinate)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, msgspec.MsgspecError, CoordinateError) as problem:
            self._log.warning("state.unreadable", path=str(self.path), reason=str(problem), doing="starting without it")
            return None
        if state.name != name or state.incarnation < 0:
            self._log.warning("state.ignored", path=str(self.path), saved_by=state.name, doing="starting without it")
            return None
        return state

    def save(self, state: SavedState) -> bool:
        """Replaces the file. Returns False if that fails; a series of failures is logged once."""
        if self.path is None:
            return False
        try:
            replace_file(self.path, msgspec.json.encode(state) + b"\n")
        except OSError as problem:
            if not self._failing:
                self._log.warning("state.not_saved", path=str(self.path), reason=str(problem), doing="going on without")
            self._failing = True
            return False
        self._failing = False
        return True
