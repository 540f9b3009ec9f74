"""The file `statements.json` in the data directory: an agent's statements for its next start (`sbon.supervision.resumption`)."""

import os
from pathlib import Path

from sbon.supervision.resumption import FORMAT, KEPT_BYTES_MAX, Kept, decode_kept, encode_kept
from sbon.types import NodeId
from sbon_agent.logs import structlog
from sbon_agent.whole_file import read_file, replace_file

KEPT_NAME = "statements.json"


class KeptFile:
    """The file: read at start, replaced as a whole at each save.

    Parameters
    ----------
    directory : the data directory; if empty, nothing is kept
    """

    def __init__(self, directory: str | Path) -> None:
        self.path = Path(directory) / KEPT_NAME if str(directory) else None
        self.remembers = self.path is not None
        """False if the statements of an earlier run could not be read, or nothing is kept."""
        self._log = structlog.get_logger("state")

    def load(self, agent: NodeId) -> Kept | None:
        """Returns the statements that the agent of this name kept last, or None. A damaged file is set aside."""
        if self.path is None:
            return None
        try:
            kept = decode_kept(read_file(self.path, KEPT_BYTES_MAX))
            if kept.agent != agent:
                raise ValueError(f"it belongs to agent {kept.agent}")
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as problem:
            self.set_aside("damaged", str(problem))
            self.remembers = False
            return None
        return kept

    def save(self, kept: Kept) -> None:
        """Replaces the file; blocks until it is on disk.

        Raises
        ------
        OSError, ValueError
            The file cannot be written, or would be too large; it stays as it was.
        """
        if self.path is not None:
            replace_file(self.path, encode_kept(kept), forced=True)

    def forget(self) -> None:
        """Sets the file aside. If it has promises of this agent to others, writes a new one with these."""
        if self.path is None:
            return
        try:
            kept = decode_kept(read_file(self.path, KEPT_BYTES_MAX))
        except (OSError, ValueError):
            kept = None
        self.set_aside("forgotten", "requested with --forget")
        if kept is not None and kept.promises:
            self.save(Kept(FORMAT, kept.agent, promises=kept.promises))

    def set_aside(self, why: str, reason: str) -> None:
        """Renames the file, if there is one, so that it is neither used nor overwritten."""
        if self.path is None or not self.path.exists():
            return
        number, aside = 1, self.path.with_name(f"{KEPT_NAME}.{why}")
        while aside.exists():
            number += 1
            aside = self.path.with_name(f"{KEPT_NAME}.{why}-{number}")
        try:
            os.replace(self.path, aside)
        except OSError as problem:
            self._log.error("statements.not_set_aside", path=str(self.path), reason=str(problem), doing="starting without it")
            return
        level = self._log.error if why == "damaged" else self._log.warning
        level(f"statements.{why}", path=str(self.path), set_aside=str(aside), reason=reason, doing="starting without it")
