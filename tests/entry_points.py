"""Fakes installed packages: writes a folder with the entry points of a distribution, to be put on the path."""

from collections.abc import Mapping
from pathlib import Path


def install(directory: Path, name: str, entry_points: Mapping[str, Mapping[str, str]]) -> Path:
    """Writes the metadata of distribution `name` into a folder for PYTHONPATH.

    Parameters
    ----------
    entry_points : group -> name -> `module:object`
    """
    info = directory / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
    groups = (f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in made.items()) for group, made in entry_points.items())
    (info / "entry_points.txt").write_text("\n".join(groups), encoding="utf-8")
    return directory
