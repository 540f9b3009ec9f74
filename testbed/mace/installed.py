"""Installs the testbed's functions for the agents that are started in a block, as a package of users would be: by entry points."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FUNCTIONS = {"visit_step": "sbon_testbed.mace.visits:visit_step"}


@contextmanager
def functions_installed(directory: Path) -> Iterator[None]:
    """Writes the metadata of a package into a folder, and puts it on the path of programs that are started in the block."""
    info = directory / "sbon_testbed_functions-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sbon-testbed-functions\nVersion: 1.0\n", encoding="utf-8")
    entries = "".join(f"{name} = {place}\n" for name, place in FUNCTIONS.items())
    (info / "entry_points.txt").write_text(f"[sbon.functions]\n{entries}", encoding="utf-8")
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(directory), before)))
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
