"""Paths in the data directory of one agent, and the files that survive a restart."""

import os
from pathlib import Path

from sbon_agent.costs_file import CostsFile
from sbon_agent.kept_file import KeptFile
from sbon_agent.state import StateFile
from sbon_agent.telemetry.log import DIRECTORY_NAME


class Files:
    """Files and folders of one agent.

    Parameters
    ----------
    data_dir : the data directory; if empty, nothing is kept for the next start, and relative paths begin in the working directory
    """

    def __init__(self, data_dir: str) -> None:
        kept = Path(data_dir).expanduser() if data_dir else ""
        self.folder = str(Path(data_dir or ".").expanduser())
        """Folder in which relative paths begin."""
        self.operator_states = os.path.join(self.folder, "state")
        """Folder for states of operators that memory does not hold."""
        self.spilled_batches = os.path.join(self.folder, "spill")
        """Folder for batches that links keep on disk while their receivers are unreachable."""
        self.telemetry = Path(kept) / DIRECTORY_NAME if kept else None
        """Folder for telemetry; None without a data directory."""
        self.state = StateFile(kept)
        self.costs = CostsFile(kept)
        self.statements = KeptFile(kept)
